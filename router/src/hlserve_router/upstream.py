"""The engine side of the data plane: HTTP/1.1 on asyncio protocols, for any face.

Callers push one request and get pushed what comes back (`Receiver`); nothing is awaited and nothing is buffered here.
Connections are kept alive per engine and reused last in, first out.
"""

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import Final, cast
from urllib.parse import urlsplit

import httptools

from hlserve_router.receiver import Discard, Receiver
from hlserve_router.state import EMPTY_REQUEST, EngineRequest, Failure

JOIN_BYTES: Final = 16 * 1024
"""Smaller requests go out as one segment; larger bodies are not copied."""
IDLE_SECONDS: Final = 4.0
"""Idle connections are dropped before the engine's own keep-alive of 5 s ends, so that reuse does not race with it."""
TELL_SECONDS: Final = 5.0
"""How long an engine may take for an answer that nobody waits for."""
MAX_HEAD_BYTES: Final = 256 * 1024
"""The most that an engine may send without a byte of a body: a head, or what follows a body's last chunk."""
MAX_OPENINGS: Final = 64
"""Paths whose first lines are remembered per engine: those of the API, not those that hold an id."""
_FRAMING: Final = frozenset(
    {
        b"content-length", b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"te", b"trailer",
        b"transfer-encoding", b"upgrade", b"date", b"server",
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
    server_name: str | None = None
    """Name that the certificate must carry; None: the host."""
    authorization: bytes = b""
    """Value of the header that the engine asks for; empty: none."""
    idle: list["UpstreamConnection"] = field(default_factory=list)
    opened: int = 0
    """Connections ever opened; reuse keeps it small."""
    version: int = 0
    """Grows with every change of whom it trusts and what it shows: a connection of a former version is not used again."""
    _openings: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)

    def change(self, tls: ssl.SSLContext | None, server_name: str | None, authorization: bytes) -> None:
        """Sets whom it trusts and what it shows. Connections in use finish their answer; nothing begins on one of them."""
        if (self.tls, self.server_name, self.authorization) != (tls, server_name, authorization):
            self.tls, self.server_name, self.authorization = tls, server_name, authorization
            self.version += 1
            self.drop_idle(float("inf"))

    @property
    def secret(self) -> bytes:
        """What of `authorization` nobody else may see."""
        return self.authorization.removeprefix(b"Bearer ")

    def opening(self, method: str, path: str) -> bytes:
        """The first lines of a request: what is the same for all of this method and path."""
        known = self._openings.get(path) if method == "POST" else None
        if known is not None and known[0] is self.authorization:
            return known[1]
        lines = b"%b %b%b HTTP/1.1\r\nhost: %b\r\n" % (method.encode(), self.prefix, path.encode(), self.authority)
        if self.authorization:
            lines += b"authorization: %b\r\n" % self.authorization
        if method == "POST" and len(self._openings) < MAX_OPENINGS:
            self._openings[path] = (self.authorization, lines)
        return lines

    def drop_idle(self, before: float) -> None:
        """Closes connections that became idle earlier than `before` (loop time)."""
        while self.idle and self.idle[0].idle_since < before:
            self.idle.pop(0).close()


def link_to(url: str) -> Link:
    """The link for a base URL like http://10.0.0.7:30000. Raises ValueError for anything but http and https."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not an http:// or https:// address")
    tls = system_tls() if parts.scheme == "https" else None
    port = parts.port or (443 if tls else 80)
    prefix = parts.path.rstrip("/").encode()
    authority = parts.netloc.rpartition("@")[2].encode()
    return Link(parts.hostname, port, prefix, authority, tls)


@cache
def system_tls() -> ssl.SSLContext:
    """Trusts whom the system trusts. One for all: reading the certificates takes longer than a request."""
    return ssl.create_default_context()


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
        """Opens a connection, which then gets the request."""
        self._connecting = self.client.spawn(self._connect())

    def use(self, connection: "UpstreamConnection") -> None:
        """Writes the request on a connection that was idle."""
        self._connection = connection
        if self._receiver is not None:
            connection.send(self, self._receiver, self.request, reused=True)

    async def _connect(self) -> None:
        link = self.link
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.client.connect_timeout_seconds):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(link),
                    link.host,
                    link.port,
                    ssl=link.tls,
                    server_hostname=link.server_name if link.tls is not None else None,
                )
        except (OSError, ValueError) as error:  # the second: a name that cannot be one of a host or of a certificate
            self._connecting = None
            self.failed(Failure.CONNECT, str(error) or type(error).__name__)
            return
        self._connecting = None
        link.opened += 1
        if self._receiver is None:
            connection.close()
            return
        self._connection = connection
        connection.send(self, self._receiver, self.request, reused=False)
        if self._paused:
            connection.pause()

    def forget_request(self) -> None:
        """Lets the request's body go: it will not be sent again."""
        self.request = EMPTY_REQUEST

    # Called by the connection.

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The answer's head arrived."""
        receiver = self._receiver
        if receiver is not None:
            try:
                receiver.upstream_head(status, headers)
            except Exception as error:  # its fault must not take the connection's event loop callback along
                receiver.fault(error)

    def ended(self, connection: "UpstreamConnection", *, reusable: bool) -> None:
        """The answer is complete; the connection goes back before the receiver hears of it."""
        self._connection = None
        if reusable:
            if self._paused:
                connection.resume()
            self.client.keep(self.link, connection)
        else:
            connection.close()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            try:
                receiver.upstream_end()
            except Exception as error:  # as in `head`
                receiver.fault(error)

    def failed(self, failure: Failure, detail: str, *, retry_fresh: bool = False) -> None:
        """The connection broke. `retry_fresh`: it was a reused one and no byte of an answer had come."""
        self._connection = None
        if retry_fresh and self._receiver is not None:
            self.start()
            return
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            try:
                receiver.upstream_failed(failure, detail)
            except Exception as error:  # as in `head`
                receiver.fault(error)


class UpstreamConnection(asyncio.Protocol):
    """One connection to an engine."""

    __slots__ = (
        "_answered", "_bare_bytes", "_call", "_chunked", "_complete", "_head_complete", "_headers", "_keep", "_length", "_lost",
        "_named", "_parser", "_payload", "_receiver", "_reused", "_transport", "_version", "idle_since", "link", "on_body",
    )  # fmt: skip

    def __init__(self, link: Link) -> None:
        self.link = link
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._call: Call | None = None
        self._receiver: Receiver | None = None
        self._payload: list[bytes] = []
        # The parser calls this for each piece of a body; a method of ours would be one more call for each chunk.
        self.on_body = self._payload.append
        self._lost = self._reused = False
        self._bare_bytes = 0
        """Read since the last byte of a body."""
        self._version = link.version
        self._headers: list[tuple[bytes, bytes]] = []
        self._length: bytes | None = None
        self._answered = self._head_complete = self._complete = self._chunked = self._named = self._keep = False
        self._parser = httptools.HttpResponseParser(self)

    def usable(self) -> bool:
        """True if a request may be written now."""
        return not self._lost and self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's, so this cannot be an isinstance check.
        self._transport = cast("asyncio.Transport", transport)

    def send(self, call: Call, receiver: Receiver, request: EngineRequest, *, reused: bool) -> None:
        """Writes `request`; its answer goes to `receiver`, its end to `call`."""
        transport = self._transport
        if transport is None:
            return
        self._headers = []
        self._length = None
        self._bare_bytes = 0
        self._answered = self._head_complete = self._complete = self._chunked = self._named = self._keep = False
        self._call, self._receiver, self._reused = call, receiver, reused
        body = request.body
        size = len(body[0]) if len(body) == 1 else sum(map(len, body))
        lines: list[bytes | memoryview] = [self.link.opening(request.method, request.path)]
        for name, value in request.headers:
            # Each by itself: compiled, that is a quarter of what a tuple of them costs.
            lines.append(name)
            lines.append(b": ")
            lines.append(value)
            lines.append(b"\r\n")
        lines.append(b"content-length: %d\r\n\r\n" % size if size or request.method == "POST" else b"\r\n")
        if size <= JOIN_BYTES:
            lines += body
            transport.write(b"".join(lines))
        else:
            transport.writelines((b"".join(lines), *body))

    def pause(self) -> None:
        """Stops reading."""
        if self.usable() and self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Reads on."""
        if self.usable() and self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        """Drops the connection at once, unsent bytes included."""
        self._call = self._receiver = None
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        call, receiver = self._call, self._receiver
        if call is None or receiver is None:
            self.close()
            return
        self._answered = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                self._fail(Failure.PROTOCOL, f"{type(error).__name__}: {error}")
                return
            self._keep = False  # what follows a complete answer belongs to nobody
        payload = self._payload
        if payload:
            piece = payload[0] if len(payload) == 1 else b"".join(payload)
            payload.clear()
            self._bare_bytes = 0
            if self._call is call:
                try:
                    receiver.upstream_data(piece)
                except Exception as error:  # its fault must not take the connection's event loop callback along
                    receiver.fault(error)
        elif not self._complete:
            self._bare_bytes += len(data)
            if self._bare_bytes > MAX_HEAD_BYTES:
                self._fail(Failure.PROTOCOL, f"{self._bare_bytes} bytes without one of a body")
                return
        if self._complete and self._call is call:
            self._finish(call)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        call = self._call
        if call is None:
            if self in self.link.idle:
                self.link.idle.remove(self)
            return
        if self._head_complete and self._length is None and not self._chunked and exc is None:
            self._keep = False
            self._finish(call)  # a body that ends with its connection
            return
        failure = Failure.TRUNCATED if exc is None and self._answered else Failure.RESET
        self._fail(failure, str(exc) if exc else "connection closed", retry_fresh=self._reused and not self._answered)

    def _fail(self, failure: Failure, detail: str, *, retry_fresh: bool = False) -> None:
        call, self._call, self._receiver = self._call, None, None
        if self._transport is not None:
            self._transport.abort()
        if call is not None:
            call.failed(failure, detail, retry_fresh=retry_fresh)

    def _finish(self, call: Call) -> None:
        self._call = self._receiver = None
        call.ended(self, reusable=self._keep and self._may_stay())

    def _may_stay(self) -> bool:
        """False if it was made for what the link no longer is, or if its engine has answered a request that it has not read."""
        if self._lost or self._transport is None or self._version != self.link.version:
            return False
        return not self._transport.get_write_buffer_size()

    # httptools

    def on_message_begin(self) -> None:
        """An answer begins. Behind a complete one, even a piece of its head would be the beginning of the next request's."""
        if self._complete:
            raise SurplusAnswerError

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header of the answer. Trailers are dropped."""
        name = name.lower()
        if name in _FRAMING:
            self._framing(name, value)
        elif not self._head_complete:
            self._headers.append((name, value))

    def _framing(self, name: bytes, value: bytes) -> None:
        """Headers of this hop: none goes on but the length, and `connection` until what it names is taken out."""
        if self._head_complete:
            return
        if name == b"content-length":
            if self._length is not None and self._length != value:
                raise ConflictingFramingError
            self._length = value
            self._headers.append((name, value))
        elif name == b"transfer-encoding":
            self._chunked = True
        elif name == b"connection":
            self._named = True
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The answer's head is complete."""
        if self._chunked and self._length is not None:
            raise ConflictingFramingError
        status = self._parser.get_status_code()
        if status > 599:
            raise UnknownStatusError
        if status < 200:
            return
        self._head_complete = True
        if self._call is not None:
            self._call.head(status, _end_to_end(self._headers) if self._named else self._headers)

    def on_message_complete(self) -> None:
        """The answer is complete, or was an interim one."""
        if not self._head_complete:
            self._headers, self._length, self._chunked, self._named = [], None, False, False
            return
        self._complete = True
        # Only here does the parser know: asked later it says no, and every request would open a connection.
        self._keep = self._parser.should_keep_alive()


class ConflictingFramingError(Exception):
    """Two framing headers that disagree: the end of the body is not defined."""


class SurplusAnswerError(Exception):
    """A second answer to one request."""


class UnknownStatusError(Exception):
    """A status that HTTP does not have."""


def _end_to_end(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without the headers that `Connection` names."""
    named = {token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")}
    return [(name, value) for name, value in headers if name != b"connection" and name not in named]


class UpstreamClient:
    """Sends requests to engines. One per event loop."""

    def __init__(self, connect_timeout_seconds: float = 2.0) -> None:
        self.connect_timeout_seconds = connect_timeout_seconds
        self.tell_seconds = TELL_SECONDS
        self._tasks: set[asyncio.Task[None]] = set()
        self._links: set[Link] = set()
        self._told: deque[tuple[float, Call]] = deque()
        """Calls of `tell`, the oldest first, each with when it is given up (loop time)."""
        self._swept_at = 0.0
        """Loop time of the last sweep: near enough to say since when a connection is idle."""

    def tell(self, link: Link, request: EngineRequest) -> None:
        """Sends a request whose answer does not matter, and drops it if there is none within `tell_seconds`.

        Nobody else looks after it: engines that take requests and answer none would keep a connection for each.
        """
        now = asyncio.get_running_loop().time()
        self._told.append((now + self.tell_seconds, self.send(link, request, Discard())))

    def send(self, link: Link, request: EngineRequest, receiver: Receiver) -> Call:
        """Starts one request. Failures come through the receiver, never before this returns."""
        call = Call(self, link, request, receiver)
        idle = link.idle
        while idle:
            connection = idle.pop()
            if connection.usable():
                call.use(connection)
                return call
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
        # Before the first sweep there is no such time, and 0 would be long ago.
        connection.idle_since = self._swept_at or asyncio.get_running_loop().time()
        link.idle.append(connection)
        if link not in self._links:
            self._links.add(link)

    def sweep(self) -> None:
        """Closes connections that were idle too long, and gives up what was told to engines that do not answer."""
        self._swept_at = now = asyncio.get_running_loop().time()
        while self._told and self._told[0][0] <= now:
            self._told.popleft()[1].abort()
        before = now - IDLE_SECONDS
        for link in tuple(self._links):
            link.drop_idle(before)
            if not link.idle:
                self._links.discard(link)

    async def close(self) -> None:
        """Closes idle connections and ends connects in progress."""
        while self._told:
            self._told.popleft()[1].abort()
        for link in tuple(self._links):
            link.drop_idle(float("inf"))
        self._links.clear()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
