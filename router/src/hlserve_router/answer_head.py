"""The head of an engine's answer: what it says to the router, and what of it goes to the client. Pure.

Header names are in lower case.
"""

from email.utils import parsedate_to_datetime
from typing import Final

from hlserve_api import headers as names
from hlserve_router.exchange import Exchange

Headers = list[tuple[bytes, bytes]]
STREAM: Final = (b"content-type", b"text/event-stream; charset=utf-8")
_OURS: Final = frozenset(
    (
        names.REQUEST_ID.encode(), names.REQUEST_ID_ANTHROPIC.encode(), names.CLASS.encode(), names.POOL.encode(),
        names.OUTCOME.encode(), names.REASON.encode(), names.SHOULD_RETRY.encode(),
    )
)  # fmt: skip
_NO_BUFFER: Final = ((b"x-accel-buffering", b"no"), (b"cache-control", b"no-cache"))
_NOT_OF_STREAMS: Final = frozenset((b"content-length", b"x-accel-buffering", b"cache-control"))


def is_event_stream(status: int, headers: Headers) -> bool:
    """True for a stream of events that is no error."""
    kind = next((value for name, value in headers if name == b"content-type"), b"")
    return status < 400 and kind.lower().startswith(b"text/event-stream")


def is_compressed(headers: Headers) -> bool:
    """True if the body is compressed: nothing can be put between its events."""
    return any(name == b"content-encoding" and value.lower() != b"identity" for name, value in headers)


def retry_after(headers: Headers, wall_seconds: float) -> float | None:
    """Seconds of `Retry-After` (a number or a date); None if there is none that can be read."""
    for name, value in headers:
        if name == b"retry-after-ms" and value.isdigit():
            return int(value) / 1000
    for name, value in headers:
        if name == b"retry-after":
            text = value.decode("latin-1").strip()
            if text.isdigit():
                return float(text)
            try:
                return max(0.0, parsedate_to_datetime(text).timestamp() - wall_seconds)
            except (ValueError, TypeError):
                return None
    return None


def for_client(headers: Headers, exchange: Exchange) -> Headers:
    """An engine's headers as the client gets them: only the router says who served the request, and how."""
    return [*(header for header in headers if header[0] not in _OURS), *identity(exchange)]


def identity(exchange: Exchange) -> Headers:
    """What every answer says of its request."""
    request_id = exchange.head.request_id.encode()
    headers = [(names.REQUEST_ID.encode(), request_id), (names.REQUEST_ID_ANTHROPIC.encode(), request_id)]
    if exchange.class_route is not None:
        headers.append((names.CLASS.encode(), exchange.class_route.name.encode()))
    if exchange.pool is not None:
        headers.append((names.POOL.encode(), exchange.pool.route.name.encode()))
    return headers


def unbuffered(headers: Headers) -> Headers:
    """The headers of a stream: it has no length, and no proxy may hold it back."""
    return [*(header for header in headers if header[0] not in _NOT_OF_STREAMS), *_NO_BUFFER]


def with_length(headers: Headers, size_bytes: int) -> Headers:
    """The headers of a body that is complete."""
    return [
        *(header for header in headers if header[0] != b"content-length"),
        (b"content-length", b"%d" % size_bytes),
    ]
