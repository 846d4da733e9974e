"""Child processes of the one-machine stack: start, learn the address from the ready line, stop, and never leave one behind."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO, cast

STDERR_TAIL_LINES: Final = 12
_URL: Final = re.compile(r"https?://[^\s]+")


class StartError(RuntimeError):
    """A child did not become ready. The message says which one, why, and holds its last words."""


class Guard:
    """Ends our children if we are killed without a chance to do so (see `hlserve_local.guard`)."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hlserve_local.guard", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        self._pipe = cast("TextIO", self._process.stdin)

    @property
    def pid(self) -> int:
        """Process id of the guard."""
        return self._process.pid

    def watch(self, pid: int) -> None:
        """End the process group of `pid` if we die."""
        self._tell(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        """`pid` was reaped; its number may be somebody else's soon."""
        self._tell(f"-{pid}\n")

    def close(self) -> None:
        """Let the guard end whatever it still watches, and wait for it."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._pipe.write(line)
            self._pipe.flush()


class Child:
    """One running child. Make it with `start_child`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, guard: Guard, log: Path) -> None:
        self.name = name
        self.pid = process.pid
        self.log = log
        self.ready_line = ""
        self._process = process
        self._output = cast("asyncio.StreamReader", process.stdout)
        self._guard = guard
        self._drain: asyncio.Task[None] | None = None
        self._watched = True

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses in the ready line, in its order."""
        return tuple(_URL.findall(self.ready_line))

    @property
    def returncode(self) -> int | None:
        """Exit status; negative: the signal that ended it; None: it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for its end and return its exit status."""
        status = await self._process.wait()
        if self._watched:
            self._watched = False
            self._guard.forget(self.pid)
        return status

    async def read_ready_line(self, marker: str, timeout_seconds: float) -> None:
        """Wait for the line on standard output that holds `marker`. Raises StartError."""
        try:
            async with asyncio.timeout(timeout_seconds):
                self.ready_line = await self._line_with(marker)
        except TimeoutError:
            raise StartError(
                f"{self.name} was not ready within {timeout_seconds:g} s. Its last words:\n{self.last_words()}"
            ) from None
        if not self.ready_line:
            status = await self.wait()
            raise StartError(
                f"{self.name} {describe_exit(status)} before it was ready. Its last words:\n{self.last_words()}"
            )
        self._drain = asyncio.create_task(self._discard_output())

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM, then SIGKILL after `grace_seconds`; waits for the end."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_seconds):
                await self.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.wait()
        if self._drain is not None:
            await self._drain

    def kill(self) -> None:
        """SIGKILL it at once, and all that it started."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child and all that it started, if it still runs."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def last_words(self) -> str:
        """The end of its log."""
        try:
            with self.log.open(encoding="utf-8", errors="replace") as stream:
                return "".join(deque(stream, maxlen=STDERR_TAIL_LINES)).rstrip()
        except OSError:
            return ""

    async def _line_with(self, marker: str) -> str:
        while line := await self._output.readline():
            text = line.decode("utf-8", "replace").strip()
            if marker in text:
                return text
        return ""

    async def _discard_output(self) -> None:
        # A full pipe would block the child.
        while await self._output.read(65536):
            pass


async def start_child(
    name: str, command: Sequence[str], *, guard: Guard, log: Path, environment: Mapping[str, str] | None = None
) -> Child:
    """Start `command` in a process group of its own, with standard error appended to `log`."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=descriptor,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    finally:
        os.close(descriptor)
    guard.watch(process.pid)
    return Child(name, process, guard, log)


def describe_exit(status: int) -> str:
    """`ended with exit status 2`, or `was ended by SIGKILL`."""
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with exit status {status}"
