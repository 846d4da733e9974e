"""Which web pages of other origins may call the router, and what browsers must be told so that they do. Pure.

Keys travel in headers and never in cookies, so `access-control-allow-credentials` is never said.
"""

import re
from collections.abc import Iterable
from typing import Final

from hlserve_api import headers as names

Headers = list[tuple[bytes, bytes]]
MAX_AGE_SECONDS: Final = 600
_ANY: Final = b"*"
_METHODS: Final = b"GET, HEAD, POST"
_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,4096}")
_EXPOSED: Final = ", ".join(
    (
        names.REQUEST_ID, names.REQUEST_ID_ANTHROPIC, names.CLASS, names.POOL, names.OUTCOME, names.REASON,
        names.RETRY_AFTER, names.SHOULD_RETRY,
        *(name + unit for unit in ("requests", "tokens") for name in (names.RATE_LIMIT, names.RATE_REMAINING, names.RATE_RESET)),
    )
).encode()  # fmt: skip


class Cors:
    """The configured origins. False if there are none: then nothing is said to anybody."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origin.lower().encode() for origin in origins)

    def __bool__(self) -> bool:
        return bool(self._origins)

    def origin(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """The request's origin, if it is a configured one. Header names in lower case."""
        found = next((value for name, value in headers if name == b"origin"), None)
        if found is None or not (found.lower() in self._origins or _ANY in self._origins):
            return None
        return found

    def headers(self, origin: bytes) -> Headers:
        """What any answer says to a page of `origin`, errors included: else the page cannot read them."""
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"origin"),
        ]

    def preflight(self, method: str, headers: Headers) -> Headers | None:
        """What more the 204 says that answers a preflight of a configured origin; None for any other request.
        `headers` says the rest.

        A browser sends no key with it, so none is asked for; what it allows is asked again with the request itself.
        """
        if method != "OPTIONS":
            return None
        sent = dict(headers)
        origin = self.origin(headers)
        if origin is None or b"access-control-request-method" not in sent:
            return None
        answer = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-max-age", b"%d" % MAX_AGE_SECONDS),
        ]
        wanted = sent.get(b"access-control-request-headers", b"")
        if _NAMES.fullmatch(wanted):
            answer.append((b"access-control-allow-headers", wanted))
        return answer
