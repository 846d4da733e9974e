"""HTTP over ASGI, with as little per event as ASGI allows: bodies in, JSON out, event streams out."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from hlserve_sim.errors import ApiError

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
TRANSPORT_EXTENSION: Final = "hlserve.transport"
"""Scope key under which the server puts the client's transport, so that a fault can reset the connection."""

_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = (b"content-type", b"text/event-stream; charset=utf-8")


class ClientGoneError(Exception):
    """The client closed the connection before its body was complete."""


async def read_body(receive: Receive) -> bytes:
    """The whole body. Raises ClientGoneError, or ApiError (413) above 64 MiB."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise ApiError("The body is larger than 64 MiB.", HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Bad Request")
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def client_gone(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def header(scope: Scope, name: bytes) -> str | None:
    """One request header, or None."""
    pairs: list[tuple[bytes, bytes]] = scope["headers"]
    for key, value in pairs:
        if key == name:
            return value.decode("latin-1")
    return None


async def send_bytes(send: Send, status: int, body: bytes, content_type: bytes, headers: Mapping[str, str]) -> None:
    """A whole answer."""
    pairs = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    pairs += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_json(send: Send, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
    """A whole answer as JSON."""
    await send_bytes(send, status, msgspec.json.encode(value), _JSON[1], headers or {})


async def open_stream(send: Send, headers: Mapping[str, str] | None = None) -> None:
    """Status and headers of an event stream."""
    pairs = [_EVENTS, *((name.encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items())]
    await send({"type": "http.response.start", "status": 200, "headers": pairs})


async def stream_bytes(send: Send, body: bytes) -> None:
    """A part of an event stream."""
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def close_stream(send: Send) -> None:
    """The end of an event stream."""
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def sse(value: object) -> bytes:
    """One event without a name."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def named_sse(name: str, value: object) -> bytes:
    """One event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"


DONE: Final = b"data: [DONE]\n\n"
