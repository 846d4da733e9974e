"""What an API server can refuse, delay or keep silent about, with a real one behind it."""

import asyncio
import base64
import threading
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web

from hlserve_operator.refs import Ref
from hlserve_operator.testing.api_server import WRITES, status
from hlserve_operator.testing.real import ALICE, CHAT, Namespace, becomes
from hlserve_operator.testing.running import KEY, POOL, manifest, quiet, until

pytestmark = pytest.mark.cluster
LEASES = "/leases"
ROLE = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles/hlserve-operator"


async def test_operator_cluster_obeys_retry_after(namespace: Namespace) -> None:
    """For two seconds nothing more is asked about what was refused, whatever happens meanwhile."""
    refused: list[float] = []

    def fault(request: web.Request) -> web.StreamResponse | None:
        if (
            request.method not in WRITES
            or LEASES in request.path
            or "/services" not in request.path
            or len(refused) == 3
        ):
            return None
        refused.append(asyncio.get_running_loop().time())
        return status(429, "TooManyRequests", headers={"Retry-After": "2"})

    await namespace.fill()
    way = await namespace.way()
    way.faults.append(fault)
    async with namespace.operator(way):
        await until(lambda: refused, "a refusal")
        for number in range(10):
            await namespace.patch(CHAT, {"metadata": {"labels": {"edit": str(number)}}})
        await becomes(namespace.settled, "all is there")
        await becomes(lambda: namespace.find(Ref("v1", "Service", "chat")), "the Service")
    assert len(refused) == 3
    assert all(later - earlier >= 2.0 for earlier, later in pairwise(refused))


async def test_operator_cluster_gets_over_bursts_of_5xx_and_an_outage_without_growing(namespace: Namespace) -> None:
    """Nine calls of ten fail for a while, then all of them for longer than a Lease lasts."""
    seen, mode = 0, "burst"

    def fault(request: web.Request) -> web.StreamResponse | None:
        nonlocal seen
        seen += 1
        if mode == "away" or (mode == "burst" and seen % 10):
            return status(503 if seen % 2 else 500, "InternalError", "made to fail")
        return None

    await namespace.fill()
    way = await namespace.way()
    async with namespace.operator(way, lease_seconds=6.0) as (operator, _):
        await becomes(namespace.settled, "all is there")
        threads, tasks = threading.active_count(), len(asyncio.all_tasks())
        way.faults.append(fault)
        way.cut_watches()
        calls, pods = len(way.seen), {pod["metadata"]["uid"] for pod in await namespace.pods()}
        for number in range(40):
            await namespace.patch(CHAT, {"metadata": {"labels": {"edit": str(number)}}})
            await asyncio.sleep(0.05)
        mode = "away"
        await namespace.patch(ALICE, {"spec": {"tenant": "blue"}})
        await until(lambda: operator.leading is None, "nobody leads", 15)
        assert len(way.seen) - calls < 800, "it waits longer each time"
        assert threading.active_count() <= threads
        assert len(asyncio.all_tasks()) <= tasks
        assert {pod["metadata"]["uid"] for pod in await namespace.pods()} == pods
        assert len(await namespace.digests()) == 1, "nothing is taken away while nothing can be read"
        mode = ""
        await namespace.delete(ALICE)
        await becomes(lambda: _revoked(namespace), "at work again")
        assert threading.active_count() <= threads + 1


async def test_operator_cluster_notices_a_watch_that_brings_nothing(namespace: Namespace) -> None:
    """Packets are dropped without a word; what happened meanwhile is found when the silence is noticed."""
    await namespace.fill()
    async with namespace.operator(watch_silence_seconds=3.0) as (_, way):
        await becomes(namespace.settled, "all is there")
        way.silent = True
        await namespace.delete(ALICE)
        await becomes(lambda: _revoked(namespace), "the key is revoked", 20)


@pytest.mark.parametrize("when", ["at the start", "at work"])
async def test_operator_cluster_says_which_right_it_lacks_goes_on_with_others_and_heals(
    namespace: Namespace, when: str
) -> None:
    path = ROLE.format(namespace.name)
    whole = await namespace.server.call("GET", path)
    rules = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "patch"]}
        if rule["apiGroups"] == ["policy"]
        else rule
        for rule in whole["rules"]
    ]
    lacking = {"rules": rules}

    async def role(body: dict[str, Any]) -> None:
        await namespace.server.call("PATCH", path, body, content="application/merge-patch+json")

    budget = Ref("policy/v1", "PodDisruptionBudget", "chat")
    if when == "at the start":
        await role(lacking)
        await namespace.create(manifest(POOL))
    async with namespace.operator() as (_, way):
        if when == "at work":
            await namespace.create(manifest(POOL))
            await becomes(lambda: namespace.find(budget), "the budget")
            await quiet(way, 0.5)
            await role(lacking)
            await asyncio.sleep(1)
            await namespace.delete(budget)
        await becomes(lambda: _reason_is(namespace, "PermissionDenied"), "the condition")
        message = (await namespace.condition(CHAT, "Ready"))["message"]
        assert "poddisruptionbudgets" in message
        assert "patch" in message
        await namespace.create(
            {**manifest(KEY), "spec": {**manifest(KEY)["spec"], "workloadClassRef": {"name": "none"}}}
        )
        await becomes(lambda: namespace.find(Ref("v1", "Secret", "alice-one")), "others are served")
        assert await namespace.replicas_ready() == 2 or len(await namespace.deployments()) == 1
        await role({"rules": whole["rules"]})
        await becomes(lambda: namespace.find(budget), "the budget, once it may", 60)
        await becomes(lambda: _reason_is_not(namespace, "PermissionDenied"), "healing")
        events = [e for e in await namespace.objects("v1", "Event") if e["reason"] == "PermissionDenied"]
        assert len(events) == 1, [e["message"] for e in events]


async def test_operator_cluster_a_secret_that_goes_and_comes_back(namespace: Namespace) -> None:
    """Its key stops, others work, a condition says so, and with the Secret the key is back."""
    named = manifest(KEY, "bob")
    named["spec"]["credentials"] = [{"id": "one", "secretRef": {"name": "bobs", "key": "key"}}]
    value = base64.b64encode(b"hls_" + b"Zk3q" * 12).decode()
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bobs"}, "data": {"key": value}}
    bob, ref = Ref.of(named), Ref("v1", "Secret", "bobs")
    await namespace.fill()
    await namespace.create(named)
    await namespace.create(secret)
    async with namespace.operator():
        await becomes(lambda: _digests_are(namespace, 2), "both keys")
        both = await namespace.digests()
        flipped = (await namespace.condition(bob, "CredentialsResolved"))["lastTransitionTime"]
        await namespace.delete(ref)
        await becomes(lambda: _digests_are(namespace, 1), "one key")
        await becomes(lambda: _has_reason(namespace, bob, "CredentialsResolved", "SecretMissing"), "the condition")
        assert (await namespace.condition(bob, "CredentialsResolved"))["lastTransitionTime"] >= flipped
        await namespace.create(secret)
        await becomes(lambda: _digests_are(namespace, 2), "both again")
        assert await namespace.digests() == both
        await becomes(lambda: _is_true(namespace, bob, "CredentialsResolved"), "the reason is gone")


async def _revoked(namespace: Namespace) -> bool:
    return not await namespace.digests()


async def _digests_are(namespace: Namespace, count: int) -> bool:
    return len(await namespace.digests()) == count


async def _reason_is(namespace: Namespace, reason: str) -> bool:
    return await namespace.reason(CHAT, "Ready") == reason


async def _reason_is_not(namespace: Namespace, reason: str) -> bool:
    return await namespace.reason(CHAT, "Ready") not in ("", reason)


async def _has_reason(namespace: Namespace, ref: Ref, type_: str, reason: str) -> bool:
    return await namespace.reason(ref, type_) == reason


async def _is_true(namespace: Namespace, ref: Ref, type_: str) -> bool:
    return bool((await namespace.condition(ref, type_)).get("status") == "True")
