"""The repository's charts as Helm reads them."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from hlserve_cluster import programs
from hlserve_cluster.errors import ClusterError
from hlserve_cluster.layout import REPOSITORY

CHARTS: Final = REPOSITORY / "charts"
RELEASE: Final = "hlserve"
NAMESPACE: Final = "serving"
VERSIONS: Final = (4, 3)
"""Major versions of Helm that charts must work with."""

Values = Mapping[str, Any]
Manifest = dict[str, Any]


class ChartError(ClusterError):
    """Helm refuses; the message is what it says."""


def render(
    values: Values | None = None,
    *,
    chart: str = "hlserve",
    release: str = RELEASE,
    version: int = 4,
    apis: Sequence[str] = (),
) -> tuple[Manifest, ...]:
    """The objects of a chart, in Helm's order. `apis`: what the cluster serves besides Kubernetes. Raises ChartError."""
    known = [f"--api-versions={api}" for api in apis]
    text = helm(
        "template", release, str(CHARTS / chart), f"--namespace={NAMESPACE}", *known, values=values, version=version
    )
    return tuple(document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document)


def helm(
    *arguments: str, values: Values | None = None, version: int = 4, kubeconfig: str | os.PathLike[str] = os.devnull
) -> str:
    """What Helm prints. `values` go to it as a file; it knows of no cluster but that of `kubeconfig`. Raises ChartError with its words."""
    given = [] if values is None else ["--values=-"]
    done = subprocess.run(
        [str(programs.helm(version)), *arguments, *given],
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
        env={**os.environ, "KUBECONFIG": os.fspath(kubeconfig)},
        check=False,
    )
    if done.returncode:
        raise ChartError((done.stderr + done.stdout).strip())
    return done.stdout


def find(manifests: Sequence[Manifest], kind: str, name: str) -> Manifest:
    """The object of a kind and name. Raises KeyError if there is none."""
    for manifest in manifests:
        if (manifest["kind"], manifest["metadata"]["name"]) == (kind, name):
            return manifest
    raise KeyError(f"there is no {kind} {name}")


def pods(manifests: Sequence[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """The spec of every pod that the objects make, by the name of its maker."""
    for manifest in manifests:
        if manifest["kind"] == "Pod":
            yield manifest["metadata"]["name"], manifest["spec"]
        elif manifest["kind"] in ("Deployment", "StatefulSet"):
            yield manifest["metadata"]["name"], manifest["spec"]["template"]["spec"]


def with_value(values: Values, path: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of values with one of them changed."""
    first, *rest = path
    inner = values.get(first)
    below = with_value(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value
    return {**values, first: below}


def other_value(schema: Mapping[str, Any], default: Any) -> Any:
    """A value other than `default` that a schema allows."""
    if "enum" in schema:
        return next(each for each in reversed(schema["enum"]) if each != default)
    match default:
        case bool():
            return not default
        case int():
            return default + 1 if default + 1 <= schema.get("maximum", default + 1) else default - 1
        case str():
            return _other_text(schema.get("pattern", ""), default)
        case list():
            item = schema["items"]
            return ["other.example"] if item["type"] == "string" else [{"name": "other"}]
        case _:
            fixed = schema.get("additionalProperties") is False
            return {**default, "requests": {"cpu": "7"}} if fixed else {"other": "value"}


def _other_text(pattern: str, default: str) -> str:
    if "sha256" in pattern:
        return "sha256:" + "1" * 64
    if "://" in pattern:
        return "valkey://other.example:6379/1" if "valkey" in pattern else "https://other.example"
    return f"{default}-other" if default else "other"
