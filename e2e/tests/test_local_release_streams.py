"""Streams that run while engines, routers and the node change: none is cut before its deadline, and one that is cut says so."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from hlserve_cluster.charts import RELEASE
from hlserve_cluster.release import CLIENT, Release, values
from hlserve_cluster.streams import Stream, streams
from hlserve_cluster.target import Target
from hlserve_local.testing.manifests import MODEL, client_key, pool, secret, workload_class
from hlserve_local.testing.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

NAMESPACE = "hlserve-streams"
DRAIN_SECONDS = 60
"""Longer than any stream here but the one that is to meet its deadline."""
SHORT_SECONDS = 8
"""The drain of the pool whose streams are to meet their deadline."""
TOKENS = 500
"""A reply of some 8 s on the modelled GPU, which is longer than every pause in a drain."""
AT_ONCE = 3
CLASSES = {"chat": "Interactive", "agents": "HumanLess", "short": "Interactive"}
POOLS = {
    name: pool(name, mode, replicas=2, drain={"timeoutSeconds": SHORT_SECONDS if name == "short" else DRAIN_SECONDS})
    for name, mode in CLASSES.items()
}
LOADED = ("chat", "agents")
# A preemptible pool has no budget: a drain may evict all of its engines at once, and new requests are refused until others serve.
POOLS["agents"]["spec"]["throughput"] = {"preemptible": False}
KEYS = {name: f"hls_TEST-{name}-Xv7QpR2mW9sKd4TzLb8Ny3HfGe5Ju6" for name in POOLS}


def release_values(**router: Any) -> dict[str, Any]:
    """Values with which routers wait for their streams as long as engines do."""
    given = values()
    settings = {"drainSeconds": DRAIN_SECONDS, "settleSeconds": 3}
    return {**given, "router": {**given["router"], "settings": settings, **router}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def release(cluster: Target) -> AsyncIterator[Release]:
    """A release with three pools of two engines."""
    made = Release(cluster, NAMESPACE)
    try:
        await made.create(release_values())
        intents = {"Interactive": "Interactive", "HumanLess": "Agent"}
        for name, mode in CLASSES.items():
            await made.kubectl.apply(
                POOLS[name],
                workload_class(name, intents[mode], [name]),
                client_key(name, name),
                secret(name, KEYS[name]),
            )
        await made.ready("servingpool", *POOLS)
        await made.ready("clientkey", *POOLS)
        yield made
    finally:
        await made.delete()


async def through(release: Release, change: Callable[[], Awaitable[None]]) -> dict[str, list[Stream]]:
    """Streams on both loaded pools before, during and after a change; one more round must begin afterwards. By pool."""
    async with AsyncExitStack() as stack:
        held = {
            name: await stack.enter_async_context(
                streams(release.kubectl, CLIENT, release.url, KEYS[name], MODEL, tokens=TOKENS, count=AT_ONCE)
            )
            for name in LOADED
        }
        await change()
        for each in held.values():
            await each.run_at_once(AT_ONCE)
        return {name: await each.end() for name, each in held.items()}


def all_whole(ended: dict[str, list[Stream]]) -> None:
    """Every stream, of each pool, from its first to its last event."""
    for name, found in ended.items():
        assert len(found) >= 2 * AT_ONCE
        assert [stream for stream in found if not stream.whole] == [], name
        assert {stream.pool for stream in found} == {name}


async def replaced(release: Release, names: tuple[str, ...], before: set[str]) -> None:
    """Wait until none of the engines is left and as many others serve."""

    async def done() -> bool:
        now = {uid for name in names for uid in await release.engines(name)}
        return not now & before and len(now) == len(before)

    await eventually(done, "every engine replaced", 240)
    await release.ready("servingpool", *names)


async def engine_uids(release: Release, *names: str) -> set[str]:
    """UIDs of pools' engines."""
    return {uid for name in names for uid in await release.engines(name)}


async def patch(release: Release, name: str, spec: dict[str, Any]) -> None:
    """Change a pool."""
    await release.kubectl.run("patch", "servingpool", name, "--type=merge", f"--patch={json.dumps({'spec': spec})}")


async def test_streams_survive_a_rollout_of_their_engines(release: Release) -> None:
    """Every engine of both pools is replaced by one of a new revision."""
    before = await engine_uids(release, *LOADED)

    async def change() -> None:
        for name in LOADED:
            await patch(release, name, {"engine": {"env": [{"name": "ROLLED", "value": "1"}]}})
        await replaced(release, LOADED, before)

    all_whole(await through(release, change))


async def test_streams_survive_a_scale_down(release: Release) -> None:
    """One of two engines of each pool goes once its streams have ended."""

    async def change() -> None:
        for name in LOADED:
            await release.kubectl.run("scale", f"servingpool/{name}", "--replicas=1")

        async def done() -> bool:
            return len(await engine_uids(release, *LOADED)) == len(LOADED)

        await eventually(done, "one engine of each pool left", 120)

    try:
        all_whole(await through(release, change))
    finally:
        for name in LOADED:
            await release.kubectl.run("scale", f"servingpool/{name}", "--replicas=2")
        await release.ready("servingpool", *LOADED)


async def test_streams_survive_a_drain_of_the_engines_node(release: Release) -> None:
    """`kubectl drain` evicts every engine; the budget lets them go one after another, as their successors come."""
    before = await engine_uids(release, *LOADED)
    nodes = {pod["spec"]["nodeName"] for name in LOADED for pod in (await release.engines(name)).values()}
    (node,) = nodes
    selector = f"--pod-selector=serving.hlserve.io/pool in ({','.join(LOADED)})"

    async def change() -> None:
        drain = asyncio.create_task(
            release.kubectl.run(
                "drain", node, selector, "--delete-emptydir-data", "--timeout=200s", timeout_seconds=220
            )
        )
        try:

            async def cordoned() -> bool:
                return bool((await release.kubectl.get("node", node))["spec"].get("unschedulable"))

            # There is one node only, so the successors have to come back to it.
            await eventually(cordoned, "the node closed", 30)
            await release.kubectl.run("uncordon", node)
            await drain
        finally:
            drain.cancel()
            await release.kubectl.run("uncordon", node)
        await replaced(release, LOADED, before)

    all_whole(await through(release, change))


async def test_streams_survive_a_rollout_of_the_routers(release: Release) -> None:
    """Every router is replaced; an old one stays until its last stream has ended."""
    selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=router"

    async def routers() -> set[str]:
        return {pod["metadata"]["uid"] for pod in await release.kubectl.items("pods", selector)}

    before = await routers()

    async def change() -> None:
        await release.deploy("upgrade", release_values(podAnnotations={"rolled": "1"}))

        async def done() -> bool:
            return not await routers() & before

        await eventually(done, "every router replaced", 120)

    all_whole(await through(release, change))


async def test_a_stream_that_meets_the_drains_deadline_is_cut_then_and_says_so(release: Release) -> None:
    """Not before: the operator waits for as long as the pool says, then the pod's own grace begins."""
    counted = await cut_streams(release)
    async with streams(release.kubectl, CLIENT, release.url, KEYS["short"], MODEL, tokens=20 * TOKENS, count=4) as held:
        started = time.monotonic()
        await release.kubectl.run("scale", "servingpool/short", "--replicas=1")
        await held.have_ended(1)
        elapsed = time.monotonic() - started
        first = held.ended[0]
        assert elapsed >= SHORT_SECONDS, "the engine went before its deadline"
        assert first.status == 200
        assert not first.done, "a reply that was cut does not look complete"
        assert "engine_" in first.error, first
        assert not first.cut, "the message ends properly after the error event"

        async def one_left() -> bool:
            return len(await engine_uids(release, "short")) == 1

        await eventually(one_left, "one engine left", 60)
        assert elapsed < 3 * SHORT_SECONDS + 20
        assert 1 <= len(held.ended) < 4, "streams of the engine that stays go on"
    assert await cut_streams(release) >= counted + 1


COUNT = """
import urllib.request
text = urllib.request.urlopen("http://127.0.0.1:9090/metrics", timeout=10).read().decode()
lines = [line for line in text.splitlines() if line.startswith("hlserve_router_requests_total{") and 'outcome="truncated"' in line]
print(int(sum(float(line.rpartition(" ")[2]) for line in lines)))
"""


async def cut_streams(release: Release) -> int:
    """How many streams the routers have counted as cut."""
    pods = await release.kubectl.items(
        "pods", f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=router"
    )
    names = [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return sum([int(await release.kubectl.python(name, COUNT)) for name in names])


async def test_a_namespace_without_an_operator_can_be_deleted(release: Release) -> None:
    """Nothing of ours waits for an operator that is gone: pools, classes and keys go with their namespace."""
    await release.kubectl.run("scale", f"deployment/{RELEASE}-operator", "--replicas=0")
    selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=operator"
    await release.kubectl.run("wait", "--for=delete", "pods", f"--selector={selector}", "--timeout=60s")
    await release.delete()
