"""The files that a check looks at."""

import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

MEMBERS = ("crds", "capacity", "operator", "router", "engine-image/sim", "bench", "e2e", "cli")
"""Workspace members in the order of their dependencies."""

DISTRIBUTIONS = (*MEMBERS, "engine-image/plugin")
"""Every folder with a distribution of ours."""


@dataclass(frozen=True)
class Tree:
    """A working copy. Files are the tracked ones and the new ones that no ignore rule covers, relative to the root."""

    root: Path

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Existing files, sorted, as posix paths. Raises CalledProcessError outside a git working copy."""
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=self.root,
            capture_output=True,
            text=True,
            check=True,
        )
        return tuple(sorted({name for name in listed.stdout.split("\0") if name and (self.root / name).is_file()}))

    def having(self, *suffixes: str) -> tuple[str, ...]:
        """Files with one of the suffixes."""
        return tuple(name for name in self.files if PurePosixPath(name).suffix in suffixes)

    def text(self, name: str) -> str:
        """A file's text. Raises UnicodeDecodeError for a binary file."""
        return (self.root / name).read_text(encoding="utf-8")
