"""Which cluster a test suite may touch: ours, or one that the user named. Never whichever `kubectl` would take."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from hlserve_cluster.errors import ClusterError
from hlserve_cluster.full_profile import CONTEXT
from hlserve_cluster.layout import Layout, state_directory


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster to run a suite against."""

    kubeconfig: Path
    context: str
    ours: bool
    """Whether it is the cluster of `make cluster-up`: its GPUs are simulated, its node may be broken on purpose."""


def choose(context: str, environment: Mapping[str, str] = os.environ) -> Target:
    """The cluster to use.

    Without a context, it is the one of `make cluster-up`, whatever KUBECONFIG says. With one, it is looked up in the
    files of KUBECONFIG, or in `~/.kube/config`. Raises ClusterError if there is none of that name.
    """
    if not context:
        layout = Layout(state_directory("full"))
        if not layout.admin.exists():
            raise ClusterError(
                "No cluster is up and none was named. Run `make cluster-up`, or name a context of your kubeconfig: CONTEXT=NAME."
            )
        return Target(layout.admin, CONTEXT, ours=True)
    listed = environment.get("KUBECONFIG", "")
    files = [Path(part) for part in listed.split(os.pathsep) if part] or [Path.home() / ".kube" / "config"]
    found = {file: _contexts(file) for file in files if file.exists()}
    for file, names in found.items():
        if context in names:
            return Target(file, context, ours=False)
    known = sorted(name for names in found.values() for name in names)
    raise ClusterError(
        f"There is no context {context!r} in {', '.join(map(str, files))}. "
        f"{'It has: ' + ', '.join(known) if known else 'It has none'}."
    )


def _contexts(file: Path) -> list[str]:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        return [str(entry["name"]) for entry in (document or {}).get("contexts") or []]
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise ClusterError(f"{file} is no kubeconfig: {error}") from None
