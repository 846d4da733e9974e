"""The operator dies after each of its writes in turn, on a real API server: the next one finishes, and makes nothing twice."""

import asyncio
from typing import Any

import pytest

from hlserve_operator.keys import ACCESS
from hlserve_operator.refs import Ref
from hlserve_operator.resources import CUSTOM_API
from hlserve_operator.testing.api_server import nth_write_fails
from hlserve_operator.testing.real import ALICE, CHAT, Namespace, becomes
from hlserve_operator.testing.running import quiet

pytestmark = pytest.mark.cluster
LEASE = Ref("coordination.k8s.io/v1", "Lease", "hlserve-operator")
SHARED = (("v1", "Service"), ("networking.k8s.io/v1", "NetworkPolicy"), ("policy/v1", "PodDisruptionBudget"))
WRITES = 16
"""Of the first reconciles of what `Namespace.fill` makes; statuses that follow the pods aside."""


async def dies_after(namespace: Namespace, writes: int) -> None:
    """An operator whose process ends when it has done so many writes, before it hears of the last one."""
    way = await namespace.way()
    way.dead_after_writes = writes
    async with namespace.operator(way, call_seconds=1.0):
        async with asyncio.timeout(30):
            await way.died.wait()


async def as_one_made_it(namespace: Namespace) -> None:
    """Each object is there once, and none that nothing wants."""
    pool, key = await namespace.get(CHAT), await namespace.get(ALICE)
    uid = pool["metadata"]["uid"]
    children = await namespace.deployments()
    for kind in SHARED:
        children += await namespace.objects(*kind, "serving.hlserve.io/pool")
    assert sorted(child["kind"] for child in children) == sorted(["Deployment", *(kind for _, kind in SHARED)])
    assert all([owner["uid"] for owner in c["metadata"]["ownerReferences"]] == [uid] for c in children)
    assert len(await namespace.pods()) == 2
    made = await namespace.objects("v1", "Secret", "serving.hlserve.io/client-key-uid")
    assert [secret["metadata"]["name"] for secret in made] == ["alice-one"]
    assert made[0]["metadata"]["ownerReferences"][0]["uid"] == key["metadata"]["uid"]
    assert len(await namespace.digests()) == 1
    assert len(await namespace.objects("v1", "Secret", "serving.hlserve.io/routing-document")) == 5


@pytest.mark.parametrize("writes", range(1, WRITES + 1))
async def test_operator_cluster_dies_after_a_write_and_the_next_one_finishes(namespace: Namespace, writes: int) -> None:
    await namespace.fill()
    await dies_after(namespace, writes)
    # The dead one did not give its Lease away; that it runs out is a test of its own.
    await namespace.delete(LEASE)
    async with namespace.operator() as (_, way):
        await becomes(namespace.settled, "all is there")
        await quiet(way, 0.5)
        await as_one_made_it(namespace)


async def test_operator_cluster_dies_in_the_midst_of_a_rollout_and_the_next_one_finishes(namespace: Namespace) -> None:
    """After one write, then after two more, then three: whoever dies in the midst of it leaves something to go on from."""
    await namespace.fill()
    await namespace.patch(CHAT, {"spec": {"drain": {"timeoutSeconds": 0}, "replicas": 1}})
    async with namespace.operator():
        await becomes(lambda: _one_of_one_revision(namespace), "one ready")
        first = (await namespace.deployments())[0]["metadata"]["name"]
    await namespace.patch(CHAT, {"spec": {"engine": {"extraArgs": ["--dtype", "bfloat16"]}}})
    deaths = 0
    while not await _one_of_one_revision(namespace, other_than=first):
        way = await namespace.way()
        way.dead_after_writes = deaths + 1
        async with namespace.operator(way, call_seconds=1.0):
            done = asyncio.create_task(way.died.wait())
            # The last one may find nothing left to write.
            await asyncio.wait([done], timeout=15)
            died = done.done()
            done.cancel()
        if not died:
            break
        deaths += 1
        await namespace.delete(LEASE)
    async with namespace.operator():
        await becomes(lambda: _one_of_one_revision(namespace, other_than=first), "the new revision alone")
    assert deaths >= 3
    assert len(await namespace.pods()) == 1


async def test_operator_cluster_each_write_that_fails_is_done_again(namespace: Namespace) -> None:
    """In one process: the first, the second, and so on, is answered with an error."""
    await namespace.fill()
    way = await namespace.way()
    for number in range(1, WRITES + 1, 2):
        way.faults.append(nth_write_fails(number))
    async with namespace.operator(way):
        await becomes(namespace.settled, "all is there")
        await quiet(way, 1.5)
    assert sum(each.status == 500 for each in way.seen) >= WRITES // 2
    await as_one_made_it(namespace)


async def test_operator_cluster_late_watches_make_nothing_twice(namespace: Namespace) -> None:
    """All that watches tell of comes seconds late: what is made is told from fresh reads."""
    await namespace.fill()
    way = await namespace.way()
    way.delay_seconds = 3.0
    async with namespace.operator(way):
        await becomes(namespace.settled, "all is there")
        await namespace.patch(CHAT, {"spec": {"replicas": 4}})

        async def four() -> bool:
            return await namespace.replicas_ready() == 4

        seen: list[int] = []

        async def counted() -> bool:
            seen.append(len(await namespace.pods()))
            return await four()

        await becomes(counted, "four ready")
        assert max(seen) <= 4
        await namespace.patch(CHAT, {"spec": {"replicas": 2}})
        await quiet(way, 1.0)
    assert len(await namespace.deployments()) == 1
    assert len(await namespace.objects("v1", "Secret", "serving.hlserve.io/client-key-uid")) == 1


async def test_operator_cluster_old_news_after_new_change_nothing(namespace: Namespace) -> None:
    """Each pod's first event, from when it was pending, comes once more after each later one."""
    first: dict[str, dict[str, Any]] = {}
    repeated = 0

    def lines(path: str, event: dict[str, Any]) -> list[dict[str, Any]]:
        nonlocal repeated
        if not path.endswith("/pods") or event["type"] not in ("ADDED", "MODIFIED"):
            return [event]
        uid = event["object"]["metadata"]["uid"]
        if uid not in first:
            first[uid] = event
            return [event]
        repeated += 1
        return [event, {**first[uid], "type": "MODIFIED"}]

    await namespace.fill()
    way = await namespace.way()
    way.lines = lines
    async with namespace.operator(way) as (operator, _):
        await becomes(namespace.settled, "all is there")
        await quiet(way, 1.0)
        assert repeated >= 4
        assert operator.leading is not None
        operator.leading.reconciler.resync([ACCESS])
        await quiet(way, 0.5)
        assert (await namespace.get(CHAT))["status"]["readyReplicas"] == 2
        ready = await namespace.condition(Ref(CUSTOM_API, "ServingPool", "chat"), "EngineReady")
        assert ready["status"] == "True"


async def _one_of_one_revision(namespace: Namespace, other_than: str = "") -> bool:
    names = [child["metadata"]["name"] for child in await namespace.deployments()]
    pods = await namespace.pods()
    ready = await namespace.replicas_ready()
    return len(names) == 1 and names[0] != other_than and len(pods) == 1 and ready == 1
