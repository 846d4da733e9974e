"""An operator as a process of its own, as in its pod: for what only a process can have, such as signals and a pause."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from hlserve_operator.testing.between import Between


@dataclass(slots=True, eq=False)
class Running:
    """A process and what it wrote."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)

    def says(self, words: str) -> bool:
        """Whether it wrote these words to its log."""
        return any(words in line for line in self.lines)

    def pause(self) -> None:
        """It stands still, and does not know of it."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on."""
        self.process.send_signal(signal.SIGCONT)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ends it with a signal; its exit status."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        async with asyncio.timeout(30):
            return await self.process.wait()


def kubeconfig(folder: Path, way: Between) -> Path:
    """A kubeconfig that leads to a way without TLS, which has credentials of its own."""
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": "way",
        "clusters": [{"name": "way", "cluster": {"server": way.address}}],
        "users": [{"name": "way", "user": {}}],
        "contexts": [{"name": "way", "context": {"cluster": "way", "user": "way"}}],
    }  # fmt: skip
    path = folder / f"{way.address.rpartition(':')[2]}.kubeconfig"
    path.write_text(json.dumps(document))
    return path


@asynccontextmanager
async def process(
    config: Path, namespace: str, *options: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Running]:
    """`hlserve-operator run` on the cluster of a kubeconfig, ended with the block."""
    command = [sys.executable, "-m", "hlserve_operator", "run", f"--kubeconfig={config}", f"--namespace={namespace}"]
    child = await asyncio.create_subprocess_exec(
        *command, "--port=0", *options,
        env={**os.environ, **(environment or {})}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    running = Running(child)

    async def read() -> None:
        while child.stdout is not None and (line := await child.stdout.readline()):
            running.lines.append(line.decode(errors="replace").rstrip())

    reader = asyncio.create_task(read())
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            running.resume()
            child.kill()
        await child.wait()
        await reader
