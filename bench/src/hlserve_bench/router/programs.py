"""Finds and builds what the harness itself needs: the C programs of `bench/router/`, work folders, free ports."""

import fcntl
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parents[3] / "router"
"""`bench/router/` of the checkout: C sources, peers' configurations, the bare control."""


_PORTS: Final = range(21_000, 21_900)


class HarnessError(Exception):
    """Something is missing on this machine; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The two C programs."""

    engine: Path
    client: Path


def work_folder() -> Path:
    """Where builds, peers and logs are kept between runs: outside the repository."""
    chosen = os.environ.get("HLSERVE_BENCH_CACHE")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hlserve-bench"
    for name in ("", "logs", "run", "venvs"):
        (base / name).mkdir(parents=True, exist_ok=True)
    return base


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Only one benchmark at a time: a second one waits."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another benchmark runs on this machine: waiting for it", flush=True)  # noqa: T201
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(folder: Path) -> Programs:
    """Compiles what is older than its source. Raises HarnessError."""
    if not SOURCES.is_dir():
        raise HarnessError(f"{SOURCES} is not there. Run the benchmark from a checkout of the repository.")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise HarnessError("A C compiler is needed for the mock engine and the load client: apt install gcc libc6-dev.")
    built = []
    for name in ("mock_engine", "load_client"):
        source, target = SOURCES / f"{name}.c", folder / name
        if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
            done = subprocess.run([compiler, "-O2", "-o", target, source], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise HarnessError(f"{source} does not compile: {done.stderr.strip()[:500]}")
        built.append(target)
    return Programs(*built)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that the kernel gives to outgoing connections. Raises HarnessError."""
    found: list[int] = []
    for port in _PORTS:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise HarnessError(f"No {count} free ports between {_PORTS.start} and {_PORTS.stop}. End what uses them.")
