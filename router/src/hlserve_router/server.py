"""Runs the two ports of one process and ends it gracefully."""

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
import ssl
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, cast

import uvicorn
from fastapi import FastAPI
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from hlserve_router import build
from hlserve_router.accepting import Acceptor
from hlserve_router.admin import admin_app
from hlserve_router.app import Router, public_app
from hlserve_router.errors import StartError
from hlserve_router.intake import Intake
from hlserve_router.ledger import Ledger, listen
from hlserve_router.logs import on_loop_error
from hlserve_router.splice import READ_BYTES
from hlserve_router.splice_connection import reset_at_end

_log = logging.getLogger("hlserve_router.server")


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises StartError."""
    listener = _bound(host, port)
    listener.listen(4096)
    listener.setblocking(False)
    return listener


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, as asyncio turns Nagle's delay off only on sockets that say they are TCP: else each reply stalls for 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        todo = {
            errno.EADDRINUSE: "choose another port, or end what uses it",
            errno.EACCES: "choose a port above 1023, or allow this process the lower ones",
        }.get(error.errno or 0, "give --host an address of this machine, without brackets")
        raise StartError(f"Cannot listen on {host}:{port} ({error.strerror}): {todo}.") from error
    return bound


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    """The http:// or https:// address of a listening socket."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class _Server(uvicorn.Server):
    """A server whose end is decided by us, not by its own signal handlers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _SharedServer(_Server):
    """A server whose listening socket other workers take connections from too."""

    def __init__(self, config: uvicorn.Config, ledger: Ledger) -> None:
        super().__init__(config)
        self._ledger = ledger
        self.acceptor: Acceptor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        for listener in sockets or []:
            self.acceptor = acceptor = Acceptor(
                listener, self._ledger, self._protocol, lambda: len(self.server_state.connections), self.config.ssl
            )
            self.servers.append(cast("asyncio.base_events.Server", acceptor))

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


class PortableProtocol(HttpToolsProtocol):
    """uvicorn's HTTP for the portable face. On its own it takes the trailer fields of a body in chunks for headers.

    So a key or a class could come in behind a body, past whatever looks at headers on the way. It has no bound for a head
    that does not end either, takes the body of a request that asks for another protocol for the next request, sends chunks to
    clients of HTTP/1.0, and of several requests that were sent ahead tells only the last one that the client has left.
    """

    intake: ClassVar[Intake]
    _in_head = True
    _head_bytes = 0
    """Read since the head began, or since the last one was complete."""
    _deaf = False
    """True once nothing more is taken from this connection."""
    _answering: RequestResponseCycle | None = None

    def data_received(self, data: bytes) -> None:
        if self._deaf or self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            # Twice, for what stands between names and values; and this much may have come before the head began.
            rules = self.intake.rules
            if self._head_bytes > 2 * rules.max_header_bytes + READ_BYTES or len(self.headers) > rules.max_headers:
                if self.cycle is None or self.cycle.response_complete:
                    self._refuse_head()
                self.transport.close()  # where an answer is on its way, nothing may be written into it

    def _refuse_head(self) -> None:
        made = self.intake.reject(self.intake.head_too_large(), self.url.decode("latin-1"), [])
        lines = [b"%b: %b\r\n" % header for header in (*made.headers, (b"connection", b"close"))]
        self.transport.write(b"".join((STATUS_LINE[made.status], *lines, b"\r\n", made.body)))

    def connection_lost(self, exc: Exception | None) -> None:
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app if cycle.scope["http_version"] != "1.0" else without_chunks(cycle, app))

    def _unsupported_upgrade_warning(self) -> None:
        # Its body is dropped, as far as it has come: where the next request begins is not known.
        self._deaf = True
        self.cycle.keep_alive = False

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()


def without_chunks(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """`app` for a client of HTTP/1.0, which knows no chunks: an answer without a length ends with the connection."""

    async def answering(scope: Any, receive: Any, send: Any) -> None:
        bare = False

        async def sending(message: Any) -> None:
            nonlocal bare
            if message["type"] == "http.response.start":
                bare = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
                if bare:
                    cycle.chunked_encoding = False
            elif bare:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, sending)
        if bare and not cycle.response_complete and not cycle.disconnected:
            reset_at_end(cycle.transport)
            cycle.transport.abort()

    return answering


def portable_protocol(intake: Intake) -> type[PortableProtocol]:
    """`PortableProtocol` with the bounds and refusals of `intake`."""
    return type("BoundPortableProtocol", (PortableProtocol,), {"intake": intake})


class _Config(uvicorn.Config):
    """With a TLS context of our own, whose certificate can be renewed."""

    tls: ssl.SSLContext | None = None

    def load(self) -> None:
        super().load()
        self.ssl = self.tls


def public_config(router: Router) -> uvicorn.Config:
    """How the client port is served: behind the face that the settings name."""
    settings = router.settings
    http = router.splice.protocol if settings.face == "splice" else portable_protocol(router.intake)
    config = _config(public_app(router), settings.drain_seconds, http, settings.keep_alive_seconds)
    config.tls = router.certificate.context if router.certificate is not None else None
    return config


def admin_config(app: FastAPI) -> uvicorn.Config:
    """How an admin port is served."""
    return _config(app, 1)


def _config(
    app: FastAPI,
    drain_seconds: float,
    http: type[asyncio.Protocol] | Literal["httptools"] = "httptools",
    keep_alive_seconds: float = 75,
) -> "_Config":
    return (
        _Config(
            app, loop="none", http=http, lifespan="off", log_config=None, access_log=False, server_header=False,
            date_header=False, timeout_graceful_shutdown=max(1, int(drain_seconds)),
            timeout_keep_alive=max(1, int(keep_alive_seconds)), h11_max_incomplete_event_size=None, ws="none",
            proxy_headers=False,
        )
    )  # fmt: skip


class AdminServer(_Server):
    """The server of an admin port."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(admin_config(app))


def _rung(router: Router, clients: _Server) -> None:
    """Another worker says that something changed: room for those who wait here, or its connections."""
    router.proxy.admission.pump(router.proxy.now())
    if isinstance(clients, _SharedServer) and clients.acceptor is not None:
        clients.acceptor.look()


async def serve(
    router: Router, public: socket.socket, admin: socket.socket, *, announce: bool = True, parent: int | None = None
) -> None:
    """Serves until SIGTERM or SIGINT. Then: readiness fails, the port closes, streams finish; a second signal ends them.

    `parent`: a descriptor that ends with the process that looks after this one, and what that means is as SIGTERM.
    """
    settings = router.settings
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stopped() -> None:
        if stop.is_set():
            router.cancel_all()
        stop.set()

    loop.set_exception_handler(on_loop_error)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped)

    def orphaned(parent: int) -> None:
        loop.remove_reader(parent)
        _log.error("supervisor gone", extra={"fields": {"rule": "this worker finishes what it has and ends"}})
        stop.set()

    if parent is not None:
        loop.add_reader(parent, orphaned, parent)
    config, ledger = public_config(router), router.ledger
    clients = _Server(config) if ledger is None else _SharedServer(config, ledger)
    admins = AdminServer(admin_app(router))
    if ledger is not None:
        listen(ledger, loop.add_reader, lambda: _rung(router, clients))
    _log.info("starting", extra={"fields": {"build": build.describe()}})
    _log.info("limits", extra={"fields": {"workers": settings.workers, **router.limits_rule()}})
    async with router.running():
        tasks = [
            asyncio.create_task(clients.serve(sockets=[public])),
            asyncio.create_task(admins.serve(sockets=[admin])),
        ]
        await asyncio.gather(clients.up.wait(), admins.up.wait())
        gc.collect()
        gc.freeze()  # a full collection of the start-up heap would be a stall of 10 to 20 ms in the tail
        gc.set_threshold(20_000, 20, 100)
        if announce:
            url = url_of(public, tls=router.certificate is not None)
            print(f"hlserve-router listening on {url} admin {url_of(admin)}", flush=True)  # noqa: T201
        await stop.wait()
        router.stopping = True
        await asyncio.sleep(settings.settle_seconds)
        clients.should_exit = True
        await asyncio.wait(tasks[:1], timeout=settings.drain_seconds)
        router.cancel_all()
        admins.should_exit = True
        await asyncio.wait(tasks, timeout=5)
