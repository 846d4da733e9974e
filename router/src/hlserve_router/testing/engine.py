"""A scripted engine on a real TCP socket: plays exact bytes, breaks on command, and remembers what it was sent.

It speaks just enough HTTP/1.1 by hand, so that it can also speak it wrongly.
"""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

Play = Callable[["Session"], Awaitable[None]]
"""What the engine does with one request."""

EVENT_STREAM: Final = "text/event-stream"


@dataclass(slots=True)
class Received:
    """One request as the engine got it."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        """The first header of that name."""
        return next((value for key, value in self.headers if key == name), None)


@dataclass(slots=True, eq=False)
class Session:
    """One request in play, for the script."""

    engine: "ScriptedEngine"
    request: Received
    writer: asyncio.StreamWriter
    gone: asyncio.Event
    """Set when the router closed this connection."""
    keep_alive: bool = True
    _chunked: bool = False

    async def head(self, status: int = 200, content_type: str = EVENT_STREAM, headers: Sequence[str] = ()) -> None:
        """Writes a head with chunked framing."""
        self._chunked = True
        lines = [f"HTTP/1.1 {status} X", f"content-type: {content_type}", "transfer-encoding: chunked", *headers]
        await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def write(self, data: bytes) -> None:
        """Writes one chunk."""
        if data:
            await self.raw(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    async def end(self) -> None:
        """Ends the message."""
        if self._chunked:
            await self.raw(b"0\r\n\r\n")

    async def raw(self, data: bytes) -> None:
        """Writes bytes as they are, as one segment."""
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, body: bytes, status: int = 200, headers: Sequence[str] = ()) -> None:
        """A complete answer with Content-Length."""
        lines = [f"HTTP/1.1 {status} X", "content-type: application/json", f"content-length: {len(body)}", *headers]
        await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def reset(self) -> None:
        """Drops the connection with a TCP reset."""
        self.keep_alive = False
        linger_none = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_none)
        self.writer.transport.abort()

    def close(self) -> None:
        """Closes the connection cleanly, whatever was promised."""
        self.keep_alive = False
        self.writer.close()

    async def until(self, event: asyncio.Event) -> None:
        """Waits for a test's event, or for the router to go away."""
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self.gone.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


@dataclass(slots=True, eq=False)
class ScriptedEngine:
    """The server. `play` decides what each generating request gets; health, metrics and aborts are built in."""

    play: Play
    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None
    probes: list[Received] = field(default_factory=list)
    """Requests for health and metrics."""
    requests: list[Received] = field(default_factory=list)
    aborts: list[Any] = field(default_factory=list)
    abort_requests: list[Received] = field(default_factory=list)
    connections: int = 0
    carriers: int = 0
    """Connections that ever brought a generating request: probes have theirs."""
    open_sessions: int = 0
    gauges: dict[str, float] = field(default_factory=dict)
    health_status: int = 200
    mute_aborts: bool = False
    """True: takes aborts and answers none."""
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _carrying: set[asyncio.StreamWriter] = field(default_factory=set)
    """Open connections that are counted in `carriers`: one that has ended must not be kept."""
    port: int = 0
    _kept: socket.socket | None = None
    """Holds the port while nobody listens on it, so that no other process of this machine gets it."""

    @property
    def url(self) -> str:
        """Base URL."""
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://[{self.host}]:{self.port}" if ":" in self.host else f"{scheme}://{self.host}:{self.port}"

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        return len(self._writers)

    async def start(self) -> None:
        """Listens on a free port, or again on its former one."""
        listener = self._kept if self._kept is not None else self._bound()
        self._kept = None
        self.port = listener.getsockname()[1]
        self._server = await asyncio.start_server(self._accept, sock=listener, ssl=self.tls)

    async def stop(self) -> None:
        """As kill -9: the port closes and every connection is reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._kept = self._bound()
        for writer in tuple(self._writers):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def end(self) -> None:
        """Stops for good."""
        await self.stop()
        if self._kept is not None:
            self._kept.close()

    def _bound(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((self.host, self.port))
        return bound

    async def wait_for(self, check: Callable[[], bool], timeout_seconds: float = 5.0) -> None:
        """Waits until `check` holds; it is looked at after every request, abort and end of a session."""
        async with asyncio.timeout(timeout_seconds), self.arrived:
            await self.arrived.wait_for(check)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a narrowing for the type checker
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while (request := await _read_request(reader)) is not None:
                    if not await self._serve(request, reader, writer):
                        break
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            self._carrying.discard(writer)
            writer.close()

    async def _serve(self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        session = Session(self, request, writer, asyncio.Event())
        if request.path in ("/health", "/metrics"):
            self.probes = [*self.probes[-9:], request]
        if request.path == "/health":
            await session.reply(b"", self.health_status)
            return True
        if request.path == "/metrics":
            await session.reply("".join(f"sglang:{name} {value}\n" for name, value in self.gauges.items()).encode())
            return True
        if request.path == "/abort_request":
            self.aborts.append(request.json)
            self.abort_requests.append(request)
            await self._notify()
            if self.mute_aborts:
                await reader.read(1)
                return False
            await session.reply(b"{}")
            return True
        self.requests.append(request)
        if writer not in self._carrying:
            self._carrying.add(writer)
            self.carriers += 1
        self.open_sessions += 1
        await self._notify()
        watch = asyncio.create_task(_watch_close(reader, session))
        play = asyncio.ensure_future(self.play(session))
        try:
            await play
        except OSError:
            session.keep_alive = False
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            self.open_sessions -= 1
            await self._notify()
        return session.keep_alive and not session.gone.is_set()

    async def _notify(self) -> None:
        async with self.arrived:
            self.arrived.notify_all()


async def _watch_close(reader: asyncio.StreamReader, session: Session) -> None:
    """Sees the router's close while the script plays. No request is pipelined, so any read is the end."""
    while not reader.at_eof():
        try:
            # at_eof only turns true by reading; nothing is consumed as nothing is sent
            if not await reader.read(1):
                break
        except OSError:
            break
    session.gone.set()


async def _read_request(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, OSError):
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, _ = first.split(" ", 2)
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    length = int(next((value for name, value in headers if name == "content-length"), "0"))
    return Received(method, path, headers, await reader.readexactly(length) if length else b"")


@asynccontextmanager
async def scripted_engine(
    play: Play, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedEngine]:
    """A running scripted engine."""
    engine = ScriptedEngine(play, host, tls)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.end()
