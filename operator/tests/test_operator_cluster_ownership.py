"""Deleting on a real API server with its own garbage collector: what goes, what stays, and that nothing hangs; and what is a stranger's."""

from typing import Any

import pytest

from hlserve_operator.refs import Ref
from hlserve_operator.testing.real import ALICE, CHAT, Namespace, Object, RefusedError, becomes
from hlserve_operator.testing.running import POOL, manifest, quiet

pytestmark = pytest.mark.cluster
POOLED = "serving.hlserve.io/pool"
KINDS = (
    ("apps/v1", "Deployment"), ("v1", "Service"), ("networking.k8s.io/v1", "NetworkPolicy"), ("policy/v1", "PodDisruptionBudget"),
    ("v1", "Pod"),
)  # fmt: skip
SERVICE = Ref("v1", "Service", "chat")
COLLECTED_SECONDS = 90
"""The garbage collector looks for new kinds every 30 s, and ours are new to a server that has just started."""


async def children(namespace: Namespace) -> list[Object]:
    """Everything that carries the pool's label."""
    return [found for kind in KINDS for found in await namespace.objects(*kind, POOLED)]


async def nothing_left(namespace: Namespace) -> bool:
    """No child and no pod."""
    return not await children(namespace)


@pytest.mark.parametrize("operator", ["at work", "away"])
@pytest.mark.parametrize("policy", ["Background", "Foreground"])
async def test_operator_cluster_children_go_with_their_pool(namespace: Namespace, policy: str, operator: str) -> None:
    """No finalizer holds the pool, so it also goes while no operator runs."""
    await namespace.fill()
    async with namespace.operator() as (_, way):
        await becomes(namespace.settled, "all is there")
        await quiet(way, 0.5)
        if operator == "at work":
            await namespace.delete(CHAT, policy)
            await becomes(lambda: nothing_left(namespace), "all is collected", COLLECTED_SECONDS)
            await becomes(lambda: _no_pool_in_the_table(namespace), "the table")
            await quiet(way, 0.5)
            assert await nothing_left(namespace)
    if operator == "away":
        await namespace.delete(CHAT, policy)
        await becomes(lambda: nothing_left(namespace), "all is collected", COLLECTED_SECONDS)
    await becomes(lambda: _gone(namespace, CHAT), "the pool is gone")


async def test_operator_cluster_orphans_stay_and_are_no_part_of_a_pool_of_the_same_name(namespace: Namespace) -> None:
    """Whoever orphans them keeps them running; a new pool says that its names are taken until they are gone."""
    await namespace.create(manifest(POOL))
    async with namespace.operator():
        await becomes(lambda: _ready(namespace), "two ready")
        uids = {found["metadata"]["uid"] for found in await children(namespace)}
        await namespace.delete(CHAT, "Orphan")
        await becomes(lambda: _gone(namespace, CHAT), "the pool is gone")
        await namespace.create(manifest(POOL))
        await becomes(lambda: _ready_reason(namespace, "NameTaken"), "the condition")
        live = {found["metadata"]["uid"] for found in await children(namespace)}
        assert uids <= live, "none of them was taken over or deleted"
        for found in await children(namespace):
            owners = found["metadata"].get("ownerReferences", ())
            if found["kind"] != "Pod" and found["metadata"]["uid"] in uids:
                assert not owners
                await namespace.delete(Ref.of(found))
        await becomes(lambda: _ready(namespace), "two ready again")


async def test_operator_cluster_object_of_somebody_else_is_refused_and_left_as_it_is(namespace: Namespace) -> None:
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "chat"}, "spec": {"ports": [{"port": 1}]}}
    stored = await namespace.create(theirs)
    await namespace.create(manifest(POOL))
    async with namespace.operator() as (_, way):
        await becomes(lambda: _ready_reason(namespace, "NameTaken"), "the condition")
        condition = await namespace.condition(CHAT, "Ready")
        assert "Service chat exists already and does not belong to this pool" in condition["message"]
        await quiet(way, 0.5)
        assert await namespace.get(SERVICE) == stored
        events = [e for e in await namespace.objects("v1", "Event") if e["reason"] == "NameTaken"]
        assert len(events) == 1
        await namespace.delete(SERVICE)
        await becomes(lambda: _owned(namespace, SERVICE), "the pool's own Service")
        await becomes(lambda: _ready_reason_other_than(namespace, "NameTaken"), "healing")


@pytest.mark.parametrize("made", ["ClientKey", "its credential"])
async def test_operator_cluster_secret_that_was_made_goes_with_its_key(namespace: Namespace, made: str) -> None:
    """With the ClientKey by the garbage collector, with its credential by the operator; one that a user made stays."""
    secret = Ref("v1", "Secret", "alice-one")
    users = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "alice-two"}, "data": {}}
    await namespace.create(users)
    await namespace.fill()
    async with namespace.operator():
        await becomes(namespace.settled, "all is there")
        if made == "ClientKey":
            await namespace.delete(ALICE)
        else:
            credentials = [{"id": "two", "secretRef": {"name": "alice-two", "key": "key"}}]
            await namespace.patch(ALICE, {"spec": {"credentials": credentials}})
        await becomes(lambda: _gone(namespace, secret), "the Secret is gone")
        await becomes(lambda: _revoked(namespace), "the key is revoked")
    assert await namespace.find(Ref("v1", "Secret", "alice-two")) is not None


async def test_operator_cluster_namespace_goes_without_an_operator(namespace: Namespace) -> None:
    """Nothing of ours holds it up."""
    await namespace.fill()
    async with namespace.operator():
        await becomes(namespace.settled, "all is there")
    path = f"/api/v1/namespaces/{namespace.name}"
    await namespace.server.call("DELETE", path)

    async def gone() -> bool:
        try:
            await namespace.server.call("GET", path)
        except RefusedError as error:
            return error.status == 404
        return False

    await becomes(gone, "the namespace is gone", 60)


async def test_operator_cluster_namespace_goes_beneath_a_working_operator(namespace: Namespace) -> None:
    """It makes nothing anew in one that is being deleted."""
    await namespace.fill()
    async with namespace.operator():
        await becomes(namespace.settled, "all is there")
        path = f"/api/v1/namespaces/{namespace.name}"
        await namespace.server.call("DELETE", path)

        async def gone() -> bool:
            try:
                found = await namespace.server.call("GET", path)
            except RefusedError as error:
                return error.status == 404
            # The operator's own rights go with it, and with them whatever it could do.
            return not found["spec"].get("finalizers")

        await becomes(gone, "the namespace is gone", 60)


async def _ready(namespace: Namespace) -> bool:
    return await namespace.replicas_ready() == 2


async def _gone(namespace: Namespace, ref: Ref) -> bool:
    return await namespace.find(ref) is None


async def _owned(namespace: Namespace, ref: Ref) -> bool:
    found: Any = await namespace.find(ref)
    return found is not None and bool(found["metadata"].get("ownerReferences"))


async def _ready_reason(namespace: Namespace, reason: str) -> bool:
    return await namespace.reason(CHAT, "Ready") == reason


async def _ready_reason_other_than(namespace: Namespace, reason: str) -> bool:
    return await namespace.reason(CHAT, "Ready") not in ("", reason)


async def _no_pool_in_the_table(namespace: Namespace) -> bool:
    table = await namespace.table()
    return table is not None and not table["pools"]


async def _revoked(namespace: Namespace) -> bool:
    return not await namespace.digests()
