"""Copies of the repository that a test may break."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from repository_checks.tree import DISTRIBUTIONS, Tree

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def repository() -> Tree:
    """The working copy that the tests run in."""
    return Tree(ROOT)


@pytest.fixture
def copy(repository: Tree, tmp_path: Path) -> Tree:
    """A working copy of its own, of the files that git does not ignore."""
    root = tmp_path / "copy"
    for name in repository.files:
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    return Tree(root)


Make = Callable[[Tree, str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def make() -> Make:
    """Run one make target in a copy, on the copy's sources but with this environment's tools; output is stdout and stderr together."""

    def run(tree: Tree, target: str) -> "subprocess.CompletedProcess[str]":
        sources = [f"{tree.root}/{folder}/src" for folder in DISTRIBUTIONS]
        return subprocess.run(
            ["make", "--old-file", f"{sys.prefix}/.installed", f"VENV={sys.prefix}", target],
            cwd=tree.root,
            env={**os.environ, "PYTHONPATH": ":".join(sources), "MAKEFLAGS": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=110,
            check=False,
        )

    return run
