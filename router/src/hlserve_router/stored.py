"""Which engine holds a stored response, and whose it is. Bounded: the oldest binding is forgotten first."""

import re
from collections import OrderedDict
from typing import Final

from hlserve_api.answers import Reason
from hlserve_router.endpoint import EndpointState
from hlserve_router.errors import Refusal

MAX_RESPONSES: Final = 10_000
_RESPONSE_ID: Final = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,100})"')


class StoredResponses:
    """Response id -> (client, endpoint)."""

    def __init__(self, limit: int = MAX_RESPONSES) -> None:
        self._limit = limit
        self._bound: OrderedDict[str, tuple[str, EndpointState]] = OrderedDict()

    def bind(self, response_id: str, client: str, endpoint: EndpointState) -> None:
        """Remembers a response that `endpoint` made for `client`."""
        self._bound[response_id] = (client, endpoint)
        while len(self._bound) > self._limit:
            self._bound.popitem(last=False)

    def bind_named(self, data: bytes, client: str, endpoint: EndpointState) -> None:
        """As `bind`, if these bytes of an answer name a response."""
        found = _RESPONSE_ID.search(data)
        if found is not None:
            self.bind(found.group(1).decode(), client, endpoint)

    def find(self, response_id: str, client: str) -> EndpointState:
        """The engine of a response. Raises Refusal (404) if it is unknown or another client's: not told apart."""
        found = self._bound.get(response_id)
        if found is None or found[0] != client or found[1].removed:
            raise Refusal(Reason.UNKNOWN_PATH, f"There is no stored response {response_id[:80]!r} for this key.")
        return found[1]
