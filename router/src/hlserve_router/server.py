"""Runs the two ports of one process and ends it gracefully."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from hlserve_router.app import Router, admin_app, public_app
from hlserve_router.errors import StartError

_log = logging.getLogger("hlserve_router.server")


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket. `shared`: other processes listen on the same port, the kernel spreads connections. Raises StartError."""
    listener = reserve(host, port) if shared else _bound(host, port, socket.SO_REUSEADDR)
    listener.listen(4096)
    listener.setblocking(False)
    return listener


def reserve(host: str, port: int) -> socket.socket:
    """A socket that holds a port for processes that share it, and gets no connection itself. Raises StartError."""
    return _bound(host, port, socket.SO_REUSEPORT)


def _bound(host: str, port: int, option: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, as asyncio turns Nagle's delay off only on sockets that say they are TCP: else each reply stalls for 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise StartError(
            f"Cannot listen on {host}:{port} ({error.strerror}): choose another port, or end what uses it."
        ) from error
    return bound


def url_of(listener: socket.socket) -> str:
    """The http:// address of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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


def _config(app: FastAPI, drain_seconds: float) -> uvicorn.Config:
    return (
        uvicorn.Config(
            app, loop="none", http="httptools", lifespan="off", log_config=None, access_log=False, server_header=False,
            date_header=False, timeout_graceful_shutdown=max(1, int(drain_seconds)), timeout_keep_alive=75,
            h11_max_incomplete_event_size=None, ws="none", proxy_headers=False,
        )
    )  # fmt: skip


class AdminServer(_Server):
    """The server of an admin port."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(_config(app, 1))


async def serve(router: Router, public: socket.socket, admin: socket.socket, *, announce: bool = True) -> None:
    """Serves until SIGTERM or SIGINT. Then: readiness fails, the port closes, streams finish; a second signal ends them."""
    settings = router.settings
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stopped() -> None:
        if stop.is_set():
            router.cancel_all()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped)
    clients = _Server(_config(public_app(router), settings.drain_seconds))
    admins = AdminServer(admin_app(router))
    _log.info("limits", extra={"fields": {"workers": settings.workers, "share_of_every_limit": 1 / settings.workers}})
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
            print(f"hlserve-router listening on {url_of(public)} admin {url_of(admin)}", flush=True)  # noqa: T201
        await stop.wait()
        router.draining = True
        await asyncio.sleep(settings.settle_seconds)
        clients.should_exit = True
        await asyncio.wait(tasks[:1], timeout=settings.drain_seconds)
        router.cancel_all()
        admins.should_exit = True
        await asyncio.wait(tasks, timeout=5)
