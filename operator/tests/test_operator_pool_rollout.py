"""Rollouts, scale-downs and drains of a pool, in a cluster in miniature: what goes, what stays, and that it ends."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlserve_api.conditions import ConditionReason, ConditionType, reasons_of
from hlserve_api.testing.manifests import a_human_less_pool, changed
from hlserve_api.v1alpha1 import ServingPool
from hlserve_api.v1alpha1.pool_operations import Rollout
from hlserve_operator.pools.actions import PoolActions
from hlserve_operator.pools.drain import POLL_SECONDS
from hlserve_operator.pools.rollout import room
from hlserve_operator.render.metadata import DRAINING_ANNOTATION
from hlserve_operator.state import Release
from hlserve_operator.testing.cluster import BAD_IMAGE, Cluster, Pod

IMAGE = "registry.example/engine@sha256:" + "a" * 64
NEW_IMAGE = "registry.example/engine@sha256:" + "c" * 64
RELEASE = Release(default_image=IMAGE)
DRAIN_SECONDS = 60


def a_cluster(places: int = 10, **spec: Any) -> Cluster:
    """A HumanLess pool of three replicas, nothing made yet."""
    document = changed(a_human_less_pool(), "metadata.uid", "pool-uid")
    base = {"replicas": 3, "drain": {"timeoutSeconds": DRAIN_SECONDS}, "rollout": {"progressDeadlineSeconds": 120}}
    wanted = {name: value for name, value in {**document["spec"], **base, **spec}.items() if value is not None}
    document["metadata"]["generation"] = 1
    return Cluster(ServingPool.model_validate({**document, "spec": wanted}), RELEASE, places)


def run(cluster: Cluster, seconds: int) -> PoolActions:
    """Reconcile every second."""
    actions = PoolActions()
    for _ in range(seconds):
        actions = cluster.reconcile()
        cluster.tick()
    return actions


def settled(**spec: Any) -> Cluster:
    """A cluster whose pool serves with every replica."""
    cluster = a_cluster(**spec)
    run(cluster, 12)
    assert not cluster.changed_by(cluster.reconcile())
    return cluster


def condition(cluster: Cluster, kind: ConditionType) -> tuple[str, str]:
    found = next(c for c in cluster.pool.status.conditions if c.type == kind)
    return found.status, found.reason


def images(cluster: Cluster) -> list[str]:
    return sorted(pod.image for pod in cluster.serving())


def draining(cluster: Cluster) -> list[Pod]:
    return [pod for pod in cluster.pods if DRAINING_ANNOTATION in pod.annotations and pod.gone_at is None]


def test_operator_pool_comes_up_and_then_nothing_is_written() -> None:
    cluster = settled()
    assert len(cluster.serving()) == 3
    assert condition(cluster, ConditionType.READY) == ("True", "Ready")
    assert condition(cluster, ConditionType.PROGRESSING) == ("False", "Stable")


STRATEGIES = {
    "surge": {"strategy": "Surge"},
    "one by one": {"strategy": "OneByOne"},
    "auto": {"strategy": "Auto"},
    "surge by two": {"strategy": "Surge", "maxSurge": 2},
    "half at once": {"strategy": "Surge", "maxSurge": 0, "maxUnavailable": "50%"},
    "all at once": {"strategy": "Surge", "maxSurge": 0, "maxUnavailable": 3},
    "nothing allowed": {"strategy": "OneByOne", "maxUnavailable": 0},
}
BOUNDS = {
    "surge": (1, 0),
    "one by one": (0, 1),
    "auto": (1, 0),
    "surge by two": (2, 0),
    "half at once": (0, 1),
    "all at once": (0, 3),
    "nothing allowed": (0, 1),
}
"""Replicas more and fewer than three."""


@pytest.mark.parametrize("name", STRATEGIES)
def test_operator_rollout_bounds(name: str) -> None:
    bounds = room(Rollout.model_validate(STRATEGIES[name]), 3)
    assert (bounds.surge, bounds.unavailable) == BOUNDS[name]


@pytest.mark.parametrize("name", STRATEGIES)
def test_operator_rollout_ends_with_the_new_revision_only(name: str) -> None:
    cluster = settled(rollout=STRATEGIES[name])
    cluster.edit(engine={"image": NEW_IMAGE})
    least, most = 3, 3
    for _ in range(90):
        cluster.reconcile()
        cluster.tick()
        least, most = min(least, len(cluster.serving())), max(most, sum(cluster.replicas().values()))
    surge, unavailable = BOUNDS[name]
    assert images(cluster) == [NEW_IMAGE] * 3
    assert least >= 3 - unavailable
    assert most <= 3 + surge
    assert len(cluster.replicas()) == 1
    assert not cluster.violations
    assert not cluster.changed_by(cluster.reconcile())


@pytest.mark.parametrize("strategy", ["Auto", "OneByOne"])
def test_operator_rollout_without_a_spare_gpu_ends(strategy: str) -> None:
    cluster = settled(places=3, rollout={"strategy": strategy})
    cluster.edit(engine={"image": NEW_IMAGE})
    run(cluster, 120)
    assert images(cluster) == [NEW_IMAGE] * 3
    assert not cluster.violations


def test_operator_surge_without_a_spare_gpu_is_blocked_and_says_so() -> None:
    cluster = settled(places=3, rollout={"strategy": "Surge", "progressDeadlineSeconds": 120})
    cluster.edit(engine={"image": NEW_IMAGE})
    run(cluster, 60)
    assert images(cluster) == [IMAGE] * 3
    assert condition(cluster, ConditionType.PROGRESSING) == ("False", "Blocked")
    assert condition(cluster, ConditionType.READY) == ("True", "Ready")
    assert condition(cluster, ConditionType.ENGINE_READY) == ("True", "Ready")
    run(cluster, 100)
    assert condition(cluster, ConditionType.PROGRESSING) == ("False", "DeadlineExceeded")


@pytest.mark.parametrize("rollout", [pytest.param(value, id=name) for name, value in STRATEGIES.items()])
def test_operator_bad_revision_stops_at_the_first_replica_and_goes_with_the_edit(rollout: dict[str, Any]) -> None:
    cluster = settled(rollout={**rollout, "progressDeadlineSeconds": 120})
    cluster.edit(engine={"image": BAD_IMAGE})
    run(cluster, 130)
    assert sum(pod.image == BAD_IMAGE for pod in cluster.pods) == 1
    assert len(cluster.serving()) >= 2
    assert condition(cluster, ConditionType.PROGRESSING) == ("False", "DeadlineExceeded")
    cluster.edit(engine=None)
    run(cluster, 60)
    assert images(cluster) == [IMAGE] * 3
    assert condition(cluster, ConditionType.PROGRESSING) == ("False", "Stable")
    assert not cluster.violations


def test_operator_pool_that_never_worked_is_replaced_at_once() -> None:
    cluster = a_cluster(places=3, engine={"image": BAD_IMAGE}, rollout={"strategy": "Surge"})
    run(cluster, 30)
    cluster.edit(engine={"image": NEW_IMAGE})
    run(cluster, 60)
    assert images(cluster) == [NEW_IMAGE] * 3


def test_operator_busy_replica_goes_when_it_is_idle() -> None:
    cluster = settled()
    for pod in cluster.pods:
        pod.busy_until = cluster.now + timedelta(seconds=30)
    cluster.edit(replicas=1)
    run(cluster, 20)
    assert len(draining(cluster)) == 2
    assert condition(cluster, ConditionType.PROGRESSING) == ("True", "Draining")
    run(cluster, 20)
    assert len(cluster.pods) == 1
    assert (cluster.violations, cluster.cuts) == ([], 0)


@pytest.mark.parametrize(("action", "left"), [("Terminate", 1), ("Wait", 3)])
def test_operator_drain_that_does_not_end(action: str, left: int) -> None:
    cluster = settled(drain={"timeoutSeconds": DRAIN_SECONDS, "onTimeout": action})
    for pod in cluster.pods:
        pod.busy_until = cluster.now + timedelta(hours=1)
    cluster.edit(replicas=1)
    run(cluster, DRAIN_SECONDS - 5)
    assert len(cluster.pods) == 3
    run(cluster, 20)
    assert len(cluster.pods) == left
    assert not cluster.violations


def test_operator_engine_that_does_not_answer_goes_at_its_deadline_and_no_other_does() -> None:
    cluster = settled()
    cluster.engines_answer = False
    busy = sorted(cluster.pods, key=lambda pod: pod.name)[:2]
    for pod in busy:
        pod.busy_until = cluster.now + timedelta(hours=1)
    cluster.edit(replicas=2)
    run(cluster, DRAIN_SECONDS - 5)
    assert len(cluster.pods) == 3
    run(cluster, 20)
    assert len(cluster.pods) == 2
    assert not cluster.violations


@pytest.mark.parametrize(
    ("routers_answer", "seconds"),
    [
        pytest.param(True, 30, id="routers say that they leave it alone: when it is idle"),
        pytest.param(False, DRAIN_SECONDS, id="routers do not answer: at its deadline"),
    ],
)
def test_operator_engine_without_the_drain_call_goes_once_its_requests_are_done(
    routers_answer: bool, seconds: int
) -> None:
    cluster = settled()
    cluster.engines_know_the_call, cluster.routers_answer = False, routers_answer
    for pod in cluster.pods:
        pod.busy_until = cluster.now + timedelta(seconds=25)
    cluster.edit(replicas=1)
    run(cluster, seconds - 6)
    assert len(cluster.pods) == 3
    run(cluster, 15)
    assert len(cluster.pods) == 1
    assert (cluster.violations, cluster.cuts) == ([], 0)


def test_operator_scale_down_that_is_taken_back_lets_every_replica_serve_again() -> None:
    cluster = settled()
    for pod in cluster.pods:
        pod.busy_until = cluster.now + timedelta(seconds=40)
    cluster.edit(replicas=1)
    run(cluster, 10)
    cluster.edit(replicas=3)
    assert cluster.reconcile(0).requeue_after_seconds == POLL_SECONDS, "an engine may not have heard it"
    run(cluster, 10)
    assert len(cluster.serving()) == 3
    assert not any(pod.engine_drains for pod in cluster.pods)
    assert not cluster.changed_by(cluster.reconcile())


def test_operator_scale_down_takes_what_never_served_first() -> None:
    cluster = settled(places=3)
    cluster.edit(replicas=5)
    run(cluster, 10)
    cluster.edit(replicas=3)
    run(cluster, 10)
    assert len(cluster.serving()) == 3
    assert len(cluster.pods) == 3


def test_operator_pool_scales_to_zero_and_back() -> None:
    cluster = settled()
    cluster.edit(replicas=0)
    run(cluster, 20)
    assert cluster.pods == []
    assert condition(cluster, ConditionType.READY) == ("False", "ScaledToZero")
    assert not cluster.changed_by(cluster.reconcile())
    cluster.edit(replicas=2)
    run(cluster, 40)
    assert len(cluster.serving()) == 2


def test_operator_paused_rollout_moves_nothing_and_still_scales() -> None:
    cluster = settled(rollout={"paused": True})
    cluster.edit(engine={"image": NEW_IMAGE})
    run(cluster, 10)
    assert images(cluster) == [IMAGE] * 3
    assert condition(cluster, ConditionType.PROGRESSING) == ("False", "Paused")
    cluster.edit(replicas=4)
    run(cluster, 40)
    assert images(cluster) == [IMAGE] * 4
    cluster.edit(replicas=2)
    run(cluster, 20)
    assert images(cluster) == [IMAGE] * 2
    cluster.edit(rollout={"paused": False})
    run(cluster, 200)
    assert images(cluster) == [NEW_IMAGE] * 2


def test_operator_replicas_over_nodes_give_up_the_highest_group() -> None:
    cluster = settled(parallelism={"tensor": 4, "nodes": 2})
    assert len(cluster.pods) == 6
    for pod in cluster.pods:
        pod.busy_until = cluster.now + timedelta(seconds=30 if pod.group == 2 else 0)
    cluster.edit(replicas=1)
    run(cluster, 20)
    assert len(cluster.pods) == 6, "group 1 is idle, but lowering would end group 2, which is busy"
    run(cluster, 30)
    assert sorted((pod.group, pod.worker) for pod in cluster.pods) == [(0, 0), (0, 1)]
    assert not cluster.violations


def test_operator_seeds_absent_replicas_once() -> None:
    cluster = a_cluster(replicas=None, autoscaling={"minReplicas": 2, "maxReplicas": 5})
    assert cluster.reconcile().seed_replicas == 2
    assert cluster.reconcile().seed_replicas is None
    run(cluster, 40)
    cluster.edit(replicas=4)
    run(cluster, 40)
    cluster.edit(replicas=None)
    assert cluster.reconcile().seed_replicas == 4


def test_operator_drift_of_a_template_is_repaired_from_what_was_made() -> None:
    cluster = settled()
    ref = next(ref for ref in cluster.objects if ref.kind == "Deployment")
    right = cluster.objects[ref]["spec"]
    cluster.objects[ref] = {**cluster.objects[ref], "spec": {**right, "replicas": 7, "template": {"spec": {}}}}
    run(cluster, 30)
    assert cluster.objects[ref]["spec"] == right


EDITS = st.one_of(
    st.builds(lambda n: {"replicas": n}, st.integers(0, 5)),
    st.builds(lambda image: {"engine": {"image": image}}, st.sampled_from([IMAGE, NEW_IMAGE, BAD_IMAGE])),
    st.builds(
        lambda strategy, paused: {"rollout": {"strategy": strategy, "paused": paused, "progressDeadlineSeconds": 120}},
        st.sampled_from(["Auto", "Surge", "OneByOne"]),
        st.booleans(),
    ),
)
STEPS = st.lists(
    st.tuples(
        st.one_of(st.none(), EDITS, st.sampled_from(["kill", "busy", "hang"])),
        st.integers(1, 30),
        st.one_of(st.none(), st.integers(0, 6)),
    ),
    max_size=8,
)


def disturb(cluster: Cluster, what: dict[str, Any] | str | None) -> None:
    if isinstance(what, dict):
        cluster.edit(**what)
    elif what == "kill" and cluster.pods:
        cluster.kill(cluster.pods[0])
    elif what == "hang" and cluster.pods:
        cluster.pods[-1].hung = not cluster.pods[-1].hung
    elif what == "busy":
        for pod in cluster.serving():
            pod.busy_until = cluster.now + timedelta(seconds=25)


@settings(max_examples=15, deadline=None)
@given(STEPS, st.integers(3, 8), st.sampled_from([1, 2]))
def test_operator_pool_converges_after_any_history(
    steps: list[tuple[dict[str, Any] | str | None, int, int | None]], places: int, nodes: int
) -> None:
    """Whatever users did, pods died and writes failed: no busy pod ends before its deadline, no rollout asks for more than it may,
    only documented reasons are given, and when it is quiet the pool is as wanted and nothing is written."""
    cluster = a_cluster(places=places * nodes, parallelism={"tensor": nodes, "nodes": nodes})
    for what, seconds, writes in steps:
        disturb(cluster, what)
        for _ in range(seconds):
            before = sum(cluster.replicas().values())
            cluster.reconcile(writes)
            after = sum(cluster.replicas().values())
            assert after <= max(before, (cluster.pool.spec.replicas or 0) + 1)
            cluster.tick()
    for pod in cluster.pods:
        pod.hung = False
    cluster.edit(rollout={"strategy": "Auto"}, engine={"image": NEW_IMAGE}, replicas=2)
    run(cluster, 150)
    assert cluster.violations == []
    assert images(cluster) == [NEW_IMAGE] * 2 * nodes
    assert not cluster.changed_by(cluster.reconcile())
    for found in cluster.pool.status.conditions:
        documented = {(doc.status, doc.reason) for doc in reasons_of("ServingPool", ConditionType(found.type))}
        assert (found.status, ConditionReason(found.reason)) in documented
