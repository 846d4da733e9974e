"""Stored responses of `/v1/responses`, bounded: the oldest go first."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

MAX_RESPONSES = 10_000
TERMINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})


class ResponseStore:
    """Response objects by id, and the items behind them."""

    def __init__(self) -> None:
        self._responses: OrderedDict[str, dict[str, object]] = OrderedDict()
        self.histories: dict[str, Sequence[object]] = {}

    def put(self, response: Mapping[str, object], history: Sequence[object]) -> None:
        """Keep a response, unless it is there and was cancelled."""
        response_id = str(response["id"])
        known = self._responses.get(response_id)
        if known is not None and known["status"] == "cancelled":
            return
        self._responses[response_id] = dict(response)
        self.histories[response_id] = history
        if len(self._responses) > MAX_RESPONSES:
            oldest, _ = self._responses.popitem(last=False)
            self.histories.pop(oldest, None)

    def get(self, response_id: str) -> dict[str, object] | None:
        """The response as it stands."""
        return self._responses.get(response_id)

    def cancel(self, response_id: str) -> dict[str, object] | None:
        """Mark a response as cancelled, unless it has ended. None: not here."""
        response = self._responses.get(response_id)
        if response is not None and response["status"] not in TERMINAL:
            response["status"] = "cancelled"
        return response
