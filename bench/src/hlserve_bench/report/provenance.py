"""Where a report comes from: versions, commit, machine. The one place of the report that looks at the outside."""

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

DISTRIBUTIONS = (
    "hlserve",
    "hlserve-api",
    "hlserve-capacity",
    "hlserve-router",
    "hlserve-sim",
    "hlserve-bench",
    "hlserve-local",
    "openai",
)
TRACES = (
    "Chat: Azure LLM inference trace 2023, conversation (Patel et al., Splitwise, ISCA 2024; data © Microsoft, CC-BY 4.0), every n-th row.",
    "Agents: agentic coding sessions of kv-cache-tester (Callan Fox / WEKA, Apache-2.0), cut to their first rounds.",
)


@dataclass(frozen=True, slots=True)
class Provenance:
    """What ran, when and where."""

    created: str
    versions: dict[str, str]
    commit: str | None
    uncommitted_changes: bool | None
    machine: str
    uncommitted: tuple[str, ...] = ()
    """Paths from the root of the repository, new files included."""


def collect(source: Path) -> Provenance:
    """Look around. `source` is any path in the source tree, if there is one."""
    commit = _git(source, "rev-parse", "HEAD")
    changes = _git(source, "status", "--porcelain") if commit else None
    return Provenance(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={**_versions(), "python": platform.python_version()},
        commit=commit or None,
        uncommitted_changes=None if changes is None else changes != "",
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        uncommitted=tuple(line[3:].rpartition(" -> ")[2] for line in (changes or "").splitlines()),
    )


def _versions() -> dict[str, str]:
    versions = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git(source: Path, *arguments: str) -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    try:
        done = subprocess.run(
            [git, "-C", str(source), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip() if done.returncode == 0 else None
