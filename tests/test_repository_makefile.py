"""What `make` says and does before anything is installed."""

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from repository_checks.makefile import targets, variable
from repository_checks.tree import Tree


def run(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["make", *arguments],
        cwd=root,
        env={**os.environ, "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def a_python(folder: Path, body: str) -> Path:
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def test_repository_make_without_a_target_lists_every_target(repository: Tree) -> None:
    done = run(repository.root)
    listed = dict(re.findall(r"^  ([a-z-]+) +(\S.*)$", done.stdout, flags=re.MULTILINE))
    assert listed == {target.name: target.help for target in targets(repository.text("Makefile"))}
    assert {"help", "install", "fmt", "lint", "type", "test", "generate", "verify", "demo", "clean"} <= set(listed)


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(
            'case "$1" in -V) echo Python 3.9.18;; *) exit 1;; esac',
            "HlServe needs Python 3.11 or newer, and {python} is Python 3.9.18. Name one: make install PYTHON=",
            id="Python is too old",
        ),
        pytest.param(
            'case "$2" in *version_info*) exit 0;; *) exit 1;; esac',
            "{python} cannot create virtual environments. Install its venv package",
            id="the venv module is missing",
        ),
    ],
)
def test_repository_install_says_what_is_missing(copy: Tree, tmp_path: Path, body: str, want: str) -> None:
    python = a_python(tmp_path, body)
    done = run(copy.root, "install", f"PYTHON={python}")
    assert done.returncode != 0
    assert want.format(python=python) in done.stderr
    assert not (copy.root / ".venv").exists()


def test_repository_install_takes_only_what_is_pinned_and_hashed(copy: Tree) -> None:
    commands = run(copy.root, "--dry-run", "install").stdout
    assert "pip install --quiet --require-hashes --requirement locks/dev.txt" in commands
    (editable,) = (line for line in commands.splitlines() if "--editable" in line)
    assert "--no-deps --no-build-isolation" in editable
    folders = [*variable(copy.text("Makefile"), "MEMBERS"), "engine-image/plugin"]
    assert re.findall(r"--editable \./(\S+)", editable) == folders


def test_repository_gate_runs_the_commands_that_the_readme_names(repository: Tree) -> None:
    gate = repository.text(".ci/run")
    ran = re.findall(r"^part \w+ (make [a-z-]+)", gate, flags=re.MULTILINE)
    assert ran == ["make install", "make verify", "make test", "make test-clients", "make demo"]
    assert set(re.findall(r"^\$ (make (?:demo|test))\b", repository.text("README.md"), flags=re.MULTILINE)) <= set(ran)
    assert os.access(repository.root / ".ci/run", os.X_OK)
