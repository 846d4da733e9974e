"""One request of a spliced connection: what was received of it, and its answer as bytes on the client's socket."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from hlserve_router.answer_head import Headers, identity_lines
from hlserve_router.cors import Cors
from hlserve_router.intake import Answer
from hlserve_router.relay import Relay

INVALID: Final = "invalid"
TOO_LARGE: Final = "too large"
MAX_PARTS: Final = 1024
"""Pieces of a body that are held before they become one."""
MANY_PARTS: Final = 64
"""Pieces of one read that are held as one."""
_SIZE_LINES: Final = tuple(b"%x\r\n" % size for size in range(1024))
"""What stands before a frame of so many bytes. Nearly every event is that short, and then two copies cost less than formatting does."""
_BODILESS: Final = frozenset((204, 304))


class Connection(ABC):
    """What a request needs of its client's connection."""

    transport: asyncio.Transport
    send: Callable[[bytes], None]
    """Writes to the client's socket."""
    server_state: ServerState
    cors: Cors | None

    @abstractmethod
    def answered(self, request: "SplicedRequest") -> None:
        """The answer to `request` is complete."""

    @abstractmethod
    def cut(self, *, reset: bool) -> None:
        """Ends the connection in the middle of an answer; with `reset` it cannot be taken for a proper end."""


class SplicedRequest:
    """Holds what the parser found, and is the relay's `Downstream`: every call is one write to the socket.

    A request that is over writes nothing more, whoever still calls.
    """

    __slots__ = (
        "_bare", "_chunked", "_connection", "_write", "answered", "body_bytes", "broken", "complete", "head_complete",
        "headers", "http11", "keep_alive", "method", "own_path", "parts", "relay", "response_id", "submitted", "target",
    )  # fmt: skip

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._write = connection.send
        self.method = ""
        self.target = b""
        self.headers: Headers = []
        self.parts: Sequence[bytes] = ()
        self.body_bytes = 0
        self.relay: Relay | None = None
        self.response_id: str | None = None
        self.own_path: str | None = None
        """Its path, if FastAPI answers it."""
        self.broken: str | None = None
        """Why it cannot be read on: `INVALID` or `TOO_LARGE`."""
        self.http11 = self.keep_alive = True
        self.head_complete = self.complete = self.submitted = self.answered = False
        self._chunked = self._bare = False

    def take(self, parts: list[bytes]) -> None:
        """Holds what one read brought of the body. A body that comes in tiny pieces takes hardly more than its bytes."""
        held = [*self.parts, *parts] if len(parts) <= MANY_PARTS else [*self.parts, b"".join(parts)]
        self.parts = held if len(held) <= MAX_PARTS else (b"".join(held),)

    def body(self) -> bytes:
        """The whole body, which is let go."""
        parts, self.parts = self.parts, ()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def refuse(self, answer: Answer) -> None:
        """Sends an answer that was made without a relay."""
        if not self.answered:
            self.keep_alive = self.keep_alive and not answer.close
            self._whole(answer.status, answer.headers, b"", answer.body)

    # Downstream

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Sends a complete answer."""
        if not self.answered:
            relay = self.relay
            self._whole(status, headers, b"" if relay is None else identity_lines(relay.exchange), body)

    def start(self, status: int, headers: Headers, data: bytes = b"") -> None:
        """Sends the head of a stream, and its first bytes."""
        if self.answered:
            return
        relay = self.relay
        lines = self._head(status, headers, b"" if relay is None else identity_lines(relay.exchange))
        if status not in _BODILESS and all(name != b"content-length" for name, _ in headers):
            if self.http11:
                self._chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
            else:  # such a client's connection is not kept, and its end is the end of the body
                self._bare = True
        lines.append(b"\r\n")
        if data:
            lines.append(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        self._write(b"".join(lines))

    def write(self, data: bytes) -> None:
        """Sends body bytes as one frame."""
        if self.answered or not data:
            return
        size = len(data)
        if not self._chunked:
            self._write(data)
        elif size < len(_SIZE_LINES):
            self._write(_SIZE_LINES[size] + data + b"\r\n")
        else:
            self._write(b"%x\r\n%b\r\n" % (size, data))

    def finish(self, data: bytes = b"") -> None:
        """Sends the last bytes and the proper end."""
        if self.answered:
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        if data:
            self._write(data)
        self.answered = True
        self._connection.answered(self)

    def cut(self) -> None:
        """Ends the connection without a proper end."""
        if self.answered:
            return
        self.answered = True
        self.keep_alive = False
        # Where the end of the connection is the end of the body, only a reset says that something is missing.
        self._connection.cut(reset=self._bare)

    def _whole(self, status: int, headers: Headers, identity: bytes, body: bytes) -> None:
        lines = self._head(status, headers, identity)
        lines.append(b"\r\n")
        if self.method != "HEAD":
            lines.append(body)
        self._write(b"".join(lines))
        self.answered = True
        self._connection.answered(self)

    def _head(self, status: int, headers: Headers, identity: bytes) -> list[bytes]:
        connection = self._connection
        lines = [STATUS_LINE[status]]
        for name, value in connection.server_state.default_headers:
            lines += (name, b": ", value, b"\r\n")
        for name, value in headers:
            # Each by itself: compiled, that is a quarter of what a tuple of them costs.
            lines.append(name)
            lines.append(b": ")
            lines.append(value)
            lines.append(b"\r\n")
        lines.append(identity)
        cors = connection.cors
        if cors is not None and (origin := cors.origin(self.headers)) is not None:
            for name, value in cors.headers(origin):
                lines += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        return lines
