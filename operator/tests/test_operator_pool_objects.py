"""Which objects a pool gets, keeps, leaves alone and takes away; and what never rolls its pods."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hlserve_api.testing.manifests import a_human_less_pool, an_interactive_pool, changed
from hlserve_api.v1alpha1 import ServingPool
from hlserve_capacity.calibration import Calibration, parse_calibration
from hlserve_operator.pools.objects import owned_refs, referenced_secrets
from hlserve_operator.pools.observed import OptionalApis, PoolObserved
from hlserve_operator.pools.plan_pool import plan_pool
from hlserve_operator.refs import Ref
from hlserve_operator.render.metadata import TEMPLATE_ANNOTATION
from hlserve_operator.resources import PLURALS
from hlserve_operator.state import Manifest, Release
from hlserve_operator.testing.cluster import ALL_APIS, START, Cluster

IMAGE = "registry.example/engine@sha256:" + "a" * 64
RELEASE = Release(default_image=IMAGE, monitoring_namespace_labels={"team": "watch"})


def a_pool(base: Manifest | None = None, **spec: Any) -> ServingPool:
    document = changed(base if base is not None else a_human_less_pool(), "metadata.uid", "pool-uid")
    document["metadata"]["generation"] = 1
    return ServingPool.model_validate({**document, "spec": {**document["spec"], "replicas": 1, **spec}})


def made(pool: ServingPool, seconds: int = 12) -> Cluster:
    cluster = Cluster(pool, RELEASE, places=9)
    for _ in range(seconds):
        cluster.reconcile()
        cluster.tick()
    return cluster


def kinds(manifests: Any) -> set[str]:
    return {manifest["kind"] for manifest in manifests}


def reason(look: PoolObserved, kind: str, release: Release = RELEASE) -> str | None:
    status = plan_pool(look, release, START).status or {}
    return next((str(c["reason"]) for c in status.get("conditions", ()) if c["type"] == kind), None)


def test_operator_pool_being_deleted_is_left_to_garbage_collection() -> None:
    document = changed(a_human_less_pool(), "metadata.deletionTimestamp", "2026-01-01T00:00:00Z")
    actions = plan_pool(PoolObserved(pool=ServingPool.model_validate(document)), RELEASE, START)
    assert actions.writes_nothing
    assert not actions.apply


@pytest.mark.parametrize(
    ("apis", "want"),
    [
        pytest.param(OptionalApis(), set(), id="a bare cluster"),
        pytest.param(OptionalApis(keda=True), {"ScaledObject"}, id="KEDA"),
        pytest.param(OptionalApis(pod_monitor=True), {"PodMonitor"}, id="the Prometheus operator"),
    ],
)
def test_operator_optional_objects_are_made_where_their_kind_is_served(apis: OptionalApis, want: set[str]) -> None:
    pool = a_pool(autoscaling={"maxReplicas": 2})
    found = kinds(plan_pool(PoolObserved(pool=pool, optional_apis=apis), RELEASE, START).apply)
    assert found == {"Deployment", "Service", "NetworkPolicy", *want}


def test_operator_every_kind_that_it_makes_has_a_path() -> None:
    for base, spec in (
        (a_human_less_pool(), {"autoscaling": {"maxReplicas": 2}, "parallelism": {"tensor": 2, "nodes": 2}}),
        (an_interactive_pool(), {"autoscaling": {"maxReplicas": 2, "provider": "HPA"}}),
    ):
        pool = a_pool(base, **spec)
        applied = plan_pool(PoolObserved(pool=pool, optional_apis=ALL_APIS), RELEASE, START).apply
        assert {(manifest["apiVersion"], manifest["kind"]) for manifest in applied} <= PLURALS.keys()
        shared = {Ref.of(manifest) for manifest in applied if manifest["kind"] not in ("Deployment", "LeaderWorkerSet")}
        assert shared <= set(owned_refs(pool))


@pytest.mark.parametrize("kind", ["Service", "NetworkPolicy", "Deployment"])
def test_operator_object_of_somebody_else_is_not_taken_over(kind: str) -> None:
    pool = a_pool()
    planned = {m["kind"]: m for m in plan_pool(PoolObserved(pool=pool), RELEASE, START).apply}
    foreign = {**planned[kind], "metadata": {"name": planned[kind]["metadata"]["name"], "uid": "theirs"}}
    look = PoolObserved(pool=pool, objects={Ref.of(foreign): foreign})
    actions = plan_pool(look, RELEASE, START)
    assert kind not in kinds(actions.apply)
    assert not actions.delete
    assert reason(look, "Ready") == "NameTaken"


def test_operator_object_of_an_earlier_pool_of_the_same_name_is_not_ours() -> None:
    cluster = made(a_pool())
    document = changed(a_human_less_pool(), "metadata.uid", "another-uid")
    again = ServingPool.model_validate(document)
    actions = plan_pool(replace(cluster.observe(), pool=again), RELEASE, START)
    assert not actions.delete
    assert not actions.apply
    assert actions.requeue_after_seconds is not None


def test_operator_takes_away_what_nothing_wants_any_more() -> None:
    cluster = made(a_pool(autoscaling={"maxReplicas": 2}, throughput={"preemptible": False}))
    assert {"PodDisruptionBudget", "ScaledObject"} <= {ref.kind for ref in cluster.objects}
    cluster.edit(autoscaling=None, throughput={"preemptible": True})
    cluster.reconcile()
    assert not {"PodDisruptionBudget", "ScaledObject"} & {ref.kind for ref in cluster.objects}
    assert sum(cluster.replicas().values()) == 1, "the live count stays"


def test_operator_upgrade_that_renders_otherwise_rolls_no_pod() -> None:
    """The same pool, made by an operator that rendered another argument: its status and child are as that one left them."""
    cluster = made(a_pool())
    before = [pod.uid for pod in cluster.pods]
    (ref,) = [ref for ref in cluster.objects if ref.kind == "Deployment"]
    child = cluster.objects[ref]
    spec = json.loads(child["metadata"]["annotations"][TEMPLATE_ANNOTATION])
    spec["template"]["spec"]["containers"][0]["args"].append("--of-the-former-version")
    former = Ref(ref.api_version, ref.kind, "agents-00000000")
    annotations = {TEMPLATE_ANNOTATION: json.dumps(spec)}
    labels = {**child["metadata"]["labels"], "serving.hlserve.io/revision": "00000000"}
    metadata = {**child["metadata"], "name": former.name, "annotations": annotations, "labels": labels}
    cluster.objects = {
        **{known: manifest for known, manifest in cluster.objects.items() if known != ref},
        former: {**child, "metadata": metadata, "spec": {"replicas": 1, **spec}},
    }
    for pod in cluster.pods:
        pod.revision, pod.child = "00000000", former
    document = cluster.pool.model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["status"]["engine"]["templateHash"] = "00000000"
    cluster.pool = ServingPool.model_validate(document)
    for _ in range(30):
        cluster.reconcile()
        cluster.tick()
    assert [pod.uid for pod in cluster.pods] == before
    assert cluster.objects[former]["spec"]["template"]["spec"]["containers"][0]["args"][-1] == "--of-the-former-version"
    assert not cluster.changed_by(cluster.reconcile())
    cluster.edit(engine={"env": [{"name": "A", "value": "b"}]})
    cluster.reconcile()
    assert len(cluster.replicas()) == 2, "what the user changes is rolled out"


def test_operator_other_default_image_rolls() -> None:
    cluster = made(a_pool())
    cluster.release = Release(default_image=IMAGE.replace("a" * 64, "d" * 64))
    cluster.reconcile()
    assert len(cluster.replicas()) == 2


def a_calibration(prefill_us: float = 5.0, pool_tokens: int = 200_000) -> Calibration:
    return parse_calibration(
        json.dumps(
            {
                "schemaVersion": 1,
                "engine": "sglang 0.5.23",
                "device": "H200",
                "model": "m",
                "t0Us": 2000,
                "weightPassUs": 3000,
                "sequenceUs": 20,
                "contextTokenUs": 0.01,
                "prefillTokenUs": prefill_us,
                "chunkBoundaryUs": 100,
                "poolTokens": pool_tokens,
                "fitErrors": {"medianPercent": 1, "maxPercent": 3},
            }
        )
    )


@pytest.mark.parametrize(
    ("later", "revisions"),
    [
        pytest.param(a_calibration(pool_tokens=210_000), 1, id="a little noise"),
        pytest.param(a_calibration(pool_tokens=500_000), 2, id="another machine"),
        pytest.param(None, 1, id="the calibration is gone"),
    ],
)
def test_operator_calibration_rolls_pods_only_if_it_says_something_else(
    later: Calibration | None, revisions: int
) -> None:
    cluster = Cluster(a_pool(calibrationRef={"name": "c"}), RELEASE, places=9)
    cluster.calibration = a_calibration()
    for _ in range(12):
        cluster.reconcile()
        cluster.tick()
    derived = cluster.pool.status.derived
    cluster.calibration = later
    cluster.reconcile()
    assert len(cluster.replicas()) == revisions
    if later is not None and revisions == 1:
        assert cluster.pool.status.derived == derived, "what is in force is told, not what would be"
    cluster.tick()
    cluster.reconcile()
    assert not cluster.changed_by(cluster.reconcile()) or revisions == 2


def test_operator_child_without_its_annotation_keeps_what_is_stored() -> None:
    cluster = made(a_pool())
    (ref,) = [ref for ref in cluster.objects if ref.kind == "Deployment"]
    spec = cluster.objects[ref]["spec"]
    del cluster.objects[ref]["metadata"]["annotations"]
    cluster.reconcile()
    assert cluster.objects[ref]["spec"] == spec
    assert json.loads(cluster.objects[ref]["metadata"]["annotations"][TEMPLATE_ANNOTATION])["template"]


def test_operator_names_the_secrets_that_pods_need() -> None:
    pool = a_pool(
        engine={
            "apiKeySecretRef": {"name": "key", "key": "k"},
            "tls": {"secretName": "tls"},
            "imagePullSecrets": [{"name": "pull"}],
            "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "env", "key": "a"}}}],
        }
    )
    assert referenced_secrets(pool) == ("env", "key", "pull", "tls")


def test_operator_plan_is_the_same_for_the_same_look() -> None:
    cluster = made(a_pool(), seconds=3)
    look = cluster.observe()
    later = cluster.now + timedelta(seconds=1)
    assert plan_pool(look, RELEASE, later) == plan_pool(look, RELEASE, later)
