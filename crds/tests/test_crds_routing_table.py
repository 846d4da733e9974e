"""Pools and classes compile to the routing table: defaults by intent, targets by name and label, stable generations."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from hlserve_api.compile import (
    CLASS_DEFAULTS,
    PoolRuntime,
    TargetProblemReason,
    compile_class,
    compile_table,
    document_json,
    mode_mismatches,
    overcommitments,
    resolve_targets,
)
from hlserve_api.compile.canonical import generation_of
from hlserve_api.generate.pages import document_schema
from hlserve_api.routing import (
    Endpoint,
    Intent,
    PriorityOrder,
    RoutingTable,
    ShardDigest,
    UnsupportedSchemaVersionError,
    WrongDocumentError,
    parse_engine_credentials,
    parse_keyring,
    parse_table,
)
from hlserve_api.testing import a_human_less_pool, a_workload_class, an_interactive_pool, changed
from hlserve_api.v1alpha1 import ServingPool, WorkloadClass

Manifest = dict[str, Any]


def _pool(manifest: Manifest, **labels: str) -> ServingPool:
    return ServingPool.model_validate(changed(manifest, "metadata.labels", labels) if labels else manifest)


def _class(manifest: Manifest) -> WorkloadClass:
    return WorkloadClass.model_validate(manifest)


CHAT, AGENTS = _pool(an_interactive_pool(), gpu="h200"), _pool(a_human_less_pool(), gpu="h200", tier="bulk")
POOLS = (CHAT, AGENTS)


@pytest.mark.parametrize(
    ("intent", "timeouts", "ttl_milliseconds"),
    [
        (Intent.INTERACTIVE, (600, 60, 2000, 15, 5, 30), 30_000),
        (Intent.AGENT, (3600, 600, 5000, 15, 30, 600), 540_000),
        (Intent.BATCH, (21_600, 1800, 5000, 15, 60, 1800), 3_600_000),
    ],
)
def test_defaults_follow_the_intent(intent: Intent, timeouts: tuple[int, ...], ttl_milliseconds: int) -> None:
    route = compile_class(_class(a_workload_class(intent=intent.value)), POOLS)
    assert tuple(route.timeouts.model_dump().values()) == timeouts
    assert route.queue.ttl_milliseconds == ttl_milliseconds
    assert route.timeouts == CLASS_DEFAULTS[intent].timeouts


def test_an_interactive_class_waits_no_longer_than_its_pools_ttft() -> None:
    route = compile_class(_class(a_workload_class("chat", "Interactive", "chat")), POOLS)
    assert route.queue.ttl_milliseconds == 1000


def test_an_interactive_class_waits_as_long_as_its_slowest_pool_allows() -> None:
    slow = _pool(changed(an_interactive_pool("slow"), "spec.slo.ttftMilliseconds", 5000))
    targets = [{"name": name, "poolRef": {"name": name}} for name in ("chat", "slow")]
    manifest = changed(a_workload_class("chat", "Interactive"), "spec.targets", targets)
    assert compile_class(_class(manifest), [CHAT, slow]).queue.ttl_milliseconds == 5000


EVERY_FIELD_OF_A_CLASS: Manifest = {
    "priority": 7,
    "spill": {
        "enterQueueWaitMilliseconds": 11,
        "leaveQueueWaitMilliseconds": 10,
        "whenUnavailable": False,
    },
    "queue": {"maxDepth": 12, "maxBytes": 13, "ttlMilliseconds": 14},
    "share": {"minPercent": 15, "maxPercent": 16},
    "limits": {"maxInputTokens": 17, "maxOutputTokens": 18, "maxConcurrentPerClient": 19},
    "timeouts": {
        "totalSeconds": 20,
        "silenceSeconds": 21,
        "peekMilliseconds": 22,
        "pingSeconds": 23,
        "retryCutoffSeconds": 24,
        "startSeconds": 25,
    },
}


def test_a_class_route_carries_every_field_of_the_class() -> None:
    manifest = a_workload_class()
    own = {**EVERY_FIELD_OF_A_CLASS, "fairness": {"by": "Tenant"}, "headerOverride": "Deny"}
    manifest["spec"] = {**manifest["spec"], **own}
    route = compile_class(_class(manifest), POOLS)
    assert route.model_dump(mode="json", by_alias=True) == {
        "name": "agent",
        "intent": "Agent",
        "targets": [{"pool": "agents", "role": "Primary", "weight": 1}],
        **EVERY_FIELD_OF_A_CLASS,
        "fairness": "Tenant",
        "headerOverride": "Deny",
    }


def test_a_value_that_is_given_wins() -> None:
    manifest = changed(changed(a_workload_class(), "spec.queue.ttlMilliseconds", 7), "spec.timeouts.silenceSeconds", 9)
    route = compile_class(_class(manifest), POOLS)
    assert (route.queue.ttl_milliseconds, route.timeouts.silence_seconds, route.timeouts.total_seconds) == (7, 9, 3600)


@pytest.mark.parametrize(("own", "want"), [(None, 1200), (60, 60)])
def test_a_pools_request_timeout_is_only_the_default(own: int | None, want: int) -> None:
    pool = _pool(changed(a_human_less_pool(), "spec.throughput.requestTimeoutSeconds", 1200))
    manifest = a_workload_class() if own is None else changed(a_workload_class(), "spec.timeouts.totalSeconds", own)
    assert compile_class(_class(manifest), [pool]).timeouts.total_seconds == want


@pytest.mark.parametrize(("spill", "want"), [({}, (1000, 500)), ({"enterQueueWaitMilliseconds": 300}, (300, 150)),
                                             ({"leaveQueueWaitMilliseconds": 0}, (1000, 0))])  # fmt: skip
def test_spill_leaves_at_half_unless_told(spill: Manifest, want: tuple[int, int]) -> None:
    route = compile_class(_class(changed(a_workload_class(), "spec.spill", spill)), POOLS)
    assert (route.spill.enter_queue_wait_milliseconds, route.spill.leave_queue_wait_milliseconds) == want


def test_selector_takes_every_pool_with_all_its_labels() -> None:
    targets = [
        {"name": "bulk", "poolSelector": {"matchLabels": {"gpu": "h200", "tier": "bulk"}}},
        {"name": "rest", "poolSelector": {"matchLabels": {"gpu": "h200"}}, "role": "Spill", "weight": 3},
    ]
    found, problems = resolve_targets(_class(changed(a_workload_class(), "spec.targets", targets)), POOLS)
    assert [(target.pool, target.role, target.weight) for target in found] == [
        ("agents", "Primary", 1),
        ("chat", "Spill", 3),
    ]
    assert problems == ()


def test_a_pool_named_twice_is_primary_if_any_target_says_so() -> None:
    targets = [
        {"name": "spill", "poolSelector": {"matchLabels": {"gpu": "h200"}}, "role": "Spill"},
        {"name": "main", "poolRef": {"name": "agents"}, "weight": 5},
    ]
    found, _ = resolve_targets(_class(changed(a_workload_class(), "spec.targets", targets)), POOLS)
    assert {target.pool: (target.role, target.weight) for target in found} == {
        "agents": ("Primary", 5),
        "chat": ("Spill", 1),
    }


@pytest.mark.parametrize("target", [{"poolRef": {"name": "gone"}}, {"poolSelector": {"matchLabels": {"gpu": "none"}}}])
def test_a_target_without_a_pool_is_reported_and_left_out(target: Manifest) -> None:
    manifest = changed(a_workload_class(), "spec.targets", [{"name": "lost", **target}])
    found, problems = resolve_targets(_class(manifest), POOLS)
    assert found == ()
    assert [(problem.target, problem.reason) for problem in problems] == [("lost", TargetProblemReason.POOL_NOT_FOUND)]
    assert compile_class(_class(manifest), POOLS).targets == ()


SPILLING_BATCH = changed(
    a_workload_class("batch", "Batch"),
    "spec.targets",
    [
        {"name": "main", "poolRef": {"name": "agents"}},
        {"name": "more", "poolRef": {"name": "chat"}, "role": "Spill"},
    ],
)


@pytest.mark.parametrize(
    ("manifest", "want"),
    [
        (SPILLING_BATCH, ["more"]),
        (changed(SPILLING_BATCH, "spec.share.maxPercent", 99), []),
        (changed(SPILLING_BATCH, "spec.intent", "Agent"), []),
        (changed(SPILLING_BATCH, "spec.targets.1.role", "Primary"), []),
        (changed(SPILLING_BATCH, "spec.targets.1.poolRef.name", "agents"), []),
    ],
    ids=["Batch may fill chat", "chat keeps a part", "agents may", "a pool of its own", "no Interactive pool"],
)
def test_a_batch_class_may_not_fill_a_chat_pool_that_it_spills_into(manifest: Manifest, want: list[str]) -> None:
    problems = list(mode_mismatches(_class(manifest), POOLS))
    assert [problem.target for problem in problems] == want
    assert all(problem.reason is TargetProblemReason.MODE_MISMATCH for problem in problems)


@pytest.mark.parametrize(("promised", "want"), [((60, 40), []), ((60, 41), ["agents"])], ids=["all of it", "more"])
def test_classes_may_not_be_promised_more_than_the_whole_pool(promised: tuple[int, int], want: list[str]) -> None:
    classes = [
        _class(changed(a_workload_class(name), "spec.share.minPercent", percent))
        for name, percent in zip(("agent", "batch"), promised, strict=True)
    ]
    found = list(overcommitments(classes, POOLS))
    assert [each.pool for each in found] == want
    assert all("60 (agent) + 41 (batch) = 101 percent" in each.message for each in found)


def _table(*pools: tuple[ServingPool, PoolRuntime]) -> RoutingTable:
    classes = [_class(a_workload_class()), _class(a_workload_class("chat", "Interactive", "chat"))]
    return compile_table(pools, classes, shards=[ShardDigest(name="hlserve-keyring-0", digest="0" * 64)])


RUNTIME = PoolRuntime(
    max_in_flight=25,
    in_flight_tokens=90_000,
    kv_tokens=400_000,
    queue_ttl_milliseconds=800,
    context_length=32_768,
    priority_order=PriorityOrder.HIGHER_FIRST,
    endpoints=(Endpoint(url="http://10.0.0.7:30000"),),
    draining=("b", "a"),
)


def test_pool_route_joins_spec_and_runtime() -> None:
    manifest = changed(an_interactive_pool(), "spec.responseStore", "Enabled")
    manifest = changed(changed(manifest, "spec.model.aliases", ["small"]), "spec.allowedMediaDomains", ["img.example"])
    agents, chat = _table((_pool(manifest), RUNTIME), (AGENTS, PoolRuntime(service="agents", foreign=True))).pools
    assert chat.model_dump(mode="json", by_alias=True) == {
        "name": "chat",
        "mode": "Interactive",
        "model": "llama-3.1-8b",
        "aliases": ["small"],
        "service": None,
        "endpoints": [{"url": "http://10.0.0.7:30000", "id": "", "name": ""}],
        "priorityOrder": "HigherFirst",
        "maxInFlight": 25,
        "inFlightTokens": 90_000,
        "kvTokens": 400_000,
        "replicaCaps": [],
        "queueTtlMilliseconds": 800,
        "contextLength": 32_768,
        "draining": ["a", "b"],
        "foreign": False,
        "responseStore": True,
        "allowedMediaDomains": ["img.example"],
    }
    assert (agents.service, agents.foreign, agents.response_store) == ("agents", True, False)


@given(st.randoms(use_true_random=False))
def test_table_does_not_depend_on_order(source: random.Random) -> None:
    pools = [(_pool(a_human_less_pool(f"pool-{number}")), PoolRuntime(max_in_flight=number)) for number in range(1, 6)]
    classes = [_class(a_workload_class(f"class-{number}", pool="pool-1")) for number in range(5)]
    one = compile_table(pools, classes)
    source.shuffle(pools)
    source.shuffle(classes)
    assert compile_table(pools, classes) == one


def test_generation_changes_with_the_content_and_only_then() -> None:
    same = _table((CHAT, RUNTIME), (AGENTS, PoolRuntime()))
    other = _table((CHAT, RUNTIME), (AGENTS, PoolRuntime(max_in_flight=1)))
    assert same.generation == _table((AGENTS, PoolRuntime()), (CHAT, RUNTIME)).generation
    assert same.generation != other.generation
    assert parse_table(document_json(same)) == same
    assert generation_of(parse_table(document_json(same))) == same.generation


def test_documents_match_their_published_schema() -> None:
    table = json.loads(document_json(_table((CHAT, RUNTIME), (AGENTS, PoolRuntime(service="agents")))))
    Draft202012Validator(document_schema(RoutingTable)).validate(table)
    assert table["pools"][0]["service"] == "agents"


EMPTY: dict[str, tuple[Any, dict[str, Any]]] = {
    "RoutingTable": (parse_table, {"pools": [], "classes": []}),
    "Keyring": (parse_keyring, {"keys": []}),
    "EngineCredentials": (parse_engine_credentials, {"pools": {}}),
}
WORDS = {
    "RoutingTable": "a routing table",
    "Keyring": "a keyring",
    "EngineCredentials": "a file of engine credentials",
}


@pytest.mark.parametrize("kind", EMPTY)
def test_readers_ignore_unknown_fields_and_refuse_a_higher_version(kind: str) -> None:
    parse, content = EMPTY[kind]
    head = {"schemaVersion": 1, "generation": "g", "fieldOfTomorrow": 1}
    assert parse(json.dumps(head | content)).generation == "g"
    for newer in (content, {}):  # a version may also leave out what this one needs
        with pytest.raises(
            UnsupportedSchemaVersionError,
            match=f"{kind} has schemaVersion 2, but this program reads up to 1: upgrade it",
        ):
            parse(json.dumps({"schemaVersion": 2, "generation": "g"} | newer))


@pytest.mark.parametrize("found", EMPTY)
@pytest.mark.parametrize("wanted", EMPTY)
def test_a_document_in_the_place_of_another_is_named(wanted: str, found: str) -> None:
    parse = EMPTY[wanted][0]
    text = json.dumps({"schemaVersion": 1, "generation": "g", **EMPTY[found][1]})
    if wanted == found:
        assert parse(text).generation == "g"
        return
    with pytest.raises(WrongDocumentError) as caught:
        parse(text)
    assert str(caught.value) == f"This is {WORDS[found]}, and {WORDS[wanted]} is asked for here: name the right file."


@pytest.mark.parametrize("text", ['{"generation": "g"}', "[]", "{"])
@pytest.mark.parametrize("kind", EMPTY)
def test_a_document_of_no_kind_is_not_taken_for_an_empty_one(kind: str, text: str) -> None:
    with pytest.raises(ValidationError):
        EMPTY[kind][0](text)
