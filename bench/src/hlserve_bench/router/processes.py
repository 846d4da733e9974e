"""Processes under measurement: pinned, their CPU time and memory read from /proc (Linux), scheduled in real time if asked."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REAL_TIME_PRIORITY: Final = 5
HARNESS_PRIORITY: Final = 10
"""The harness reads clocks and counters on time, also where engine, clients and candidate keep every core busy."""
_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class Started:
    """A process and its descendants, in a session of their own."""

    process: subprocess.Popen[bytes]
    log: Path

    def pids(self) -> list[int]:
        """All its processes that are alive."""
        return tree(self.process.pid)

    def end(self, patience_seconds: float = 3.0) -> None:
        """SIGTERM to the whole tree, then SIGKILL to what is left."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in reversed(self.pids()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_seconds)
                return


def pinned(cores: Sequence[int], command: Sequence[str], *, in_real_time: bool = False) -> list[str]:
    """The command on these cores only."""
    scheduled = ["chrt", "-f", str(REAL_TIME_PRIORITY)] if in_real_time else []
    return [*scheduled, "taskset", "-c", ",".join(map(str, cores)), *command]


def start(
    command: Sequence[str], cores: Sequence[int], log: Path, environment: Mapping[str, str], folder: Path
) -> Started:
    """Starts a server. Its output goes to `log`."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            pinned(cores, command), stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=folder,
            env={**os.environ, **environment},
        )  # fmt: skip
    return Started(process, log)


def tree(pid: int) -> list[int]:
    """The process and its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found = [pid] if (_PROC / str(pid)).exists() else []
    for known in found:
        found.extend(children.get(known, ()))
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Time on a CPU of all their threads, to the nanosecond (schedstat)."""
    nanoseconds = 0
    for pid in pids:
        for entry in _PROC.glob(f"{pid}/task/*/schedstat"):
            with contextlib.suppress(OSError):
                nanoseconds += int(entry.read_text().split()[0])
    return nanoseconds / 1e9


def pss_bytes(pids: Iterable[int]) -> int:
    """Memory, with shared pages divided among those that share them."""
    kibibytes = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            found = re.search(r"^Pss:\s+(\d+)", (_PROC / str(pid) / "smaps_rollup").read_text(), re.MULTILINE)
            kibibytes += int(found[1]) if found else 0
    return kibibytes * 1024


@contextlib.contextmanager
def real_time(pids: Sequence[int]) -> Iterator[None]:
    """All threads under SCHED_FIFO for a while. Without it neighbours' time slices are all that a p99 shows."""
    _schedule([os.getpid()], HARNESS_PRIORITY)
    _schedule(pids, REAL_TIME_PRIORITY)
    try:
        yield
    finally:
        _schedule(pids, 0)
        _schedule([os.getpid()], 0)


def _schedule(pids: Iterable[int], priority: int) -> None:
    policy = os.SCHED_FIFO if priority else os.SCHED_OTHER
    parameters = os.sched_param(priority)
    for pid in pids:
        for entry in _PROC.glob(f"{pid}/task/*"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(int(entry.name), policy, parameters)


def connections_by_process(pids: Iterable[int], port: int) -> list[int]:
    """How many established connections to a local port each process holds, for those that hold any."""
    inodes = established(port, (_PROC / "net" / "tcp").read_text())
    counts = [len(inodes & _sockets(pid)) for pid in pids]
    return [count for count in counts if count]


def established(port: int, text: str) -> set[str]:
    """Socket inodes of established connections whose local port it is, from the text of /proc/net/tcp."""
    found = set()
    for line in text.splitlines()[1:]:
        fields = line.split()
        if fields[3] == "01" and int(fields[1].rpartition(":")[2], 16) == port:
            found.add(fields[9])
    return found


def sockets(pids: Iterable[int]) -> int:
    """How many sockets they hold."""
    return sum(len(_sockets(pid)) for pid in pids)


def _sockets(pid: int) -> set[str]:
    found = set()
    for entry in _PROC.glob(f"{pid}/fd/*"):
        with contextlib.suppress(OSError):
            target = os.readlink(entry)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def wait_until_quiet(pids: Sequence[int], limit_seconds: float = 5.0) -> None:
    """Waits until start-up work is over: less than 5 % of a core for a quarter of a second."""
    end = time.monotonic() + limit_seconds
    while time.monotonic() < end:
        before = cpu_seconds(pids)
        time.sleep(0.25)
        if cpu_seconds(pids) - before < 0.0125:
            return
