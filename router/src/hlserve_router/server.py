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
from typing import Literal, cast

import uvicorn
from fastapi import FastAPI

from hlserve_router import build
from hlserve_router.accepting import Acceptor
from hlserve_router.admin import admin_app
from hlserve_router.app import Router, public_app
from hlserve_router.errors import StartError
from hlserve_router.ledger import Ledger, listen
from hlserve_router.logs import on_loop_error
from hlserve_router.portable import portable_protocol

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
