"""The process: binds, announces itself, serves, and ends in order on SIGTERM."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hlserve_sim import app, wire
from hlserve_sim.engine_setup import resolve
from hlserve_sim.flags import FlagError, Flags
from hlserve_sim.server import Server
from hlserve_sim.sim_admin import state

KEEP_ALIVE_SECONDS = 75
BACKLOG = 2048
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class TransportProtocol(HttpToolsProtocol):
    """uvicorn's protocol that also hands the transport to the application, so that a fault can break the connection."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[wire.TRANSPORT_EXTENSION] = self.transport  # type: ignore[typeddict-unknown-key]


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers: the listening socket must stay open while work finishes."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(flags: Flags) -> socket.socket:
    """The listening socket. Raises FlagError if the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in flags.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((flags.host, flags.port))
    except OSError as error:
        listener.close()
        raise FlagError(
            f"cannot listen on {flags.host}:{flags.port} ({error.strerror}): give another --port, or 0 for a free one"
        ) from error
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def url(listener: socket.socket) -> str:
    """Where a client finds the listening socket."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def http_server(application: ASGIApp, on_started: Callable[[], None]) -> uvicorn.Server:
    """The HTTP server of an application, not yet started."""
    config = uvicorn.Config(
        application,
        http=TransportProtocol,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    return _QuietServer(config, on_started)


async def serve(flags: Flags) -> dict[str, object]:
    """Serve until SIGTERM or SIGINT and all work is done; a second signal ends at once. The final state.

    Raises FlagError before serving, and whatever broke the engine.
    """
    setup = resolve(flags)
    listener = bind(flags)
    server = Server(flags, setup)
    http = http_server(app.build(server), lambda: announce(f"hlserve-sim listening on {url(listener)}"))
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if server.ending:
            http.should_exit = http.force_exit = True
        server.end()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    serving = asyncio.create_task(http.serve([listener]))
    quiet = asyncio.create_task(server.ended())
    await asyncio.wait({serving, quiet, server.failed}, return_when=asyncio.FIRST_COMPLETED)
    quiet.cancel()
    http.should_exit = True
    # Behind a broken engine no answer would ever end.
    http.force_exit = http.force_exit or server.failed.done()
    with suppress(asyncio.CancelledError):
        await serving
    server.driver.close()
    if server.failed.done():
        server.failed.result()
    return state(server)


def announce(line: str) -> None:
    """Say something on standard output, at once."""
    print(line, flush=True)  # noqa: T201 - the announcement is the process's contract
