"""Installs and finds the peers: PyPI's into virtual environments of their own, Debian's on the path. What is missing is said."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

from hlserve_bench.router.candidates import COMPILED, Candidate, Kind, system_program


@dataclass(frozen=True, slots=True)
class Ready:
    """A candidate that can be started."""

    candidate: Candidate
    executable: str
    version: str


@dataclass(frozen=True, slots=True)
class Missing:
    """A candidate that cannot, and why."""

    candidate: Candidate
    reason: str


def prepare(candidate: Candidate, cache: Path, python: str = "", own_python: str = sys.executable) -> Ready | Missing:
    """Installs what is needed, once. `python`: interpreter of the peers' environments; empty: the harness's own. `own_python`: that
    of ours and of the control."""
    match candidate.kind:
        case Kind.OURS:
            if candidate.compiled and not COMPILED.is_dir():
                return Missing(candidate, "it was not built (make compile)")
            return Ready(candidate, own_python, metadata.version("hlserve-router"))
        case Kind.CONTROL:
            return Ready(candidate, own_python, f"uvicorn {metadata.version('uvicorn')}")
    if candidate.requirement:
        return _from_pypi(candidate, cache, python or sys.executable)
    executable = system_program(candidate.program)
    if executable is None:
        package = "nginx-light" if candidate.program == "nginx" else candidate.program
        return Missing(candidate, f"{candidate.program} is not installed (apt install {package})")
    return Ready(candidate, executable, program_version(executable))


def _from_pypi(candidate: Candidate, cache: Path, python: str) -> Ready | Missing:
    folder = cache / "venvs" / candidate.requirement.partition("=")[0].partition("[")[0]
    stamp, log = folder / ".requirement", cache / "logs" / f"pip-{candidate.name}.log"
    if not stamp.exists() or stamp.read_text() != candidate.requirement:
        stamp.unlink(missing_ok=True)
        with log.open("wb") as output:
            for command in (
                [python, "-m", "venv", "--clear", str(folder)],
                [str(folder / "bin" / "pip"), "install", "--quiet", candidate.requirement],
            ):
                if not _runs(command, output):
                    return Missing(candidate, f"{candidate.requirement} could not be installed: {last_line(log)}")
        stamp.write_text(candidate.requirement)
    executable = folder / "bin" / candidate.program
    if not os.access(executable, os.X_OK):
        return Missing(candidate, f"{candidate.requirement} has no program {candidate.program} on this machine")
    return Ready(candidate, str(executable), candidate.requirement.partition("==")[2])


def _runs(command: Sequence[str], output: IO[bytes]) -> bool:
    try:
        return subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode == 0
    except OSError as error:
        output.write(f"{command[0]}: {error.strerror}\n".encode())
        output.flush()
        return False


def last_line(log: Path) -> str:
    """The end of a log, short enough for a table."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else "it said nothing"


def program_version(executable: str) -> str:
    """The first version number that the program says of itself; empty if it says none."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([executable, "-v"], capture_output=True, text=True, timeout=5, check=False)
        found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout + done.stderr)
        return found[0] if found else ""
    return ""
