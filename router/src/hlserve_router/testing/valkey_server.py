"""A real Valkey-protocol server for tests: Debian's redis-server, on a unix socket, or on a free port where TCP matters."""

import asyncio
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MISSING: Final = (
    "these tests need a real Valkey-protocol server and found neither redis-server nor valkey-server: install one "
    "(Debian, Ubuntu: apt-get install redis-server; others: the package redis or valkey)"
)


class ServerMissingError(RuntimeError):
    """No server is installed. The sentence says how to install one."""


def server_program() -> str:
    """The program's path. Raises ServerMissingError."""
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise ServerMissingError(MISSING)
    return found


@dataclass(eq=False)
class ValkeyServer:
    """One server; its data is in memory only, so that a restart loses it."""

    folder: Path
    port: int = 0
    """0: on a unix socket only."""
    password: str = ""
    process: asyncio.subprocess.Process | None = None

    @property
    def socket(self) -> Path:
        """Its unix socket."""
        return self.folder / "valkey.sock"

    @property
    def address(self) -> str:
        """What `--limits-store` takes."""
        return f"valkey://127.0.0.1:{self.port}/0" if self.port else f"unix://{self.socket}"

    async def start(self) -> None:
        """Starts it, and waits until it answers. Raises ServerMissingError."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket), "--save", ""]
        options += ["--appendonly", "no", "--dir", str(self.folder), "--daemonize", "no"]
        if self.password:
            options += ["--requirepass", self.password]
        self.process = await asyncio.create_subprocess_exec(
            server_program(), *options, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        async with asyncio.timeout(10):
            while not await self._answers():  # noqa: ASYNC110 - another process has no event to wait for
                await asyncio.sleep(0.01)

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(str(self.socket))
        except OSError:
            return False
        writer.close()
        return True

    async def kill(self) -> None:
        """As kill -9."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
            self.process = None
        self.socket.unlink(missing_ok=True)

    def stall(self) -> None:
        """It takes connections and answers nothing until `go_on`."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Ends `stall`."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def valkey_server(folder: Path, *, tcp: bool = False, password: str = "") -> AsyncIterator[ValkeyServer]:
    """A running server. `tcp`: also on a free port."""
    port = 0
    if tcp:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    server = ValkeyServer(folder, port, password)
    await server.start()
    try:
        yield server
    finally:
        server.go_on()
        await server.kill()
