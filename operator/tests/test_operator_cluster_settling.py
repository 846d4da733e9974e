"""The operator on a real API server, with the rights of the chart's Role: it settles, and then it writes nothing."""

import pytest

from hlserve_operator.keys import ACCESS, pool_key
from hlserve_operator.refs import Ref
from hlserve_operator.resources import CUSTOM_API
from hlserve_operator.testing.real import Namespace, becomes
from hlserve_operator.testing.running import CLASS, KEY, POOL, manifest, quiet, until

pytestmark = pytest.mark.cluster
POOL_REF = Ref(CUSTOM_API, "ServingPool", "chat")


async def filled(namespace: Namespace) -> None:
    """A pool, a class and a key."""
    for text in (POOL, CLASS, KEY):
        await namespace.create(manifest(text))


async def settled(namespace: Namespace) -> bool:
    """Everything of pool, class and key is there."""
    return await namespace.replicas_ready() == 2 and len(await namespace.digests()) == 1


async def test_operator_cluster_second_look_writes_nothing_and_neither_does_a_new_process(namespace: Namespace) -> None:
    await filled(namespace)
    async with namespace.operator() as (operator, way):
        await becomes(lambda: settled(namespace), "all is there")
        await quiet(way, 1.0)
        before, events = way.writes(), way.events_written()
        assert operator.leading is not None
        operator.leading.reconciler.resync([pool_key("chat"), ACCESS])
        await quiet(way, 1.0)
        assert way.writes() == before
        assert way.events_written() == events
    async with namespace.operator() as (second, way):
        await until(lambda: second.leading is not None and "chat" in second.leading.reconciler.pools, "a second run")
        await quiet(way, 1.0)
        assert way.writes() == []
        assert way.events_written() == 0
    print(len(before), before)
