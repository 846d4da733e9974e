"""The parts of the operator that need no API server: queue, drift, events, what kopf tells of, settings, scale signals."""

import asyncio
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_api.v1alpha1 import ServingPool
from hlserve_operator.connect import connect
from hlserve_operator.drift import Applied, contains, has_stale_fields, merged_lists
from hlserve_operator.errors import (
    StartError,
)
from hlserve_operator.events import EventLimiter
from hlserve_operator.keys import ACCESS, Key, pool_key
from hlserve_operator.kopf_source import Sight
from hlserve_operator.refs import Ref
from hlserve_operator.reported import RouterReport
from hlserve_operator.settings import Settings, read_settings
from hlserve_operator.signals import wanted_replicas_by_load
from hlserve_operator.testing.running import POOL, manifest
from hlserve_operator.testing.stored import apply, fields_of
from hlserve_operator.work import CHANGED_RETRY_SECONDS, WorkQueue

# --- queue


async def test_queue_gives_a_key_to_one_worker_and_again_after_what_came_meanwhile() -> None:
    queue = WorkQueue()
    for _ in range(100):
        queue.add(ACCESS)
    assert len(queue) == 1
    key = await queue.get()
    queue.add(ACCESS)
    assert len(queue) == 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await queue.get()
    queue.done(key)
    assert await queue.get() == ACCESS
    queue.done(ACCESS)
    assert len(queue) == 0


async def test_queue_the_earlier_of_two_timers_holds_and_an_event_beats_both() -> None:
    queue = WorkQueue()
    queue.add_after(ACCESS, 60)
    queue.add_after(ACCESS, 0.01)
    queue.add_after(ACCESS, 30)
    assert await queue.get() == ACCESS
    queue.done(ACCESS, again_after_seconds=60)
    queue.add(ACCESS)
    assert await queue.get() == ACCESS
    queue.done(ACCESS)
    queue.close()


async def test_queue_waits_longer_after_each_failure_and_forgets_them_after_a_success() -> None:
    queue = WorkQueue(random=Random(1))
    pauses = []
    for _ in range(12):
        queue.add(ACCESS)
        pauses.append(queue.failed(await queue.get()))
    assert 0.1 <= pauses[0] <= 0.2
    assert 30 <= pauses[-1] <= 60
    assert queue.failures(ACCESS) == 12
    queue.add(ACCESS)
    queue.done(await queue.get())
    assert queue.failures(ACCESS) == 0
    queue.add(ACCESS)
    assert queue.failed(await queue.get(), at_least_seconds=7) == 7
    queue.close()


async def test_queue_a_key_that_changed_while_it_failed_waits_a_second_at_most() -> None:
    queue = WorkQueue()
    for _ in range(12):
        queue.add(ACCESS)
        queue.failed(await queue.get())
    queue.add(ACCESS)
    key = await queue.get()
    queue.add(ACCESS)
    assert queue.failed(key) <= CHANGED_RETRY_SECONDS
    queue.close()


async def test_queue_no_event_shortens_a_pause_that_the_api_server_asked_for() -> None:
    queue = WorkQueue()
    queue.add(ACCESS)
    assert queue.failed(await queue.get(), at_least_seconds=0.2) >= 0.2
    began = asyncio.get_running_loop().time()
    queue.add(ACCESS)
    assert len(queue) == 0
    assert await queue.get() == ACCESS
    assert asyncio.get_running_loop().time() - began >= 0.19
    queue.done(ACCESS)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "work", "fail"]))))
def test_queue_never_holds_a_key_twice_and_never_loses_one(steps: list[tuple[str, str]]) -> None:
    async def run() -> None:
        queue, due = WorkQueue(), set()
        for name, step in steps:
            key: Key = pool_key(name)
            if step == "add":
                queue.add(key)
                due.add(key)
            elif len(queue):
                taken = await queue.get()
                assert taken in due
                due.discard(taken)
                queue.add(taken)
                due.add(taken)
                queue.done(taken)
            assert len(queue) == len(due)
        queue.close()

    asyncio.run(run())


# --- drift

WANTED: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "d", "labels": {"a": "b"}},
    "spec": {
        "replicas": 2,
        "template": {
            "spec": {
                "containers": [{"name": "e", "args": ["x", "y"], "ports": [{"containerPort": 1}], "env": []}],
                "tolerations": [{"key": "k"}],
            }
        },
    },
}


def stored(wanted: dict[str, Any]) -> dict[str, Any]:
    """As an API server holds it, with defaults of its own."""
    live: dict[str, Any] = apply({}, {}, wanted)
    live["metadata"]["managedFields"] = [
        {"manager": "hlserve-operator", "operation": "Apply", "fieldsV1": fields_of({k: wanted[k] for k in ("spec",)})}
    ]
    container = live["spec"]["template"]["spec"]["containers"][0]
    container["imagePullPolicy"] = "IfNotPresent"
    container["ports"][0]["protocol"] = "TCP"
    container.pop("env", None)
    live["spec"]["strategy"] = {"type": "RollingUpdate"}
    live["status"] = {"replicas": 2}
    return live


def changed(path: str, value: Any) -> dict[str, Any]:
    """The stored object with one value changed; None removes it."""
    live = stored(WANTED)
    place: Any = live
    *parents, last = path.split("/")
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place[part]
    if value is None:
        place.pop(int(last) if isinstance(place, list) else last)
    elif isinstance(place, list):
        place.insert(int(last), value)
    else:
        place[last] = value
    return live


POD = "spec/template/spec"


@pytest.mark.parametrize(
    ("live", "in_place"),
    [
        pytest.param(stored(WANTED), True, id="defaults of the server"),
        pytest.param(changed("metadata/annotations", {"x": "y"}), True, id="a foreign annotation"),
        pytest.param(changed(f"{POD}/containers/1", {"name": "sidecar"}), True, id="a foreign container"),
        pytest.param(changed("spec/replicas", 3), False, id="another number"),
        pytest.param(changed("spec/replicas", "2"), False, id="another type"),
        pytest.param(changed("metadata/labels", {}), False, id="a label gone"),
        pytest.param(changed(f"{POD}/containers/0/args", ["y", "x"]), False, id="another order of arguments"),
        pytest.param(changed(f"{POD}/containers/0", None), False, id="a container gone"),
        pytest.param(changed(f"{POD}/containers/0/env", [{"name": "v", "value": "w"}]), False, id="a variable more"),
        pytest.param(changed(f"{POD}/tolerations/1", {"key": "l"}), False, id="an atomic list longer"),
        pytest.param(changed("metadata/managedFields", []), False, id="never applied by us"),
        pytest.param(None, False, id="no object"),
    ],
)
def test_drift_is_told_from_what_is_in_place(live: dict[str, Any] | None, in_place: bool) -> None:
    assert Applied().in_place(WANTED, live) is in_place


def test_drift_a_field_that_is_not_wanted_any_more_has_to_go() -> None:
    live = stored(WANTED)
    fewer = deepcopy(WANTED)
    fewer["spec"]["template"]["spec"].pop("tolerations")
    assert contains(fewer, live)
    assert has_stale_fields(fewer, live)
    renamed = deepcopy(WANTED)
    renamed["spec"]["template"]["spec"]["containers"][0]["name"] = "f"
    assert has_stale_fields(renamed, live)


def test_drift_what_the_server_writes_in_its_own_words_is_applied_once() -> None:
    applied, wanted = Applied(), deepcopy(WANTED)
    wanted["spec"]["template"]["spec"]["resources"] = {"requests": {"cpu": "1000m"}}
    live = stored(wanted)
    live["spec"]["template"]["spec"]["resources"]["requests"]["cpu"] = "1"
    assert not applied.in_place(wanted, live)
    applied.remember(wanted, live)
    assert applied.in_place(wanted, live)
    live["spec"]["template"]["spec"]["resources"]["requests"]["cpu"] = "2"
    assert not applied.in_place(wanted, live)
    applied.forget(Ref.of(wanted))
    live["spec"]["template"]["spec"]["resources"]["requests"]["cpu"] = "1"
    assert not applied.in_place(wanted, live)


# --- events


def test_events_of_a_crash_loop_are_ten_an_hour_at_most() -> None:
    limiter = EventLimiter()
    told = [limiter.allows("pod", "CrashLoop", f"exit {second}", float(second)) for second in range(3600)]
    assert 10 <= sum(told) <= 20
    assert sum(told[1800:]) <= 6
    assert limiter.allows("other", "CrashLoop", "exit", 0.0), "other objects are told of"


def test_events_the_same_words_are_said_once_an_hour() -> None:
    limiter = EventLimiter()
    assert limiter.allows("a", "Blocked", "no GPU", 0.0)
    assert not limiter.allows("a", "Blocked", "no GPU", 3599.0)
    assert limiter.allows("a", "Blocked", "no GPU", 3601.0)


# --- kopf


def test_kopf_is_blind_when_it_twice_does_not_tell_of_what_is_there() -> None:
    sight = Sight()
    sight.saw("a")
    assert not sight.is_blind(["a", "b"]), "b may be new"
    assert sight.is_blind(["a", "b"])
    sight.saw("b")
    assert not sight.is_blind(["a", "b"])
    assert not sight.is_blind([])


# --- settings


@pytest.mark.parametrize(
    ("given_", "want"),
    [
        pytest.param({"keyring_shards": "0"}, "--keyring-shards: Input should be greater", id="too few shards"),
        pytest.param({"monitoring_labels": "a"}, "--monitoring-labels: write label=value", id="no label"),
        pytest.param({"log_level": "loud"}, "--log-level: use debug, info", id="an unknown level"),
        pytest.param({"workers": "many"}, "--workers: Input should be a valid integer", id="no number"),
    ],
)
def test_settings_that_cannot_be_used_are_named(given_: dict[str, str], want: str) -> None:
    with pytest.raises(StartError, match=want):
        read_settings(given_)


def test_settings_come_from_options_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLSERVE_OPERATOR_WORKERS", "7")
    monkeypatch.setenv("HLSERVE_OPERATOR_MONITORING_LABELS", "team=sre,x=y")
    assert read_settings({}).workers == 7
    assert read_settings({"workers": "3"}).workers == 3
    assert read_settings({}).monitoring_labels == {"team": "sre", "x": "y"}
    monkeypatch.setenv("HLSERVE_OPERATOR_WORKERS", "none")
    with pytest.raises(StartError, match="HLSERVE_OPERATOR_WORKERS: "):
        read_settings({})


def test_settings_without_a_namespace_say_what_to_give() -> None:
    with pytest.raises(StartError, match="give --namespace"):
        Settings().in_namespace()


async def test_settings_a_kubeconfig_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="missing: there is no such file"):
        await connect(Settings(kubeconfig=tmp_path / "missing"), "0.1.0")


# --- scale signals


@pytest.mark.parametrize(
    ("backlog", "tokens", "want"),
    [
        pytest.param(None, "1000", 2.0, id="no router answers: as it is"),
        pytest.param(0, "1000", 0.0, id="nothing to do"),
        pytest.param(1, "1000", 1.0, id="one request"),
        pytest.param(800, "1000", 1.0, id="full at 80 %"),
        pytest.param(801, "1000", 2.0, id="beyond"),
        pytest.param(50, None, 2.0, id="nothing derived: as it is"),
    ],
)
def test_signals_count_replicas_that_the_load_fills(backlog: int | None, tokens: str | None, want: float) -> None:
    document = manifest(POOL)
    if tokens is not None:
        value = {"name": "inFlightTokens", "value": tokens, "source": "Default", "why": "test"}
        document["status"] = {"derived": [value]}
    pool = ServingPool.model_validate(document)
    silent = RouterReport(pod="r", problem="silent")
    report = silent if backlog is None else RouterReport(pod="r", backlog_tokens={"chat": backlog})
    assert wanted_replicas_by_load(pool, [report]) == want


def test_operator_lists_that_merge_item_by_item_are_found_at_their_places() -> None:
    ports = [{"name": "http", "port": 30000, "protocol": "TCP"}]
    service = {
        "kind": "Service",
        "metadata": {"name": "chat", "ownerReferences": [{"uid": "u"}]},
        "spec": {"clusterIP": "None", "ports": ports},
    }
    assert merged_lists(service) == {"spec": {"ports": ports}}
    assert merged_lists({"spec": {"egress": [{"ports": ports}]}}) == {}
