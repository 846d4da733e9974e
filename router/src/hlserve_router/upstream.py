"""The engine side of the data plane: HTTP/1.1 on asyncio protocols, for any face.

Callers push one request and get pushed what comes back (`Receiver`); nothing is awaited and nothing is buffered here.
Connections are kept alive per engine and reused last in, first out.
"""

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import urlsplit

import httptools

from hlserve_router.receiver import Receiver
from hlserve_router.state import EngineRequest, Failure

JOIN_BYTES: Final = 16 * 1024
"""Smaller requests go out as one segment; larger bodies are not copied."""
IDLE_SECONDS: Final = 4.0
"""Idle connections are dropped before the engine's own keep-alive of 5 s ends, so that reuse does not race with it."""
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
        b"upgrade", b"date", b"server",
    }
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Link:
    """Where one engine listens, and its idle connections."""

    host: str
    port: int
    prefix: bytes
    authority: bytes
    tls: ssl.SSLContext | None = None
    idle: list["UpstreamConnection"] = field(default_factory=list)
    opened: int = 0
    """Connections ever opened; reuse keeps it small."""

    def drop_idle(self, before: float) -> None:
        """Closes connections that became idle earlier than `before` (loop time)."""
        while self.idle and self.idle[0].idle_since < before:
            self.idle.pop(0).close()


def link_to(url: str) -> Link:
    """The link for a base URL like http://10.0.0.7:30000. Raises ValueError for anything but http and https."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not an http:// or https:// address")
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if tls else 80)
    prefix = parts.path.rstrip("/").encode()
    authority = parts.netloc.rpartition("@")[2].encode()
    return Link(parts.hostname, port, prefix, authority, tls)


class Call:
    """One request on its way. Survives a reused connection that died before it answered: it is sent once more."""

    __slots__ = ("_connecting", "_connection", "_paused", "_receiver", "client", "link", "request")

    def __init__(self, client: "UpstreamClient", link: Link, request: EngineRequest, receiver: Receiver) -> None:
        self.client = client
        self.link = link
        self.request = request
        self._receiver: Receiver | None = receiver
        self._connection: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._paused = False

    def pause(self) -> None:
        """Stops reading from the engine (the client is slow)."""
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Reads on."""
        self._paused = False
        if self._connection is not None:
            self._connection.resume()

    def abort(self) -> None:
        """Ends the call now; nothing more is received. Closing the socket is what frees the engine's slot."""
        self._receiver = None
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def start(self) -> None:
        """Writes the request on an idle connection, or opens one."""
        idle = self.link.idle
        while idle:
            connection = idle.pop()
            if connection.usable:
                self._attach(connection, reused=True)
                return
        self._open()

    def _open(self) -> None:
        self._connecting = self.client.spawn(self._connect())

    async def _connect(self) -> None:
        link = self.link
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.client.connect_timeout_seconds):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(link), link.host, link.port, ssl=link.tls
                )
        except (OSError, TimeoutError) as error:
            self._connecting = None
            self.failed(Failure.CONNECT, str(error) or type(error).__name__)
            return
        self._connecting = None
        link.opened += 1
        if self._receiver is None:
            connection.close()
            return
        self._attach(connection, reused=False)

    def _attach(self, connection: "UpstreamConnection", *, reused: bool) -> None:
        self._connection = connection
        connection.send(self, self.request, reused=reused)
        if self._paused:
            connection.pause()

    # Called by the connection.

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The answer's head arrived."""
        if self._receiver is not None:
            self._receiver.upstream_head(status, headers)

    def data(self, data: bytes) -> None:
        """Body bytes arrived."""
        if self._receiver is not None:
            self._receiver.upstream_data(data)

    def ended(self, connection: "UpstreamConnection", *, reusable: bool) -> None:
        """The answer is complete; the connection goes back before the receiver hears of it."""
        self._connection = None
        if reusable:
            connection.resume()
            self.client.keep(self.link, connection)
        else:
            connection.close()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.upstream_end()

    def failed(self, failure: Failure, detail: str, *, retry_fresh: bool = False) -> None:
        """The connection broke. `retry_fresh`: it was a reused one and no byte of an answer had come."""
        self._connection = None
        if retry_fresh and self._receiver is not None:
            self._open()
            return
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.upstream_failed(failure, detail)


class UpstreamConnection(asyncio.Protocol):
    """One connection to an engine."""

    __slots__ = (
        "_answered", "_call", "_chunked", "_done", "_headers", "_keep", "_length", "_lost", "_parser", "_payload", "_reused",
        "_status", "_transport", "idle_since", "link",
    )  # fmt: skip

    def __init__(self, link: Link) -> None:
        self.link = link
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._call: Call | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._lost = False
        self._reset()

    def _reset(self) -> None:
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._payload: list[bytes] = []
        self._length: bytes | None = None
        self._chunked = False
        self._answered = self._done = self._keep = False

    @property
    def usable(self) -> bool:
        """True if a request may be written now."""
        return not self._lost and self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's, so this cannot be an isinstance check.
        self._transport = cast("asyncio.Transport", transport)

    def send(self, call: Call, request: EngineRequest, *, reused: bool) -> None:
        """Writes `request`; its answer goes to `call`."""
        assert self._transport is not None  # noqa: S101 - a narrowing for the type checker
        self._reset()
        self._call, self._reused = call, reused
        self._parser = httptools.HttpResponseParser(self)
        lines = [b"%b %b%b HTTP/1.1\r\nhost: %b\r\n" % (
            request.method.encode(), self.link.prefix, request.path.encode(), self.link.authority,
        )]  # fmt: skip
        lines.extend(b"%b: %b\r\n" % header for header in request.headers)
        size = request.body_bytes
        if size or request.method == "POST":
            lines.append(b"content-length: %d\r\n" % size)
        lines.append(b"\r\n")
        if size <= JOIN_BYTES:
            self._transport.write(b"".join((*lines, *request.body)))
        else:
            self._transport.write(b"".join(lines))
            for piece in request.body:
                self._transport.write(piece)

    def pause(self) -> None:
        """Stops reading."""
        if self.usable and self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Reads on."""
        if self.usable and self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        """Drops the connection at once, unsent bytes included."""
        self._call = None
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        call = self._call
        if call is None or self._parser is None:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(Failure.PROTOCOL, f"{type(error).__name__}: {error}")
            return
        if self._call is not call:  # a callback ended the call
            return
        payload = self._payload
        if payload:
            self._payload = []
            call.data(payload[0] if len(payload) == 1 else b"".join(payload))
        if self._done and self._call is call:
            self._finish(call)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        call = self._call
        if call is None:
            if self in self.link.idle:
                self.link.idle.remove(self)
            return
        if self._answered and self._length is None and not self._chunked and exc is None:
            self._keep = False
            self._finish(call)  # a body that ends with its connection
            return
        failure = Failure.TRUNCATED if exc is None and self._answered else Failure.RESET
        self._fail(failure, str(exc) if exc else "connection closed", retry_fresh=self._reused and not self._answered)

    def _fail(self, failure: Failure, detail: str, *, retry_fresh: bool = False) -> None:
        call, self._call = self._call, None
        if self._transport is not None:
            self._transport.abort()
        if call is not None:
            call.failed(failure, detail, retry_fresh=retry_fresh)

    def _finish(self, call: Call) -> None:
        self._call = self._parser = None
        call.ended(self, reusable=self._keep and not self._lost)

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header of the answer."""
        self._answered = True
        name = name.lower()
        if name == b"content-length":
            if self._length is not None and self._length != value:
                raise ConflictingFramingError
            self._length = value
            self._headers.append((name, value))
        elif name == b"transfer-encoding":
            self._chunked = True
        elif name not in _HOP_BY_HOP or name == b"connection":
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The answer's head is complete."""
        assert self._parser is not None and self._call is not None  # noqa: S101, PT018 - a narrowing for the type checker
        self._answered = True
        self._status = self._parser.get_status_code()
        if self._chunked and self._length is not None:
            raise ConflictingFramingError
        if self._status >= 200:
            self._call.head(self._status, _end_to_end(self._headers))

    def on_body(self, data: bytes) -> None:
        """Body bytes."""
        self._payload.append(data)

    def on_message_complete(self) -> None:
        """The answer is complete, or was an interim one."""
        if self._status < 200:
            self._reset()
            return
        self._done = True
        # Only here does the parser know: asked later it says no, and every request would open a connection.
        self._keep = self._parser is not None and self._parser.should_keep_alive()


class ConflictingFramingError(Exception):
    """Two framing headers that disagree: the end of the body is not defined."""


def _end_to_end(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without the headers that `Connection` names."""
    named = {token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")}
    if not named:
        return headers
    return [(name, value) for name, value in headers if name != b"connection" and name not in named]


class UpstreamClient:
    """Sends requests to engines. One per event loop."""

    def __init__(self, connect_timeout_seconds: float = 2.0) -> None:
        self.connect_timeout_seconds = connect_timeout_seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._links: set[Link] = set()

    def send(self, link: Link, request: EngineRequest, receiver: Receiver) -> Call:
        """Starts one request. Failures come through the receiver, never before this returns."""
        call = Call(self, link, request, receiver)
        call.start()
        return call

    def spawn(self, work: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        """Runs `work` and holds on to it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def keep(self, link: Link, connection: UpstreamConnection) -> None:
        """Takes back a connection whose answer is complete."""
        connection.idle_since = asyncio.get_running_loop().time()
        link.idle.append(connection)
        self._links.add(link)

    def sweep(self) -> None:
        """Closes connections that were idle too long."""
        before = asyncio.get_running_loop().time() - IDLE_SECONDS
        for link in tuple(self._links):
            link.drop_idle(before)
            if not link.idle:
                self._links.discard(link)

    async def close(self) -> None:
        """Closes idle connections and ends connects in progress."""
        for link in tuple(self._links):
            link.drop_idle(float("inf"))
        self._links.clear()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
