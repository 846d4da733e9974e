"""The plan of access: documents, made Secrets, statuses; and that it plans nothing once everything is done."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlserve_api.compile import digest, document_json
from hlserve_api.conditions import ConditionReason, ConditionType, reasons_of
from hlserve_api.v1alpha1.client_key import ClientKey
from hlserve_operator.access.findings import compile_keys
from hlserve_operator.access.generated import manifest_with, wanted_secrets
from hlserve_operator.access.observed import AccessObserved
from hlserve_operator.access.plan import STATUSES_A_RUN
from hlserve_operator.refs import Ref
from hlserve_operator.reported import RouterReport
from hlserve_operator.state import Release
from hlserve_operator.testing.access import (
    NOW,
    a_class,
    a_key,
    a_made_key,
    a_pool,
    a_secret,
    carried_out,
    condition,
    credentials_of,
    entries_of,
    in_sync,
    is_document,
    observed,
    plan,
    strong,
    table_of,
)


def settled(namespace: AccessObserved, *routers: str, now: datetime = NOW) -> AccessObserved:
    """The namespace after runs until nothing is left to do, with routers that apply everything at once."""
    for _ in range(5):
        actions = plan(namespace, now)
        reports = in_sync(actions, *(routers or ("r-0", "r-1")))
        if reports == namespace.reports and not (actions.statuses or actions.new_secrets or actions.delete):
            break
        namespace = dataclasses.replace(carried_out(namespace, actions), reports=reports)
    return namespace


def the_key(namespace: AccessObserved, name: str = "crawler") -> ClientKey:
    return next(key for key in namespace.keys if key.name == name)


def with_key(namespace: AccessObserved, key: ClientKey, **fields: Any) -> AccessObserved:
    """The namespace with one key's spec replaced; its status stays."""
    keys = tuple(key.model_copy(update={"status": k.status}) if k.name == key.name else k for k in namespace.keys)
    return dataclasses.replace(namespace, keys=keys, **fields)


# documents ------------------------------------------------------------------------------------------------------------


def test_keyring_comes_first_and_the_table_names_it() -> None:
    actions = plan(observed(a_key()))
    assert [each["metadata"]["name"] for each in actions.documents] == [
        "hlserve-keyring-0", "hlserve-keyring-1", "hlserve-keyring-2", "hlserve-keyring-3",
        "hlserve-engine-credentials", "hlserve-routing-table",
    ]  # fmt: skip
    assert all(is_document(each) for each in actions.documents)
    assert [shard.name for shard in table_of(actions).keyring_shards] == [f"hlserve-keyring-{n}" for n in range(4)]
    assert entries_of(actions)["crawler", "a"].digest == digest(strong("crawler"))


def test_no_key_is_in_a_manifest_or_status() -> None:
    """Only digests leave; the representation of what was read shows none either."""
    namespace = observed(a_key(), a_key("web"))
    actions = plan(namespace)
    for text in (repr(actions.documents), repr(actions.statuses), repr(actions.events), repr(namespace)):
        assert strong("crawler") not in text


def test_table_routes_to_the_pools_service_with_derived_caps() -> None:
    chat = a_pool("chat", interactive=True, draining=("pod-1",))
    (route,) = table_of(plan(observed(pools=(chat,)))).pools
    assert (route.service, route.endpoints, route.draining) == ("chat", (), ("pod-1",))
    assert route.max_in_flight == chat.derived.max_in_flight
    assert route.queue_ttl_milliseconds == chat.derived.queue_ttl_milliseconds


@pytest.mark.parametrize("kind", ["keys", "classes", "pools"])
def test_what_is_being_deleted_counts_as_gone(kind: str) -> None:
    """A deletion may wait for others: the key is revoked, the class and the pool are no longer routed to, all at once."""
    leaving: dict[str, Any] = {"deletionTimestamp": "2030-05-01T00:00:00Z"}
    gone: dict[str, Any] = {
        "keys": (a_key(**leaving),), "classes": (a_class(**leaving),), "pools": (a_pool(metadata=leaving),)
    }  # fmt: skip
    actions = plan(dataclasses.replace(observed(a_key()), **{kind: gone[kind]}))
    left = {"keys": entries_of(actions), "classes": table_of(actions).classes, "pools": table_of(actions).pools}
    assert not left[kind]
    assert all(found for name, found in left.items() if name != kind)


def test_shards_follow_the_release_and_old_ones_go() -> None:
    namespace = settled(observed(a_key()))
    fewer = plan(namespace, release=Release(keyring_shards=2))
    assert [shard.name for shard in table_of(fewer).keyring_shards] == ["hlserve-keyring-0", "hlserve-keyring-1"]
    assert fewer.delete == (Ref("v1", "Secret", "hlserve-keyring-2"), Ref("v1", "Secret", "hlserve-keyring-3"))


ENGINE_LINK = {
    "apiKeySecretRef": {"name": "engine", "key": "key"},
    "tls": {"secretName": "engine-tls", "caSecretRef": {"name": "engine-ca", "key": "ca.pem"}},
}


def test_routers_get_what_engines_ask_for() -> None:
    secrets = {"engine": a_secret("engine", "sesame\n", "key"), "engine-ca": a_secret("engine-ca", "PEM", "ca.pem")}
    pools = (a_pool(engine=ENGINE_LINK), a_pool("plain"))
    actions = plan(observed(pools=pools, secrets=secrets))
    (entry,) = credentials_of(actions).pools.items()
    assert entry[0] == "agents"
    assert (entry[1].api_key, entry[1].tls.ca if entry[1].tls else None) == ("sesame", "PEM")
    assert not actions.events
    assert wanted_secrets((), [facts.pool for facts in pools]) == {"engine", "engine-ca"}


@pytest.mark.parametrize(
    ("secrets", "reason"),
    [
        pytest.param({}, "SecretMissing", id="no Secret"),
        pytest.param({"engine": a_secret("engine", "x", "other")}, "SecretMissing", id="no such key in it"),
        pytest.param({"engine": a_secret("engine", "two words", "key")}, "MalformedKey", id="not sendable"),
        pytest.param({"engine": a_secret("engine", b"\xff\xfe", "key")}, "MalformedKey", id="no text"),
    ],
)
def test_an_engine_link_that_lacks_something_is_told_and_stays_closed(secrets: dict[str, Any], reason: str) -> None:
    actions = plan(observed(pools=(a_pool(engine=ENGINE_LINK),), secrets=secrets))
    entry = credentials_of(actions).pools["agents"]
    assert entry.api_key == ""
    assert entry.tls is not None, "without the entry routers would speak to the engine in the clear"
    assert reason in {event.reason for event in actions.events}


# made Secrets ---------------------------------------------------------------------------------------------------------


def test_a_key_is_made_once() -> None:
    namespace = observed(a_made_key())
    (made,) = plan(namespace).new_secrets
    assert (made.ref.name, made.owner.name, made.owner_uid) == ("crawler-a", "crawler", "uid-crawler")
    assert plan(namespace).requeue_after_seconds == 0, "the keyring waits for it"
    done = settled(namespace)
    assert plan(done).new_secrets == ()
    assert entries_of(plan(done))["crawler", "a"].digest == digest(strong("crawler-a"))
    assert condition(the_key(done), "Ready") == "True/Ready"


def test_a_made_secret_belongs_to_its_key() -> None:
    (made,) = plan(observed(a_made_key())).new_secrets
    manifest = manifest_with(made, "hls_x", namespace="llm", release="hlserve")
    (owner,) = manifest["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("ClientKey", "crawler", "uid-crawler")
    assert manifest["data"] == {"key": "aGxzX3g="}


def test_a_made_secret_that_is_lost_is_not_made_anew() -> None:
    """Its client would be locked out without a word; put back, it works again."""
    before = settled(observed(a_made_key()))
    lost = settled(dataclasses.replace(before, secrets={}))
    assert plan(lost).new_secrets == ()
    assert not entries_of(plan(lost))
    assert condition(the_key(lost), "Ready") == "False/SecretMissing"
    assert the_key(lost).status.credentials[0].fingerprint is not None
    back = settled(dataclasses.replace(lost, secrets=before.secrets))
    assert condition(the_key(back), "Ready") == "True/Ready"


def test_b44_rotation_keeps_both_keys_and_then_only_the_new_one() -> None:
    before = settled(observed(a_made_key()))
    both = settled(with_key(before, a_made_key("crawler", "a", "b")))
    assert set(entries_of(plan(both))) == {("crawler", "a"), ("crawler", "b")}
    assert entries_of(plan(both))["crawler", "a"] == entries_of(plan(before))["crawler", "a"]
    after = with_key(both, a_made_key("crawler", "b"))
    assert plan(after).delete == (Ref("v1", "Secret", "crawler-a"),)
    done = settled(after)
    assert set(entries_of(plan(done))) == {("crawler", "b")}
    again = plan(settled(with_key(done, a_made_key("crawler", "a", "b"))))
    assert set(entries_of(again)) == {("crawler", "a"), ("crawler", "b")}


def test_a_credential_that_came_back_gets_a_new_secret() -> None:
    """A key that was taken away, because it leaked, say, must not come back to life with its id."""
    both = settled(observed(a_made_key("crawler", "a", "b")))
    removed = settled(with_key(both, a_made_key("crawler", "b")))
    assert "crawler-a" not in removed.secrets
    (made,) = plan(with_key(removed, a_made_key("crawler", "a", "b"))).new_secrets
    assert made.ref.name == "crawler-a"


def test_a_made_secret_that_is_named_by_a_secret_ref_stays() -> None:
    before = settled(observed(a_made_key("crawler", "a", "b")))
    named = a_key(spec={"credentials": [{"id": "c", "secretRef": {"name": "crawler-a", "key": "key"}}, {"id": "b"}]})
    assert plan(with_key(before, named)).delete == ()


def test_two_keys_that_want_one_secret_name_do_not_share_a_key() -> None:
    """`a-b` with credential `c`, and `a` with credential `b-c`."""
    first = settled(observed(a_made_key("a-b", "c")))
    both = settled(dataclasses.replace(first, keys=(*first.keys, a_made_key("a", "b-c"))))
    assert condition(the_key(both, "a-b"), "Ready") == "True/Ready"
    assert condition(the_key(both, "a"), "Ready") == "False/SecretMissing"
    assert "belongs to ClientKey a-b" in the_key(both, "a").status.conditions[1].message


def test_a_name_too_long_for_a_secret_is_told() -> None:
    long = a_made_key("k" * 252)
    namespace = settled(observed(long))
    assert plan(namespace).new_secrets == ()
    assert "more than 253" in the_key(namespace, "k" * 252).status.conditions[1].message


def test_a_fresh_key_does_not_say_that_its_secret_is_missing_while_it_is_made() -> None:
    key = a_made_key(creationTimestamp=(NOW - timedelta(seconds=5)).isoformat())
    assert not [patch for patch in plan(observed(key)).statuses if patch.ref.kind == "ClientKey"]
    (told,) = [p for p in plan(observed(key), NOW + timedelta(minutes=1)).statuses if p.ref.kind == "ClientKey"]
    assert told.conditions["CredentialsResolved"] == "False/SecretMissing"


# conditions of keys ---------------------------------------------------------------------------------------------------

CREDENTIAL = {"id": "a", "secretRef": {"name": "crawler-keys", "key": "a"}}
KEY_CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "all is well": ({}, {}, "True/Ready", "True/Resolved"),
    "suspended": ({"suspended": True}, {}, "False/Suspended", "True/Resolved"),
    "its class is gone": ({}, {"classes": ()}, "False/ClassNotFound", "True/Resolved"),
    "its Secret is gone": ({}, {"secrets": {}}, "False/SecretMissing", "False/SecretMissing"),
    "its Secret lacks the key": (
        {}, {"secrets": {"crawler-keys": a_secret("crawler-keys", "x", "b")}}, "False/SecretMissing", "False/SecretMissing",
    ),
    "too short": (
        {}, {"secrets": {"crawler-keys": a_secret("crawler-keys", "short")}}, "False/WeakKey", "False/WeakKey",
    ),
    "guessable": (
        {}, {"secrets": {"crawler-keys": a_secret("crawler-keys", "abcabcabcabcabcabc")}}, "True/Ready", "True/WeakKey",
    ),
    "no text": (
        {}, {"secrets": {"crawler-keys": a_secret("crawler-keys", b"\xff" * 32)}}, "False/MalformedKey", "False/MalformedKey",
    ),
    "expired": (
        {"credentials": [{**CREDENTIAL, "notAfter": "2030-04-30T00:00:00Z"}]}, {}, "False/Expired", "False/Expired",
    ),
    "not yet valid": (
        {"credentials": [{**CREDENTIAL, "notBefore": "2030-05-02T00:00:00Z"}]}, {}, "False/NotYetValid", "True/Resolved",
    ),
    "no router": ({}, {"reports": ()}, "False/RouterSyncing", "True/Resolved"),
    "an old CRD": ({}, {"pruned": {"ClientKey": "upgrade hlserve-crds"}}, "False/PrunedField", "True/Resolved"),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "fields", "ready", "resolved"), KEY_CASES.values(), ids=KEY_CASES.keys())
def test_a_keys_conditions_when(spec: dict[str, Any], fields: dict[str, Any], ready: str, resolved: str) -> None:
    namespace = observed(a_key(spec=spec), **{name: value for name, value in fields.items() if name != "reports"})
    for _ in range(3):
        namespace = carried_out(namespace, plan(namespace))
        if "reports" not in fields:
            namespace = dataclasses.replace(namespace, reports=in_sync(plan(namespace), "r-0"))
    key = the_key(namespace)
    assert (condition(key, "Ready"), condition(key, "CredentialsResolved")) == (ready, resolved)
    assert key.status.observed_generation == 3


def test_the_same_key_twice_is_refused_twice() -> None:
    secrets = {f"{name}-keys": a_secret(f"{name}-keys", strong("shared")) for name in ("crawler", "web")}
    namespace = settled(observed(a_key(), a_key("web"), secrets=secrets))
    assert not entries_of(plan(namespace))
    for name in ("crawler", "web"):
        assert condition(the_key(namespace, name), "Ready") == "False/DuplicateKey"


def test_one_bad_credential_leaves_the_other_in_force() -> None:
    key = a_key(spec={"credentials": [CREDENTIAL, {"id": "b", "secretRef": {"name": "none", "key": "b"}}]})
    namespace = settled(observed(key))
    assert condition(the_key(namespace), "Ready") == "True/Ready"
    assert condition(the_key(namespace), "CredentialsResolved") == "False/SecretMissing"


def test_b85_a_secrets_new_content_is_in_the_keyring_at_once() -> None:
    namespace = settled(observed(a_key()))
    changed = dataclasses.replace(namespace, secrets={"crawler-keys": a_secret("crawler-keys", strong("fresh"))})
    assert entries_of(plan(changed))["crawler", "a"].digest == digest(strong("fresh"))
    key = the_key(carried_out(changed, plan(changed)))
    assert condition(key, "Ready") == "False/RouterSyncing"
    assert key.status.keyring_revision != the_key(namespace).status.keyring_revision
    assert condition(the_key(settled(changed)), "Ready") == "True/Ready"


def test_a_full_shard_leaves_out_the_newest_keys() -> None:
    """Rather than no key at all: the API server takes no Secret above 1 MiB."""
    keys = [a_key(f"k{n}", creationTimestamp=f"2030-01-{9 - n:02}T00:00:00Z") for n in range(8)]
    secrets = observed(*keys).secrets
    found = compile_keys(keys, secrets, now=NOW, shards=1, shard_bytes=2000)
    (keyring,) = found.compiled.keyrings
    left_out = [finding.client for finding in found.findings if finding.reason is ConditionReason.KEYRING_FULL]
    assert len(document_json(keyring)) <= 2000
    assert len(left_out) + len(keyring.keys) == 8
    assert left_out == [f"k{n}" for n in range(len(left_out))], "those that were made last"
    assert compile_keys(keys, secrets, now=NOW, shards=1).findings == ()


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        pytest.param({"notAfter": "2030-05-01T12:00:30Z"}, 30.0, id="the end of a key"),
        pytest.param({"notBefore": "2030-05-01T12:01:00Z"}, 60.0, id="its start"),
        pytest.param({"notAfter": "2030-04-01T00:00:00Z"}, None, id="not for what is past"),
        pytest.param({}, None, id="never otherwise"),
    ],
)
def test_it_looks_again_at(fields: dict[str, str], want: float | None) -> None:
    assert (
        plan(settled(observed(a_key(spec={"credentials": [{**CREDENTIAL, **fields}]})))).requeue_after_seconds == want
    )


# what routers know ----------------------------------------------------------------------------------------------------


def test_a_key_is_ready_when_every_router_knows_it() -> None:
    namespace = carried_out(observed(a_key()), plan(observed(a_key())))
    (first,) = in_sync(plan(namespace), "r-0")
    for other in (RouterReport(pod="r-1"), RouterReport(pod="r-1", problem="no answer in time")):
        half = dataclasses.replace(namespace, reports=(first, other))
        assert plan(half).requeue_after_seconds == 1.0
        key = the_key(carried_out(half, plan(half)))
        assert (key.status.synced_routers, condition(key, "Ready")) == ("1/2", "False/RouterSyncing")
    assert "No answer from r-1" in key.status.conditions[0].message
    assert the_key(settled(half, "r-0", "r-1")).status.synced_routers == "2/2"


def test_another_keys_change_takes_nothing_back() -> None:
    """Thousands of statuses would turn over and back, because shards are shared."""
    namespace = settled(observed(*(a_key(f"k{n}") for n in range(20))))
    changed = with_key(namespace, a_key("k3", spec={"suspended": True}))
    patches = plan(changed).statuses
    assert [patch.ref.name for patch in patches] == ["k3"]
    lagging = dataclasses.replace(namespace, reports=(RouterReport(pod="r-0", problem="down"), RouterReport(pod="r-1")))
    assert plan(lagging).statuses == ()


def test_a_removed_credential_is_gone_when_every_shard_is_known() -> None:
    """The keyring shard that it leaves may be another than the one of the credential that stays."""
    both = settled(observed(a_made_key("crawler", "a", "b")))
    removed = with_key(both, a_made_key("crawler", "b"))
    removed = carried_out(removed, plan(removed))
    shards = {shard.name: shard.digest for shard in table_of(plan(removed)).keyring_shards}
    old = {shard.name: shard.digest for shard in table_of(plan(both)).keyring_shards}
    left = next(name for name in shards if shards[name] != old[name])
    behind = RouterReport(pod="r-0", keyrings={**shards, left: old[left]})
    before = with_key(both, a_made_key("crawler", "b"), reports=(behind,))
    assert the_key(carried_out(before, plan(before))).status.synced_routers == "0/1"


@pytest.mark.parametrize(
    ("later_seconds", "moves"), [pytest.param(599, False, id="599 s later"), pytest.param(600, True, id="600 s later")]
)
def test_last_use_moves_in_coarse_steps(later_seconds: int, moves: bool) -> None:
    namespace = settled(observed(a_key()), "r-0")
    first = NOW - timedelta(hours=1)

    def used(at: datetime) -> AccessObserved:
        report = dataclasses.replace(namespace.reports[0], keys_last_used={"crawler": at})
        return dataclasses.replace(namespace, reports=(report,))

    namespace = carried_out(used(first), plan(used(first)))
    assert the_key(namespace).status.last_used_time == first
    again = used(first + timedelta(seconds=later_seconds))
    assert bool(plan(again).statuses) is moves


# what cannot be read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", ["secrets", "clientkeys"])
def test_unreadable_secrets_revoke_nothing(resource: str) -> None:
    """The routers' last keyring stays; draining pods still get into the table, with the shards that it had."""
    namespace = settled(observed(a_key()))
    blind = dataclasses.replace(
        namespace, pools=(a_pool(draining=("pod-1",)),), secrets={}, denied={resource: "secrets: list is forbidden"}
    )
    actions = plan(blind)
    assert "hlserve-keyring-0" not in [each["metadata"]["name"] for each in actions.documents]
    assert (actions.delete, actions.new_secrets) == ((), ())
    assert table_of(actions).pools[0].draining == ("pod-1",)
    assert table_of(actions).keyring_shards == table_of(plan(namespace)).keyring_shards
    key = the_key(carried_out(blind, actions))
    assert condition(key, "Ready") == "False/PermissionDenied"
    assert condition(key, "CredentialsResolved") == "True/Resolved"
    healed = dataclasses.replace(carried_out(blind, actions), secrets=namespace.secrets, denied={})
    assert condition(the_key(settled(healed)), "Ready") == "True/Ready"


@pytest.mark.parametrize("resource", ["servingpools", "workloadclasses"])
def test_unreadable_pools_and_classes_leave_the_table_alone(resource: str) -> None:
    blind = dataclasses.replace(settled(observed(a_key())), denied={resource: "no"})
    actions = plan(blind)
    assert "hlserve-routing-table" not in [each["metadata"]["name"] for each in actions.documents]
    assert entries_of(actions), "keys can still be revoked"
    assert not actions.statuses
    assert actions.delete == (), "the table is still in use, although it was not planned"


# classes --------------------------------------------------------------------------------------------------------------

TO = {"poolRef": {"name": "agents"}, "name": "main"}
CLASS_CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "its pool serves": ({}, {}, "True/Ready", "True/Resolved"),
    "no replica is ready": ({}, {"pools": (a_pool(ready=0),)}, "False/PoolNotReady", "True/Resolved"),
    "its pool does not exist": ({}, {"pools": ()}, "False/PoolNotFound", "False/PoolNotFound"),
    "one of two targets stands for nothing": (
        {"targets": [TO, {"name": "more", "poolSelector": {"matchLabels": {"tier": "x"}}}]}, {}, "True/Ready", "False/PoolNotFound",
    ),
    "a Batch class may fill a chat pool": (
        {"intent": "Batch", "targets": [TO, {"name": "chat", "poolRef": {"name": "chat"}, "role": "Spill"}]},
        {"pools": (a_pool(), a_pool("chat", interactive=True))}, "True/Ready", "False/ModeMismatch",
    ),
    "its pool is promised too often": (
        {"share": {"minPercent": 60}}, {"classes": (a_class("batch", spec={"share": {"minPercent": 50}}),)},
        "True/Ready", "False/Overcommitted",
    ),
    "an old CRD": ({}, {"pruned": {"WorkloadClass": "upgrade hlserve-crds"}}, "False/PrunedField", "True/Resolved"),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "fields", "ready", "resolved"), CLASS_CASES.values(), ids=CLASS_CASES.keys())
def test_a_classes_conditions_when(spec: dict[str, Any], fields: dict[str, Any], ready: str, resolved: str) -> None:
    fields = {**fields, "classes": (a_class(spec=spec), *fields.get("classes", ()))}
    namespace = settled(observed(a_key(), **fields))
    workload = namespace.classes[0]
    assert (condition(workload, "Ready"), condition(workload, "TargetsResolved")) == (ready, resolved)


def test_a_class_lists_its_pools_and_counts_its_clients() -> None:
    targets = [
        {"name": "any", "poolSelector": {"matchLabels": {"tier": "x"}}, "role": "Spill"},
        {"name": "main", "poolRef": {"name": "agents"}},
    ]
    pools = (a_pool(metadata={"labels": {"tier": "x"}}), a_pool("spare", metadata={"labels": {"tier": "x"}}))
    namespace = settled(observed(a_key(), a_key("web"), pools=pools, classes=(a_class(spec={"targets": targets}),)))
    status = namespace.classes[0].status
    assert [(pool.name, pool.target, pool.role) for pool in status.resolved_pools] == [
        ("agents", "main", "Primary"), ("spare", "any", "Spill")
    ]  # fmt: skip
    assert (status.pools_summary, status.client_count, status.observed_generation) == ("agents, spare", 2, 2)


# how much is done -----------------------------------------------------------------------------------------------------


def test_statuses_come_in_portions_with_turned_conditions_first() -> None:
    namespace = settled(observed(*(a_key(f"k{n:03}") for n in range(STATUSES_A_RUN + 5))), "r-0")
    assert {condition(key, "Ready") for key in namespace.keys} == {"True/Ready"}
    scaled = dataclasses.replace(namespace, reports=in_sync(plan(namespace), "r-0", "r-1"))
    few = plan(scaled)
    assert (len(few.statuses), few.requeue_after_seconds) == (STATUSES_A_RUN, 10.0)
    broken = with_key(scaled, a_key("k204", spec={"suspended": True}))
    assert plan(broken).statuses[0].ref.name == "k204"
    gone = dataclasses.replace(scaled, secrets={})
    assert plan(gone).requeue_after_seconds == 0.0


def test_events_tell_what_turned_bad_and_nothing_else() -> None:
    fresh = plan(observed(a_key()))
    assert fresh.events == (), "a key that routers are about to learn is no event"
    gone = dataclasses.replace(settled(observed(a_key())), secrets={})
    assert [(event.ref.name, event.reason) for event in plan(gone).events] == [("crawler", "SecretMissing")] * 2
    assert plan(carried_out(gone, plan(gone))).events == ()


def test_a_transition_has_a_time_only_when_the_status_turns() -> None:
    namespace = settled(observed(a_key()))
    gone = dataclasses.replace(namespace, secrets={})
    later = NOW + timedelta(hours=1)
    broken = carried_out(gone, plan(gone, later))
    weak = dataclasses.replace(broken, secrets={"crawler-keys": a_secret("crawler-keys", "short")})
    weak = carried_out(weak, plan(weak, later + timedelta(hours=1)))
    assert condition(the_key(weak), "Ready") == "False/WeakKey"
    assert the_key(namespace).status.conditions[0].last_transition_time == NOW
    assert the_key(weak).status.conditions[0].last_transition_time == later


# any namespace --------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "a-b", "web"])
TIMES = st.sampled_from([None, "2030-04-01T00:00:00Z", "2030-06-01T00:00:00Z"])
TEXTS = st.sampled_from([strong("one"), strong("two"), "short", "abcabcabcabcabcabc", "with space in it, and long"])


@st.composite
def a_credential(draw: st.DrawFn, id_: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": id_}
    if draw(st.booleans()):
        fields["secretRef"] = {"name": draw(st.sampled_from(["s-1", "s-2"])), "key": "a"}
    if (end := draw(TIMES)) is not None:
        fields["notAfter"] = end
    return fields


@st.composite
def any_key(draw: st.DrawFn, name: str) -> ClientKey:
    ids = draw(st.lists(st.sampled_from(["a", "b-c", "c"]), min_size=1, max_size=2, unique=True))
    spec: dict[str, Any] = {"credentials": [draw(a_credential(each)) for each in ids], "suspended": draw(st.booleans())}
    spec["workloadClassRef"] = {"name": draw(st.sampled_from(["agent", "gone"]))}
    return a_key(name, spec=spec)


@st.composite
def any_namespace(draw: st.DrawFn) -> AccessObserved:
    names = draw(st.lists(NAMES, max_size=4, unique=True))
    secrets = {name: a_secret(name, draw(TEXTS)) for name in draw(st.sets(st.sampled_from(["s-1", "s-2", "a-a"])))}
    return observed(
        *(draw(any_key(name)) for name in names),
        secrets=secrets,
        pools=tuple(a_pool(ready=draw(st.integers(0, 1))) for _ in range(draw(st.integers(0, 1)))),
        classes=(a_class(),) if draw(st.booleans()) else (),
    )


@settings(max_examples=30, deadline=None)
@given(any_namespace(), st.integers(1, 3))
def test_any_namespace_settles_and_then_nothing_is_planned(namespace: AccessObserved, routers: int) -> None:
    done = settled(namespace, *(f"r-{n}" for n in range(routers)))
    actions = plan(done)
    assert (actions.statuses, actions.new_secrets, actions.delete) == ((), (), ())
    assert actions.documents == plan(dataclasses.replace(done, keys=done.keys[::-1])).documents
    found = [("ClientKey", each) for key in done.keys for each in key.status.conditions]
    found += [("WorkloadClass", each) for workload in done.classes for each in workload.status.conditions]
    for kind, each in found:
        stands = {(doc.reason, doc.status) for doc in reasons_of(kind, ConditionType(each.type))}
        assert (ConditionReason(each.reason), each.status) in stands


@settings(max_examples=30, deadline=None)
@given(any_namespace())
def test_a_key_is_ready_only_if_it_can_call(namespace: AccessObserved) -> None:
    done = settled(namespace)
    entries = entries_of(plan(done))
    for key in done.keys:
        mine = [entry for (client, _), entry in entries.items() if client == key.name]
        valid = [entry for entry in mine if entry.not_after is None or entry.not_after > NOW]
        can_call = bool(valid) and not key.spec.suspended and any(c.name == "agent" for c in done.classes)
        can_call = can_call and key.spec.workload_class_ref.name == "agent"
        assert (condition(key, "Ready") == "True/Ready") is can_call


def test_now_is_an_argument() -> None:
    key = a_key(spec={"credentials": [{**CREDENTIAL, "notAfter": "2030-05-01T12:00:30Z"}]})
    namespace = settled(observed(key))
    after = datetime(2030, 5, 1, 12, 0, 31, tzinfo=UTC)
    assert condition(the_key(namespace), "Ready") == "True/Ready"
    assert condition(the_key(carried_out(namespace, plan(namespace, after))), "Ready") == "False/Expired"
    assert entries_of(plan(namespace, after)), "it stays in the keyring, so that the router can say key_expired"
