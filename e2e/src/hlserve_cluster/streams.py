"""Streams that are held open from inside of the cluster while something changes, and what became of each."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hlserve_cluster.errors import ClusterError
from hlserve_cluster.kubectl import Kubectl

PROGRAM: Final = (Path(__file__).parent / "in_pod" / "streams.py").read_text(encoding="utf-8")
BEGIN_SECONDS: Final = 60.0
END_SECONDS: Final = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What became of one stream."""

    status: int
    pool: str
    events: int
    done: bool
    """The reply's last event came."""
    error: str
    """The error event, or the body of a refusal."""
    cut: str
    """How the connection failed before the message ended."""
    seconds: float

    @property
    def whole(self) -> bool:
        """The client got all of it."""
        return self.done and not self.error and not self.cut


class Streams:
    """Several streams at once, each followed by another one, until `end`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ClusterError("the streams' program needs pipes")
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._began = 0
        self._progress = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())
        self.ended: list[Stream] = []

    async def run_at_once(self, count: int) -> None:
        """Wait until `count` more streams have begun. Raises ClusterError if they do not."""
        wanted = self._began + count
        await self._wait(lambda: self._began >= wanted, f"{count} streams to begin")

    async def have_ended(self, count: int) -> None:
        """Wait until `count` streams have ended since the start. Raises ClusterError if they do not."""
        await self._wait(lambda: len(self.ended) >= count, f"{count} streams to end")

    async def end(self) -> list[Stream]:
        """Begin no more, wait for those that run, and return what became of all."""
        self._stdin.close()
        try:
            await asyncio.wait_for(self._reader, END_SECONDS)
        except TimeoutError:
            raise ClusterError(f"streams still run {END_SECONDS:g} s after the last was to begin") from None
        words = (await self._stderr.read()).decode(errors="replace").strip()
        if await self._process.wait():
            raise ClusterError(f"the streams' program failed: {words}")
        return self.ended

    async def close(self) -> None:
        """End the program whatever it does."""
        self._reader.cancel()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _wait(self, condition: Any, what: str) -> None:
        async with self._progress:
            try:
                await asyncio.wait_for(self._progress.wait_for(condition), BEGIN_SECONDS)
            except TimeoutError:
                raise ClusterError(f"waited {BEGIN_SECONDS:g} s for {what}; ended so far: {self.ended}") from None

    async def _read(self) -> None:
        async for line in self._stdout:
            record = json.loads(line)
            async with self._progress:
                if "began" in record:
                    self._began += 1
                else:
                    self.ended.append(Stream(**record))
                self._progress.notify_all()


@asynccontextmanager
async def streams(
    kubectl: Kubectl, pod: str, url: str, key: str, model: str, *, tokens: int, count: int
) -> AsyncIterator[Streams]:
    """Hold `count` streams of `tokens` each from a pod. The block begins once all have their first event."""
    wanted = {"url": url, "key": key, "model": model, "tokens": tokens, "streams": count}
    command = ("exec", "--stdin", pod, "--", "python3", "-c", PROGRAM, json.dumps(wanted))
    held = Streams(await kubectl.start(*command, with_input=True))
    try:
        await held.run_at_once(count)
        yield held
    finally:
        await held.close()
