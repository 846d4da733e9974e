"""The command `hlserve-router` as a process of its own, in front of one engine."""

import asyncio
import os
import re
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from hlserve_router.testing.documents import a_class, a_keyring, a_pool, a_table


@dataclass(eq=False)
class RouterProcess:
    """A running one."""

    process: asyncio.subprocess.Process
    url: str
    admin_url: str

    async def end(self) -> int:
        """Sends SIGTERM and returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(15):
            return await self.process.wait()

    async def log(self) -> str:
        """All that it wrote to stderr, once it has ended."""
        assert self.process.stderr is not None  # noqa: S101 - a pipe was asked for
        return (await self.process.stderr.read()).decode()

    def children(self) -> list[int]:
        """Process ids of its workers."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def forget_peak(self) -> int:
        """Begins a new measurement of memory and returns what is resident now, in bytes."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self._memory("VmRSS")

    def peak(self) -> int:
        """The most that was resident since `forget_peak`, in bytes."""
        return self._memory("VmHWM")

    def _memory(self, name: str) -> int:
        found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{self.process.pid}/status").read_text(), re.MULTILINE)
        assert found is not None  # noqa: S101 - Linux tells it of every process
        return int(found.group(1)) * 1024


def plain_client() -> httpx.AsyncClient:
    """A client for loopback: no proxy, and no certificates, which take longer to load than a request."""
    return httpx.AsyncClient(timeout=10, trust_env=False, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


async def start(
    folder: Path, *options: str, environment: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Starts the command with the documents of `folder`."""
    table, keyring = str(folder / "table.json"), str(folder / "keyring.json")
    return await _start("--table", table, "--keyring", keyring, *options, environment=environment)


async def _start(*options: str, environment: Mapping[str, str] | None = None) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hlserve_router", *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, **(environment or {})},
    )  # fmt: skip


@asynccontextmanager
async def router_process(
    folder: Path, engine_url: str, *options: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[RouterProcess]:
    """A router on free ports with one pool `agents`, one class `agent`, and the usual keys."""
    table = a_table(a_pool("agents", engine_url), a_class("agent", "agents"))
    (folder / "table.json").write_text(table.model_dump_json(by_alias=True))
    (folder / "keyring.json").write_text(a_keyring().model_dump_json(by_alias=True))
    async with _ended(await start(folder, "--port", "0", *options, environment=environment)) as router:
        yield router


@asynccontextmanager
async def a_router_process(*options: str, environment: Mapping[str, str] | None = None) -> AsyncIterator[RouterProcess]:
    """A router of these options alone."""
    async with _ended(await _start(*options, environment=environment)) as router:
        yield router


@asynccontextmanager
async def _ended(process: asyncio.subprocess.Process) -> AsyncIterator[RouterProcess]:
    """Waits until the process listens, and ends it after the block."""
    try:
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        async with asyncio.timeout(90):
            line = (await process.stdout.readline()).decode()
        found = re.fullmatch(r"hlserve-router listening on (https?://\S+) admin (http://\S+)\n", line)
        assert found is not None, line  # noqa: S101 - the contract of the command
        yield RouterProcess(process, found.group(1), found.group(2))
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
