"""The Python that runs our router and the control, which decides a tenth or two of their speed.

Distributions and the official images ship builds with profile-guided optimisation; what pyenv makes by default has none. The other one
gets an environment of its own, with the router's locked packages, that lends the rest from this one: both must be of one version.
"""

import json
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hlserve_bench.router.programs import SOURCES, HarnessError

_LOOK: Final = """
import json, platform, sys, sysconfig, time
def work():
    table, total = {}, 0
    for index in range(100_000):
        table[index & 255] = total
        total += len(str(index))
def spent():
    began = time.process_time()
    work()
    return time.process_time() - began
words = sysconfig.get_config_var("CONFIG_ARGS") or ""
print(json.dumps({
    "name": f"{platform.python_implementation()} {platform.python_version()}",
    "version": list(sys.version_info[:2]),
    "optimised": "--enable-optimizations" in words,
    "lto": "--with-lto" in words,
    "other": "--enable-shared" in words,
    "shared": "libpython" in open("/proc/self/maps").read(),
    "milliseconds": round(1000 * min(spent() for _ in range(7)), 2),
}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What an interpreter says of itself, and how fast it is."""

    name: str
    """As `CPython 3.11.7`."""
    build: str
    """The flags that matter for speed, in words, as far as it states them."""
    loop_milliseconds: float
    """CPU for a fixed loop of 100,000 steps, best of seven: flags are not always told, this is."""


def look(program: str) -> Interpreter:
    """Asks an interpreter. Raises HarnessError."""
    said = _ask(program)
    return Interpreter(str(said["name"]), in_words(said), float(str(said["milliseconds"])))


def in_words(said: Mapping[str, object]) -> str:
    """How it was built. Debian ships one that is not linked to the shared library whose flags it states as its own."""
    if said["other"] and not said["shared"]:
        return (
            "libpython linked in; it states the flags of its distribution's shared library, not its own, so that nothing tells whether it "
            "was built with profile-guided or link-time optimisation"
        )  # fmt: skip
    yes = ("without", "with")
    return (
        f"built {yes[bool(said['optimised'])]} profile-guided and {yes[bool(said['lto'])]} link-time optimisation, libpython "
        f"{'shared' if said['shared'] else 'linked in'}"
    )


def environment(python: str, cache: Path) -> str:
    """An interpreter like `python` that has this one's packages; empty: this one itself. Raises HarnessError."""
    if not python:
        return sys.executable
    own = sys.version_info[:2]
    if _ask(python)["version"] != list(own):
        raise HarnessError(f"--python must be a Python {own[0]}.{own[1]}, as the one that runs the benchmark.")
    folder = cache / "venvs" / "router"
    done = subprocess.run(
        [python, "-m", "venv", "--clear", "--without-pip", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-200:]
        raise HarnessError(f"{python} makes no virtual environment ({said}). Debian, Ubuntu: apt install python3-venv.")
    # What only an older patch release of this version needs is not among the packages that are lent.
    lock = ["--quiet", "--require-hashes", "--requirement", str(SOURCES.parents[1] / "locks" / "router.txt")]
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", *lock]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HarnessError(f"The router's packages cannot be installed for {python}: {done.stderr.strip()[-200:]}")
    packages = folder / "lib" / f"python{own[0]}.{own[1]}" / "site-packages"
    # Unlike PYTHONPATH, this reads the lines of editable installations too.
    (packages / "lent.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return str(folder / "bin" / "python")


def _ask(program: str) -> dict[str, object]:
    try:
        done = subprocess.run([program, "-c", _LOOK], capture_output=True, text=True, check=False, timeout=30)
    except OSError as error:
        raise HarnessError(f"{program}: {error.strerror}. Name a Python.") from error
    if done.returncode != 0:
        raise HarnessError(f"{program} is no Python that can be used: {done.stderr.strip()[-200:]}")
    said: dict[str, object] = json.loads(done.stdout)
    return said
