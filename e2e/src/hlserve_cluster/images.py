"""Images of the operator, the router and the simulated engine: built from the repository's Dockerfiles, without any registry."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from hlserve_cluster import full_profile, programs, wheels
from hlserve_cluster.commands import need
from hlserve_cluster.errors import ClusterError
from hlserve_cluster.layout import REPOSITORY, Layout, cache_directory

BASE: Final = "localhost/hlserve/base:bookworm"
TAG: Final = "dev"
_CHROOT: Final = "--isolation=chroot"


def reference(image: str) -> str:
    """The name under which the cluster knows an image."""
    return f"localhost/hlserve/{image}:{TAG}"


def archive_file(image: str) -> Path:
    """The docker-archive that `build` writes."""
    return REPOSITORY / "build" / "images" / f"{image}.tar"


def build(names: Sequence[str], say: Callable[[str], None], base: str = "") -> None:
    """Build images into `build/images`. `base` names another base image, which the builder then has to find.

    Raises ClusterError with the builder's words.
    """
    if names and not base:
        programs.ensure(["base"], say)
        _ensure_base()
    for name in names:
        context = REPOSITORY / "build" / "images" / name
        wheels.collect(name, context / "wheels")
        dockerfile = REPOSITORY / wheels.IMAGES[name] / "Dockerfile"
        say(f"{name}: building")
        build_arguments = [f"--build-arg=BASE={base or BASE}", f"--file={dockerfile}", f"--tag={reference(name)}"]
        own_base = [] if base else ["--pull=never"]
        _builder("build", _CHROOT, "--layers", *own_base, *build_arguments, str(context), network=bool(base))
        archive_file(name).unlink(missing_ok=True)
        _builder("push", "--quiet", reference(name), f"docker-archive:{archive_file(name)}:{reference(name)}")


def load(layout: Layout, names: Sequence[str]) -> None:
    """Give built images to the running node. Raises ClusterError if one was not built."""
    for name in names:
        if not archive_file(name).exists():
            raise ClusterError(f"The image {name} was not built. Run: make images.")
        full_profile.import_image(layout, archive_file(name))


def _ensure_base() -> None:
    folder = programs.PROGRAMS["base"].folder
    tag = f"localhost/hlserve/base:{folder.name.rpartition('-')[2]}"
    if not _builder("images", "--quiet", "--filter", f"reference={tag}").strip():
        container = _builder("from", "--pull=never", "scratch").strip()
        try:
            _builder("add", "--quiet", container, str(folder / "base.tar"), "/")
            _builder("config", "--cmd=/bin/sh", "--env=PATH=/usr/local/bin:/usr/bin:/bin", container)
            _builder("commit", "--quiet", container, tag)
        finally:
            _builder("rm", container)
    _builder("tag", tag, BASE)


def _builder(*arguments: str, network: bool = True) -> str:
    """Run buildah with a store of its own, so that nobody's images are touched. Returns what it prints."""
    store = cache_directory() / "images"
    # buildah can build without a network only where it can make containers; a namespace around it does the same.
    alone = [] if network or os.geteuid() != 0 else [need("unshare"), "--net"]
    command = [
        *alone,
        need("buildah"),
        f"--root={store / 'root'}",
        f"--runroot={store / 'run'}",
        "--storage-driver=overlay",
        *arguments,
    ]
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise ClusterError(f"`buildah {' '.join(arguments)}` failed:\n{(done.stdout + done.stderr).strip()[-2000:]}")
    return done.stdout
