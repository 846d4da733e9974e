"""The router as a child process: started on chosen ports, and started again on the same ones if it dies."""

import asyncio
import secrets
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx

from hlserve_local.events import EventKind, EventLog
from hlserve_local.processes import Child, Guard, StartError, describe_exit, start_child
from hlserve_local.runtime_dir import write_private

READY_MARKER: Final = "hlserve-router listening on"
START_TIMEOUT_SECONDS: Final = 60.0
READY_TIMEOUT_SECONDS: Final = 30.0
RESTART_PAUSE_SECONDS: Final = 1.0
STOP_GRACE_SECONDS: Final = 3.0
DRAIN_SECONDS: Final = 2
"""How long streams may go on after SIGTERM. Shorter than any grace, so that what is left gets an error event before SIGKILL."""
ENVIRONMENT: Final = {"HLSERVE_ROUTER_DRAIN_SECONDS": str(DRAIN_SECONDS)}
HOST: Final = "127.0.0.1"


class PortInUseError(RuntimeError):
    """Something else listens on the port that was asked for."""

    def __init__(self, port: int) -> None:
        super().__init__(
            f"Port {port} is in use: stop what listens there, or choose another with --port N (0 takes a free one)."
        )
        self.port = port


def check_port_free(port: int) -> None:
    """Raises PortInUseError if `port` cannot be listened on. Port 0 is always free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            raise PortInUseError(port) from None


class RouterProcess:
    """The router of one stack."""

    def __init__(
        self, *, guard: Guard, directory: Path, events: EventLog, port: int, workers: int, limits_store: str
    ) -> None:
        self._guard = guard
        self._directory = directory
        self._events = events
        self._port = port
        self._admin_port = 0
        self._workers = workers
        self._limits_store = limits_store
        self._child: Child | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.admin_token = secrets.token_urlsafe(32)
        self.base_url = ""
        self.admin_url = ""

    @property
    def pid(self) -> int | None:
        """Process id, while there is one."""
        return None if self._child is None else self._child.pid

    async def start(self, table: Path, keyrings: Sequence[Path], client: httpx.AsyncClient) -> None:
        """Start it and wait until it is ready to serve. Raises StartError."""
        token_file = self._directory / "admin-token"
        write_private(token_file, self.admin_token)
        self._command = [
            sys.executable, "-m", "hlserve_router", "--host", HOST, "--workers", str(self._workers),
            "--table", str(table), "--admin-token-file", str(token_file),
        ]  # fmt: skip
        for keyring in keyrings:
            self._command += ["--keyring", str(keyring)]
        await self._start_once()
        await self._wait_ready(client)
        self._task = asyncio.create_task(self._keep_alive())

    async def close(self, grace_seconds: float) -> None:
        """Let it end its streams for `grace_seconds`, then end it."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._child is not None:
            await self._child.stop(grace_seconds)

    def kill(self) -> None:
        """SIGKILL it at once."""
        self._stopping = True
        if self._child is not None:
            self._child.kill()

    async def _start_once(self) -> None:
        ports = ["--port", str(self._port), "--admin-port", str(self._admin_port)]
        self._child = await start_child(
            "the router",
            [*self._command, *ports],
            guard=self._guard,
            log=self._directory / "router.log",
            environment={**ENVIRONMENT, "HLSERVE_ROUTER_LIMITS_STORE": self._limits_store},
        )
        try:
            await self._child.read_ready_line(READY_MARKER, START_TIMEOUT_SECONDS)
        except StartError:
            await self._child.stop(STOP_GRACE_SECONDS)
            raise
        self.base_url, self.admin_url = self._child.urls[:2]
        self._port, self._admin_port = (int(url.rpartition(":")[2]) for url in (self.base_url, self.admin_url))

    async def _wait_ready(self, client: httpx.AsyncClient) -> None:
        deadline = asyncio.get_running_loop().time() + READY_TIMEOUT_SECONDS
        answer = "no answer"
        while asyncio.get_running_loop().time() < deadline:
            try:
                response = await client.get(f"{self.admin_url}/readyz")
            except httpx.HTTPError as failure:
                answer = str(failure)
            else:
                if response.status_code == httpx.codes.OK:
                    return
                answer = response.text
            await asyncio.sleep(0.1)
        words = self._child.last_words() if self._child is not None else ""
        raise StartError(f"The router listens but is not ready: {answer}\n{words}")

    async def _keep_alive(self) -> None:
        while self._child is not None:
            status = await self._child.wait()
            if self._stopping:
                return
            self._events.add(EventKind.ROUTER_LOST, f"the router {describe_exit(status)}; it is started again")
            await asyncio.sleep(RESTART_PAUSE_SECONDS)
            try:
                await self._start_once()
            except StartError as failure:
                self._events.add(EventKind.ROUTER_LOST, str(failure))
