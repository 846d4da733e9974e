"""What somebody else changes in an object of the operator's is set right on a real API server; what is not ours stays."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hlserve_operator.refs import Ref
from hlserve_operator.render.metadata import FIELD_MANAGER, TEMPLATE_ANNOTATION
from hlserve_operator.testing.real import CHAT, Namespace, Object, RefusedError, becomes
from hlserve_operator.testing.running import CLASS, KEY, POOL, manifest

pytestmark = pytest.mark.cluster
KINDS = {
    "Service": ("v1", "Service"),
    "Deployment": ("apps/v1", "Deployment"),
    "NetworkPolicy": ("networking.k8s.io/v1", "NetworkPolicy"),
    "PodDisruptionBudget": ("policy/v1", "PodDisruptionBudget"),
    "HorizontalPodAutoscaler": ("autoscaling/v2", "HorizontalPodAutoscaler"),
}
POOLED = "serving.hlserve.io/pool"
DOCUMENTS = "serving.hlserve.io/routing-document"
CLOSED = {"apiVersion", "kind", "name", "namespace", "uid"}
"""Of an owner or of the object itself: what tells which it is, no field to change."""
Path = tuple[Any, ...]


def leaves(fields: Any, live: Any, at: Path = ()) -> Iterator[Path]:
    """Paths, in the stored object, of the values that our entry in `managedFields` names. An item of a list stands by its index."""
    below = {name: inner for name, inner in fields.items() if name != "."}
    if not below or not isinstance(live, dict | list):
        yield at
        return
    for name, inner in below.items():
        kind, _, rest = name.partition(":")
        if kind == "f" and isinstance(live, dict) and rest in live:
            yield from leaves(inner, live[rest], (*at, rest))
        elif kind == "k" and isinstance(live, list):
            keys = json.loads(rest)
            index = next(n for n, item in enumerate(live) if all(item.get(k) == v for k, v in keys.items()))
            yield from leaves(inner, live[index], (*at, index))


def other(value: Any) -> Any:
    """A value of the same kind that is not this one; None removes what has no other."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str() if value.isdecimal():
            return str(int(value) + 1)
        case str():
            return f"{value}x"
        case _:
            return None


def at(document: Any, path: Path) -> Any:
    """The value at a path; None if there is none."""
    for step in path:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def with_other(live: Object, path: Path) -> list[dict[str, Any]]:
    """A JSON patch that changes one value."""
    pointer = "/" + "/".join(str(step).replace("~", "~0").replace("/", "~1") for step in path)
    value = other(at(live, path))
    return [{"op": "remove", "path": pointer} if value is None else {"op": "replace", "path": pointer, "value": value}]


async def repaired(namespace: Namespace, ref: Ref, path: Path, want: Any) -> None:
    """Waits until a value is as it was."""

    async def again() -> bool:
        return bool(at(await namespace.find(ref), path) == want)

    await becomes(again, f"{ref} {path} is {want!r} again", pause_seconds=0.03)


@pytest.mark.parametrize("kind", KINDS)
async def test_operator_cluster_repairs_each_field_that_is_its_own(namespace: Namespace, kind: str) -> None:
    """Each by itself; what the API server does not let anybody change needs no repair."""
    pool = manifest(POOL)
    pool["spec"]["autoscaling"] = {"provider": "HPA", "minReplicas": 1, "maxReplicas": 3}
    await namespace.create(pool)
    repairs, refused = [], []
    async with namespace.operator():
        await becomes(lambda: _has(namespace, kind), "the object")
        ref = Ref.of((await namespace.objects(*KINDS[kind], POOLED))[0])
        live = await namespace.get(ref)
        entry = next(
            e for e in live["metadata"]["managedFields"] if (e["manager"], e["operation"]) == (FIELD_MANAGER, "Apply")
        )
        for path in leaves(entry["fieldsV1"], live):
            if path[-1] in CLOSED:
                continue
            # The owner's reference tells whose it is: without it the object is a stranger's, and is left alone.
            if "ownerReferences" in path or path[-1] == POOLED:
                continue
            # How many pods there are is a test of its own: those too many are drained first.
            if path == ("spec", "replicas"):
                continue
            # What tells items of a list apart: another one is somebody else's item, beside which ours is again.
            if path[-1] in ("mountPath", "name") and isinstance(path[-2], int):
                continue
            # Of a spec that cannot be read any more what is stored counts as right: no pod moves for it.
            if path[-1] == TEMPLATE_ANNOTATION:
                continue
            try:
                await namespace.json_patch(ref, with_other(live, path))
            except RefusedError:
                refused.append(path)
                continue
            await repaired(namespace, ref, path, at(live, path))
            repairs.append(path)
    least = {"Service": 7, "Deployment": 40, "NetworkPolicy": 5, "PodDisruptionBudget": 5, "HorizontalPodAutoscaler": 9}
    assert len(repairs) >= least[kind], refused


@pytest.mark.parametrize("kind", KINDS)
async def test_operator_cluster_makes_each_child_again_that_is_deleted(namespace: Namespace, kind: str) -> None:
    pool = manifest(POOL)
    pool["spec"]["autoscaling"] = {"provider": "HPA", "minReplicas": 1, "maxReplicas": 3}
    await namespace.create(pool)
    async with namespace.operator():
        await becomes(lambda: _has(namespace, kind), "the object")
        before = (await namespace.objects(*KINDS[kind], POOLED))[0]
        await namespace.delete(Ref.of(before))

        async def anew() -> bool:
            found = await namespace.find(Ref.of(before))
            return found is not None and found["metadata"]["uid"] != before["metadata"]["uid"]

        await becomes(anew, "another one")


async def test_operator_cluster_makes_documents_again_and_repairs_them(namespace: Namespace) -> None:
    for text in (POOL, CLASS, KEY):
        await namespace.create(manifest(text))
    async with namespace.operator():
        await becomes(namespace.settled, "all is there")
        documents = [
            found for kind in ("ConfigMap", "Secret") for found in await namespace.objects("v1", kind, DOCUMENTS)
        ]
        assert len(documents) == 6
        for found in documents:
            (name, text), ref = next(iter(found["data"].items())), Ref.of(found)
            await namespace.patch(ref, {"data": {name: "bm9uZQ=="}})
            await repaired(namespace, ref, ("data", name), text)
            await namespace.delete(ref)
            await repaired(namespace, ref, ("data", name), text)


async def test_operator_cluster_leaves_fields_of_others_alone(namespace: Namespace) -> None:
    await namespace.create(manifest(POOL))
    async with namespace.operator():
        await becomes(lambda: _has(namespace, "Deployment"), "the Deployment")
        for kind in ("Service", "Deployment", "NetworkPolicy", "PodDisruptionBudget"):
            ref = Ref.of((await namespace.objects(*KINDS[kind], POOLED))[0])
            theirs = {"team": "red"}
            await namespace.patch(ref, {"metadata": {"annotations": theirs, "labels": theirs}})
            label = "app.kubernetes.io/component"
            await namespace.patch(ref, {"metadata": {"labels": {label: "other"}}})
            await repaired(namespace, ref, ("metadata", "labels", label), "engine")
            found = await namespace.get(ref)
            assert found["metadata"]["labels"]["team"] == "red"
            assert found["metadata"]["annotations"]["team"] == "red"


async def test_operator_cluster_restores_the_pods_of_a_child_that_somebody_scaled(namespace: Namespace) -> None:
    """Nobody but the pool's scale subresource says how many there are."""
    await namespace.create(manifest(POOL))
    async with namespace.operator():
        await becomes(lambda: _has(namespace, "Deployment"), "the Deployment")
        ref = Ref.of((await namespace.deployments())[0])
        for replicas in (5, 0):
            await namespace.patch(ref, {"spec": {"replicas": replicas}}, "scale")
            await repaired(namespace, ref, ("spec", "replicas"), 2)
    assert (await namespace.get(CHAT))["spec"]["replicas"] == 2


async def _has(namespace: Namespace, kind: str) -> bool:
    return bool(await namespace.objects(*KINDS[kind], POOLED))
