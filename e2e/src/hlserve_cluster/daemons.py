"""Processes that outlive the command that starts them: found again by process id and start time, so that no stranger is ever ended."""

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hlserve_cluster.errors import ClusterError
from hlserve_cluster.layout import Layout

POLL_SECONDS: Final = 0.05
LAST_LINES: Final = 12

_CHILDREN: Final[list[subprocess.Popen[bytes]]] = []
"""What this very process started: only a parent can bury its children."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """One process that we started."""

    name: str
    pid: int
    started: str
    """Start time in clock ticks since boot, as the kernel tells it: with the id it names one process for ever."""

    def runs(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return _start_time(self.pid) == self.started

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if it still runs."""
        if self.runs():
            os.kill(self.pid, number)


class Daemons:
    """The processes of one cluster."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Daemon:
        """Start `command` in the state folder, in a session of its own, with its output in the cluster's log folder.

        With a `prefix` (a program that enters namespaces and then forks) the daemon is the prefix's only child.
        """
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [*prefix, *command],
                cwd=self._layout.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        _CHILDREN.append(process)
        pid = self._only_child(name, process) if prefix else process.pid
        daemon = Daemon(name, pid, _start_time(pid))
        if not daemon.started:
            raise self.failure(name)
        (self._layout.processes / name).write_text(f"{daemon.pid} {daemon.started}\n", encoding="ascii")
        return daemon

    def known(self) -> tuple[Daemon, ...]:
        """Those that were started and not stopped, alive or not, in the order of their start."""
        try:
            files = sorted(self._layout.processes.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        except FileNotFoundError:
            return ()
        return tuple(Daemon(file.name, *_record(file)) for file in files)

    def stop(self, *daemons: Daemon, grace_seconds: float = 10.0) -> None:
        """SIGTERM to all, SIGKILL to those that are still there after the grace."""
        for daemon in daemons:
            daemon.signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        for daemon in daemons:
            while daemon.runs() and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
        for daemon in daemons:
            daemon.signal(signal.SIGKILL)
        for daemon in daemons:
            self.forget(daemon)

    def forget(self, daemon: Daemon) -> None:
        """Wait until it is gone, and take it off the list."""
        while daemon.runs():
            time.sleep(POLL_SECONDS)
        (self._layout.processes / daemon.name).unlink(missing_ok=True)
        _CHILDREN[:] = [child for child in _CHILDREN if child.poll() is None]

    def wait(self, what: str, seconds: float, condition: Callable[[], bool], *needed: Daemon) -> None:
        """Wait until `condition` holds. Raises ClusterError at the deadline, or at once when one of the needed processes ends."""
        deadline = time.monotonic() + seconds
        while not condition():
            for daemon in needed:
                if not daemon.runs():
                    raise self.failure(daemon.name)
            if time.monotonic() > deadline:
                logs = "".join(f"\n{d.name}:\n{self.last_words(d.name)}" for d in needed)
                raise ClusterError(f"{what} was not ready within {seconds:g} s. Last words of what it needs:{logs}")
            time.sleep(POLL_SECONDS)

    def failure(self, name: str) -> ClusterError:
        """The error of a process that ended by itself."""
        return ClusterError(f"{name} ended. Its last words:\n{self.last_words(name)}")

    def log(self, name: str) -> Path:
        """The log file of a process."""
        return self._layout.logs / f"{name}.log"

    def last_words(self, name: str) -> str:
        """The end of a process's log."""
        try:
            with self.log(name).open(encoding="utf-8", errors="replace") as stream:
                return "".join(deque(stream, maxlen=LAST_LINES)).rstrip()
        except OSError:
            return ""

    def _only_child(self, name: str, process: subprocess.Popen[bytes]) -> int:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while process.poll() is None:
            try:
                found = children.read_text().split()
            except OSError:
                break
            if found:
                return int(found[0])
            time.sleep(POLL_SECONDS / 10)
        raise self.failure(name)


def _record(file: Path) -> tuple[int, str]:
    pid, _, started = file.read_text(encoding="ascii").strip().partition(" ")
    return int(pid), started


def _start_time(pid: int) -> str:
    """Field 22 of /proc/PID/stat (proc(5)); empty for a process that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
