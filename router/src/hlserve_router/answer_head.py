"""The head of an engine's answer: what it says to the router, and what of it goes to the client. Pure.

Header names are in lower case.
"""

from email.utils import parsedate_to_datetime
from typing import Final

from hlserve_api import headers as names
from hlserve_router.exchange import Exchange
from hlserve_router.plans import served_lines

Headers = list[tuple[bytes, bytes]]
STREAM: Final = (b"content-type", b"text/event-stream; charset=utf-8")
_PASSED: Final = frozenset(name.encode() for name in names.PASSED_TO_CLIENT)
_PASSED_PREFIXES: Final = tuple(prefix.encode() for prefix in names.PASSED_TO_CLIENT_PREFIXES)
_REQUEST_ID: Final = names.REQUEST_ID.encode()
_REQUEST_ID_ANTHROPIC: Final = names.REQUEST_ID_ANTHROPIC.encode()
_REQUEST_ID_LINE: Final = _REQUEST_ID + b": "
_REQUEST_ID_ANTHROPIC_LINE: Final = b"\r\n" + _REQUEST_ID_ANTHROPIC + b": "
_NO_BUFFER: Final = ((b"x-accel-buffering", b"no"), (b"cache-control", b"no-cache"))
_NOT_OF_STREAMS: Final = frozenset((b"content-length", b"x-accel-buffering", b"cache-control"))


def kind_of(status: int, headers: Headers) -> tuple[bool, bool]:
    """Whether it is a stream of events that is no error, and whether its body is compressed."""
    stream = compressed = False
    for name, value in headers:
        if name == b"content-type":
            stream = status < 400 and value[:17].lower() == b"text/event-stream"
        elif name == b"content-encoding":
            compressed = value.lower() != b"identity"
    return stream, compressed


def retry_after(headers: Headers, wall_seconds: float) -> float | None:
    """Seconds of `Retry-After` (a number or a date); None if there is none that can be read."""
    for name, value in headers:
        if name == b"retry-after-ms" and value.isdigit():
            return float(value) / 1000
    for name, value in headers:
        if name == b"retry-after":
            if value.isdigit():
                return float(value)
            try:
                return max(0.0, parsedate_to_datetime(value.decode("latin-1")).timestamp() - wall_seconds)
            except (ValueError, TypeError, OverflowError):
                return None
    return None


def for_client(headers: Headers, exchange: Exchange) -> Headers:
    """An engine's headers as the client gets them: those of the allow-list.

    A header that repeats the engine's own key stays behind, whatever its name.
    """
    passed = [header for header in headers if header[0] in _PASSED or header[0].startswith(_PASSED_PREFIXES)]
    secret = exchange.endpoint.link.secret if exchange.endpoint is not None else b""
    if secret:
        passed = [header for header in passed if secret not in header[1]]
    return passed


def without_secret(body: bytes, exchange: Exchange) -> bytes:
    """An engine's error body as the client gets it: of the same length, with the engine's own key struck out."""
    secret = exchange.endpoint.link.secret if exchange.endpoint is not None else b""
    return body.replace(secret, b"*" * len(secret)) if secret else body


def identity(exchange: Exchange) -> Headers:
    """What every answer says of its request."""
    request_id = exchange.head.request_id.encode()
    headers = [(_REQUEST_ID, request_id), (_REQUEST_ID_ANTHROPIC, request_id)]
    if exchange.class_route is not None:
        headers.append((names.CLASS.encode(), exchange.class_route.name.encode()))
    if exchange.pool is not None:
        headers.append((names.POOL.encode(), exchange.pool.route.name.encode()))
    return headers


def identity_lines(exchange: Exchange) -> bytes:
    """`identity` as lines of a head."""
    request_id = exchange.head.request_id.encode()
    pool = exchange.pool_plan
    served = served_lines(exchange.class_name, exchange.pool_name) if pool is None else pool.served
    return b"".join([_REQUEST_ID_LINE, request_id, _REQUEST_ID_ANTHROPIC_LINE, request_id, b"\r\n", served])


def unbuffered(headers: Headers) -> Headers:
    """The headers of a stream: it has no length, and no proxy may hold it back."""
    return [*(header for header in headers if header[0] not in _NOT_OF_STREAMS), *_NO_BUFFER]


def with_length(headers: Headers, size_bytes: int) -> Headers:
    """The headers of a body that is complete."""
    length = b"%d" % size_bytes
    for name, value in headers:
        if name == b"content-length" and value == length:
            return headers
    return [*(header for header in headers if header[0] != b"content-length"), (b"content-length", length)]
