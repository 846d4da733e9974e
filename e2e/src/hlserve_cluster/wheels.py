"""Wheels for an image: third-party ones in the versions and with the hashes of its lock, and our own."""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hlserve_cluster import image_lock
from hlserve_cluster.errors import ClusterError
from hlserve_cluster.layout import REPOSITORY

IMAGE_PYTHON: Final = "3.11"
"""The Python of the images' base."""

IMAGES: Final = {"operator": "operator", "router": "router", "sim": "engine-image/sim"}
"""Images and the member that each one runs."""

_MEMBERS: Final = {"hlserve-api": "crds", "hlserve-capacity": "capacity"}
"""Members that others depend on, by distribution."""


def collect(image: str, target: Path) -> None:
    """Fill `target` with every wheel of an image. Raises ClusterError with pip's words."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    lock = (REPOSITORY / "locks" / f"{image}.txt").read_text(encoding="utf-8")
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        file.write(image_lock.for_python(lock, IMAGE_PYTHON))
        file.flush()
        wanted = ["--require-hashes", "--only-binary=:all:", f"--python-version={IMAGE_PYTHON}"]
        _pip("download", "--no-deps", *wanted, f"--requirement={file.name}", f"--dest={target}")
    for member in _own(IMAGES[image]):
        _pip(
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            f"--wheel-dir={target}",
            str(REPOSITORY / member),
        )


def _own(member: str) -> Iterator[str]:
    """The member and those that it depends on."""
    yield member
    project = tomllib.loads((REPOSITORY / member / "pyproject.toml").read_text())["project"]
    for dependency in project["dependencies"]:
        name = dependency.partition("==")[0]
        if name in _MEMBERS:
            yield _MEMBERS[name]


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    # A fixed time stamp makes equal sources give equal wheels, and equal layers.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise ClusterError(f"`pip {' '.join(arguments)}` failed:\n{done.stderr.strip()[-2000:]}")
