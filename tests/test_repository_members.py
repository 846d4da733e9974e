"""The installed members: one version, entry points that load, the console scripts, and an unharmed standard library."""

import operator
import subprocess
import sys
from importlib.metadata import distribution, entry_points, version
from pathlib import Path

import click
import pytest

NAMES = (
    "hlserve",
    "hlserve-api",
    "hlserve-bench",
    "hlserve-capacity",
    "hlserve-engine",
    "hlserve-local",
    "hlserve-operator",
    "hlserve-router",
    "hlserve-sim",
)


@pytest.mark.parametrize("name", NAMES)
def test_repository_member_is_installed_in_the_common_version(name: str) -> None:
    assert version(name) == version("hlserve")
    assert distribution(name).metadata["License-Expression"] == "Apache-2.0"


@pytest.mark.parametrize("name", ["up", "demo", "validate", "keys", "lab", "size"])
def test_repository_command_loads(name: str) -> None:
    (point,) = {point.value: point for point in entry_points(group="hlserve.commands", name=name)}.values()
    assert isinstance(point.load(), click.Command)


@pytest.mark.parametrize("script", ["hlserve", "hlserve-router", "hlserve-sim", "hlserve-operator"])
def test_repository_script_explains_itself(script: str) -> None:
    done = subprocess.run(
        [Path(sys.prefix) / "bin" / script, "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout or "usage" in done.stdout


def test_repository_root_keeps_the_standard_library_whole() -> None:
    """Started at the root, with the root first on the path, `operator` is still the standard library's."""
    root = Path(__file__).parents[1]
    code = "import sys; sys.path.insert(0, ''); import collections, fractions, operator; print(operator.add(1, 1))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=root, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "2\n"
    assert operator.add(1, 1) == 2
