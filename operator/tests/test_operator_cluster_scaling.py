"""Who says how many replicas there are, on a real API server: the pool's scale subresource alone, whoever writes it."""

from typing import Any

import pytest

from hlserve_operator.refs import Ref
from hlserve_operator.testing.real import CHAT, Namespace, becomes
from hlserve_operator.testing.running import POOL, manifest, quiet

pytestmark = pytest.mark.cluster
HPA = Ref("autoscaling/v2", "HorizontalPodAutoscaler", "chat")


def pool(replicas: int | None = None, **spec: Any) -> dict[str, Any]:
    """A pool whose replicas go without a drain; None: it names no number."""
    found = manifest(POOL)
    found["spec"] = {**found["spec"], "drain": {"timeoutSeconds": 0}, **spec}
    del found["spec"]["replicas"]
    if replicas is not None:
        found["spec"]["replicas"] = replicas
    return found


async def run_at(namespace: Namespace, replicas: int) -> None:
    """Waits for so many replicas in spec, in status and as pods."""

    async def there() -> bool:
        found = await namespace.get(CHAT)
        ready = found.get("status", {}).get("readyReplicas")
        return (found["spec"].get("replicas"), ready, len(await namespace.pods())) == (replicas, replicas, replicas)

    await becomes(there, f"{replicas} replicas")


async def scale(namespace: Namespace, replicas: int) -> None:
    """What `kubectl scale` and every autoscaler do."""
    await namespace.patch(CHAT, {"spec": {"replicas": replicas}}, "scale", manager="scaler")


async def test_operator_cluster_what_is_scaled_is_never_set_back(namespace: Namespace) -> None:
    await namespace.create(pool(1))
    async with namespace.operator() as (_, way):
        await run_at(namespace, 1)
        for replicas in (3, 2, 4):
            await scale(namespace, replicas)
            await run_at(namespace, replicas)
        await namespace.patch(CHAT, {"spec": {"rollout": {"maxSurge": 2}}})
        await quiet(way, 1.0)
        await run_at(namespace, 4)
        assert not [path for _, path in way.writes() if path.endswith("/scale")], "the operator wrote none of it"
    async with namespace.operator() as (_, way):
        await quiet(way, 1.0)
        await run_at(namespace, 4)
        scale_now = await namespace.server.call(
            "GET", f"/apis/serving.hlserve.io/v1alpha1/namespaces/{namespace.name}/servingpools/chat/scale"
        )
    assert scale_now["status"]["replicas"] == 4
    found = await namespace.objects("v1", "Pod", scale_now["status"]["selector"])
    assert len(found) == 4, "the selector that an autoscaler counts by"


async def test_operator_cluster_pool_without_replicas_is_seeded_once_and_a_sync_leaves_the_live_count(
    namespace: Namespace,
) -> None:
    """GitOps applies the same manifest, which names no replicas, again and again."""
    wanted = pool(engine={"image": manifest(POOL)["spec"]["engine"]["image"]})
    await namespace.apply(wanted, manager="argocd")
    async with namespace.operator() as (_, way):
        await run_at(namespace, 1)
        await scale(namespace, 3)
        await run_at(namespace, 3)
        for _ in range(3):
            await namespace.apply(wanted, manager="argocd")
        await quiet(way, 1.0)
        await run_at(namespace, 3)
        assert len([path for _, path in way.writes() if path.endswith("/scale")]) == 1


@pytest.mark.parametrize("provider", ["HPA", "KEDA", "External"])
async def test_operator_cluster_turning_autoscaling_on_and_off_keeps_the_live_count(
    namespace: Namespace, provider: str
) -> None:
    await namespace.create(pool(3))
    async with namespace.operator() as (_, way):
        await run_at(namespace, 3)
        uids = {found["metadata"]["uid"] for found in await namespace.pods()}
        scaling = {"provider": provider, "minReplicas": 1, "maxReplicas": 5}
        await namespace.patch(CHAT, {"spec": {"autoscaling": scaling}})
        if provider == "HPA":
            await becomes(lambda: namespace.find(HPA), "the autoscaler")
        await quiet(way, 1.0)
        await run_at(namespace, 3)
        await namespace.patch(CHAT, {"spec": {"autoscaling": None}})
        await becomes(lambda: _is_gone(namespace, HPA), "no autoscaler")
        await quiet(way, 1.0)
        await run_at(namespace, 3)
    assert {found["metadata"]["uid"] for found in await namespace.pods()} == uids


async def test_operator_cluster_autoscaler_of_somebody_else_on_the_same_pool_is_named(namespace: Namespace) -> None:
    await namespace.create(pool(1, autoscaling={"provider": "HPA", "minReplicas": 1, "maxReplicas": 5}))
    async with namespace.operator():
        await becomes(lambda: namespace.find(HPA), "our autoscaler")
        theirs = await namespace.get(HPA)
        spec = {**theirs["spec"], "minReplicas": 2}
        foreign = {"apiVersion": HPA.api_version, "kind": HPA.kind, "metadata": {"name": "theirs"}, "spec": spec}
        await namespace.create(foreign)
        await becomes(lambda: _scaler_reason(namespace, "ConflictingScaler"), "the condition")
        assert "HorizontalPodAutoscaler theirs" in (await namespace.condition(CHAT, "AutoscalerActive"))["message"]
        await namespace.delete(Ref.of(foreign))
        await becomes(lambda: _scaler_reason_other_than(namespace, "ConflictingScaler"), "healing")


async def test_operator_cluster_real_autoscaler_reads_the_pools_scale(namespace: Namespace) -> None:
    """The controller finds the pool, its count and its bounds, and raises a pool that is below its minimum; without a metrics API it
    can do no more, and the condition says so."""
    await namespace.create(pool(1, autoscaling={"provider": "HPA", "minReplicas": 2, "maxReplicas": 5}))
    async with namespace.operator():
        await becomes(lambda: namespace.find(HPA), "our autoscaler")
        await becomes(lambda: _spec_replicas(namespace, 2), "the minimum, by the controller", 60)
        await run_at(namespace, 2)
        found = await namespace.get(HPA)
        able = next(c for c in found["status"]["conditions"] if c["type"] == "AbleToScale")
        assert able["status"] == "True"


async def _is_gone(namespace: Namespace, ref: Ref) -> bool:
    return await namespace.find(ref) is None


async def _scaler_reason(namespace: Namespace, reason: str) -> bool:
    return await namespace.reason(CHAT, "AutoscalerActive") == reason


async def _scaler_reason_other_than(namespace: Namespace, reason: str) -> bool:
    return await namespace.reason(CHAT, "AutoscalerActive") not in ("", reason)


async def _spec_replicas(namespace: Namespace, replicas: int) -> bool:
    return bool((await namespace.get(CHAT))["spec"]["replicas"] == replicas)
