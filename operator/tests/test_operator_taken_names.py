"""Somebody else's ConfigMap or Secret under the name of a document that routers read: it is left alone, and said so."""

from dataclasses import replace
from typing import Any

import pytest

from hlserve_api.routing import ENGINE_CREDENTIALS_SECRET, TABLE_CONFIG_MAP
from hlserve_operator.access.documents import document_refs
from hlserve_operator.access.labels import DOCUMENT_LABEL, is_ours
from hlserve_operator.refs import Ref
from hlserve_operator.resources import CUSTOM_API
from hlserve_operator.testing.access import a_class, a_key, a_pool, carried_out, condition, observed, plan
from hlserve_operator.testing.api_server import Simulated, simulated
from hlserve_operator.testing.running import CLASS, KEY, POOL, manifest, operator_on, until

TABLE = Ref("v1", "ConfigMap", TABLE_CONFIG_MAP)
CREDENTIALS = Ref("v1", "Secret", ENGINE_CREDENTIALS_SECRET)
SHARDS = tuple(ref for ref in document_refs(4) if "keyring" in ref.name)


@pytest.mark.parametrize(
    ("taken", "key_reason", "class_reason"),
    [
        pytest.param({TABLE}, "False/RouterSyncing", "False/NameTaken", id="the table"),
        pytest.param(set(SHARDS), "False/NameTaken", "True/Ready", id="every shard of the keyring"),
        pytest.param({CREDENTIALS}, "False/RouterSyncing", "True/Ready", id="the engines' credentials"),
    ],
)
def test_operator_documents_whose_name_is_taken_are_neither_written_nor_deleted(
    taken: set[Ref], key_reason: str, class_reason: str
) -> None:
    engine = {"apiKeySecretRef": {"name": "crawler-keys", "key": "a"}}
    look = observed(a_key(), pools=(a_pool(engine=engine),), classes=(a_class(),), taken=frozenset(taken))
    actions = plan(look)
    assert {Ref.of(document) for document in actions.documents} == {*document_refs(4)} - taken
    assert not actions.delete
    after = carried_out(look, actions)
    assert condition(after.keys[0], "Ready") == key_reason
    assert condition(after.classes[0], "Ready") == class_reason
    told = [event for event in actions.events if event.reason == "NameTaken"]
    assert len(told) == 1
    assert any(ref.name in told[0].message for ref in taken)
    assert actions.requeue_after_seconds is not None
    assert actions.requeue_after_seconds <= 10, "nothing tells of it when the name is free"
    assert {Ref.of(d) for d in plan(replace(after, taken=frozenset())).documents} == {*document_refs(4)}


def test_operator_key_in_a_shard_that_is_ours_does_not_care_for_another() -> None:
    look = observed(a_key(), classes=(a_class(),))
    (shard,) = {
        Ref.of(document)
        for document in plan(look).documents
        if Ref.of(document) in SHARDS
        and document["data"] != plan(observed()).documents[SHARDS.index(Ref.of(document))]["data"]
    }
    for taken, want in (({shard}, "False/NameTaken"), (set(SHARDS) - {shard}, "False/RouterSyncing")):
        other = replace(look, taken=frozenset(taken))
        assert condition(carried_out(other, plan(other)).keys[0], "Ready") == want


@pytest.mark.parametrize(
    ("metadata", "ours"),
    [
        pytest.param({"labels": {DOCUMENT_LABEL: "table"}}, True, id="our label"),
        pytest.param({"managedFields": [{"manager": "hlserve-operator", "operation": "Apply"}]}, True, id="label lost"),
        pytest.param(
            {"managedFields": [{"manager": "kubectl", "operation": "Apply"}]}, False, id="somebody applied it"
        ),
        pytest.param({}, False, id="nothing of ours"),
    ],
)
def test_operator_knows_its_documents(metadata: dict[str, Any], ours: bool) -> None:
    assert is_ours({"metadata": metadata}) is ours


def a_server(server: Simulated) -> None:
    for text in (POOL, CLASS, KEY):
        server.put(manifest(text))


def reason(server: Simulated, ref: Ref) -> str:
    conditions = server.objects[ref].get("status", {}).get("conditions", ())
    return next((c["reason"] for c in conditions if c["type"] == "Ready"), "")


async def test_operator_leaves_a_foreign_table_alone_and_writes_its_own_once_the_name_is_free() -> None:
    workload = Ref(CUSTOM_API, "WorkloadClass", "interactive")
    foreign = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": TABLE.name},
        "data": {"table.json": "mine"},
    }
    async with simulated() as server:
        a_server(server)
        server.put(foreign)
        async with operator_on(server):
            await until(lambda: reason(server, workload) == "NameTaken", "the condition")
            await until(lambda: SHARDS[0] in server.objects, "the other documents")
            assert server.objects[TABLE]["data"] == {"table.json": "mine"}
            server.remove(TABLE)
            server.change(workload, {"spec": {"priority": 7}})
            await until(lambda: TABLE in server.objects and reason(server, workload) != "NameTaken", "its own")


async def test_operator_takes_nothing_by_force_that_was_not_there_a_moment_ago() -> None:
    forced: dict[str, list[bool]] = {}

    async with simulated() as server:
        a_server(server)

        def note(request: Any) -> None:
            if request.method == "PATCH" and request.path.endswith(f"/configmaps/{TABLE.name}"):
                forced.setdefault(request.path, []).append("force" in request.query)

        server.faults.append(note)
        async with operator_on(server):
            await until(lambda: TABLE in server.objects, "the table")
            server.change(TABLE, {"data": {"table.json": "drift"}})
            await until(lambda: server.objects[TABLE]["data"]["table.json"] != "drift", "repair")
            # Without its label it is ours all the same.
            server.change(TABLE, {"metadata": {"labels": {DOCUMENT_LABEL: None}}})
            await until(lambda: DOCUMENT_LABEL in server.objects[TABLE]["metadata"]["labels"], "its label")
    (found,) = forced.values()
    assert found[0] is False
    assert found[-1] is True
