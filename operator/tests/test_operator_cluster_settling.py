"""The operator on a real API server, with the rights of the chart's Role: it settles, and owns only what is its own."""

import asyncio
import base64
import json
from typing import Any

import pytest

from hlserve_operator.keys import ACCESS, pool_key
from hlserve_operator.refs import Ref
from hlserve_operator.render.metadata import FIELD_MANAGER
from hlserve_operator.resources import CUSTOM_API
from hlserve_operator.testing.real import ALICE, CHAT, Namespace, RefusedError, becomes
from hlserve_operator.testing.running import CLASS, POOL, manifest, quiet, until

pytestmark = pytest.mark.cluster
WRITTEN = (
    ("v1", "ConfigMap"), ("v1", "Secret"), ("v1", "Service"), ("apps/v1", "Deployment"), ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"), (CUSTOM_API, "ServingPool"), (CUSTOM_API, "WorkloadClass"), (CUSTOM_API, "ClientKey"),
)  # fmt: skip


def managers(found: dict[str, Any]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Fields by manager, operation and subresource."""
    return {
        (entry["manager"], entry["operation"], entry.get("subresource", "")): entry["fieldsV1"]
        for entry in found["metadata"]["managedFields"]
    }


async def test_operator_cluster_second_look_writes_nothing_and_neither_does_a_new_process(namespace: Namespace) -> None:
    await namespace.fill()
    async with namespace.operator() as (operator, way):
        await becomes(namespace.settled, "all is there")
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


async def test_operator_cluster_owns_its_fields_by_one_name_and_nothing_of_a_users(namespace: Namespace) -> None:
    await namespace.fill()
    async with namespace.operator() as (_, way):
        await becomes(namespace.settled, "all is there")
        await quiet(way, 1.0)
    ours = 0
    for kind in WRITTEN:
        for found in await namespace.objects(*kind):
            by = {entry: fields for entry, fields in managers(found).items() if entry[0] == FIELD_MANAGER}
            if kind[0] == CUSTOM_API:
                assert {entry[2] for entry in by} == {"status"}, (
                    f"only the status of {found['metadata']['name']} is ours"
                )
                assert not found["metadata"].get("finalizers")
                assert not found["metadata"].get("annotations"), "nothing of kopf's is stored"
            elif by:
                assert {entry[2] for entry in by} == {""}
                assert all("f:status" not in fields for fields in by.values())
                once = "Update" if found["metadata"]["name"] == "alice-one" else "Apply"
                assert [entry[1] for entry in by] == [once], found["metadata"]["name"]
            ours += bool(by)
    assert ours == 14, "five Secrets and one that was made, the table, four objects of the pool, and three statuses"


async def test_operator_cluster_takes_over_what_another_name_of_its_own_had_applied(namespace: Namespace) -> None:
    await namespace.fill()
    async with namespace.operator():
        await becomes(namespace.settled, "all is there")
        uids = {pod["metadata"]["uid"] for pod in await namespace.pods()}
    service = Ref("v1", "Service", "chat")
    for ref in (service, Ref.of((await namespace.deployments())[0])):
        found = await namespace.get(ref)
        found["metadata"]["managedFields"] = [
            {**entry, "manager": "earlier"} if entry["manager"] == FIELD_MANAGER else entry
            for entry in found["metadata"]["managedFields"]
        ]
        assert (FIELD_MANAGER, "Apply", "") not in managers(await namespace.replace(found))
    async with namespace.operator():

        async def taken() -> bool:
            live = [await namespace.get(service), *await namespace.deployments()]
            return all((FIELD_MANAGER, "Apply", "") in managers(found) for found in live)

        await becomes(taken, "all is ours again")
        assert {pod["metadata"]["uid"] for pod in await namespace.pods()} == uids


async def test_operator_cluster_300_edits_leave_no_trace_but_the_last(namespace: Namespace) -> None:
    """Of a large object: what stands in it but its spec and status does not grow, and every pod stays."""
    pool = manifest(POOL)
    pool["spec"]["engine"]["env"] = [{"name": f"NAME_{n}", "value": "x" * 1000} for n in range(32)]
    await namespace.create(pool)
    await namespace.create(manifest(CLASS))
    async with namespace.operator() as (_, way):
        await becomes(lambda: _ready(namespace, 2), "two ready")
        uids = {pod["metadata"]["uid"] for pod in await namespace.pods()}
        await quiet(way, 0.5)
        first = await namespace.patch(CHAT, {"spec": {"rollout": {"maxSurge": 1}}})
        for tens in range(30):
            # Each is an edit, in whatever order they come: no two set the same.
            edits = [{"spec": {"rollout": {"maxSurge": 2 + tens * 10 + number}}} for number in range(10)]
            await asyncio.gather(*(namespace.patch(CHAT, edit) for edit in edits))
        generation = first["metadata"]["generation"] + 300

        async def observed() -> bool:
            return bool((await namespace.get(CHAT))["status"]["observedGeneration"] == generation)

        await becomes(observed, "the last edit is observed")
        await quiet(way, 0.5)
        last = await namespace.get(CHAT)
        assert last["metadata"]["generation"] == generation, "no status that was written counts as an edit"
        assert {entry[:2] for entry in managers(last)} == {entry[:2] for entry in managers(first)}
        assert set(last["metadata"]) == set(first["metadata"]), "no annotation, no finalizer"
        assert abs(len(json.dumps(last)) - len(json.dumps(first))) < 500
        for child in await namespace.deployments():
            assert len(child["metadata"]["managedFields"]) <= 3, "ours, and the Deployment controller's"
        assert {pod["metadata"]["uid"] for pod in await namespace.pods()} == uids


async def test_operator_cluster_edits_at_the_same_moment_survive_the_seed(namespace: Namespace) -> None:
    """The operator writes the replicas of a pool that names none, once, while users edit by the version that they read."""
    pool = manifest(POOL)
    del pool["spec"]["replicas"]
    await namespace.create(pool)
    refused = 0

    async def edit(name: str) -> None:
        nonlocal refused
        while True:
            found = await namespace.get(CHAT)
            found["metadata"].setdefault("labels", {})[name] = "kept"
            try:
                await namespace.replace(found)
                return
            except RefusedError as error:
                if error.status != 409:
                    raise
                refused += 1

    async with namespace.operator() as (_, way):
        for number in range(20):
            await edit(f"before-{number}")
        await asyncio.gather(*(edit(f"at-once-{number}") for number in range(20)))

        async def seeded() -> bool:
            return bool((await namespace.get(CHAT))["spec"].get("replicas") == 1)

        await becomes(seeded, "the seed")
        await quiet(way, 0.5)
        scales = [path for _, path in way.writes() if path.endswith("/scale")]
    assert len((await namespace.get(CHAT))["metadata"]["labels"]) == 40
    assert refused > 0, "edits did collide"
    assert len(scales) == 1, "the seed is written once"


async def test_operator_cluster_tells_no_key_anywhere(namespace: Namespace, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    await namespace.fill()
    secret = Ref("v1", "Secret", "alice-one")
    async with namespace.operator() as (operator, _):
        await becomes(namespace.settled, "all is there")
        made = (await namespace.get(secret))["data"]
        await namespace.delete(ALICE)
        await becomes(lambda: _no_digest(namespace), "revoked")
        metrics = operator.metrics.text().decode()
    words = [base64.b64decode(value).decode() for value in made.values()]
    words += made.values()
    assert all(len(word) > 20 for word in words)
    told = [caplog.text, metrics]
    for kind in (*WRITTEN, ("v1", "Event")):
        told += [json.dumps(found) for found in await namespace.objects(*kind) if Ref.of(found) != secret]
    assert len(told) > 15
    assert not [word for word in words for text in told if word in text]


async def _ready(namespace: Namespace, count: int) -> bool:
    return await namespace.replicas_ready() == count


async def _no_digest(namespace: Namespace) -> bool:
    return not await namespace.digests()
