"""What a pool's conditions say about pods that do not run: one reason that people can act on, and the words that help."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hlserve_api.conditions import ConditionReason, ConditionType
from hlserve_api.testing.manifests import a_human_less_pool, an_interactive_pool, changed
from hlserve_api.v1alpha1 import ServingPool
from hlserve_api.v1alpha1.meta import Condition
from hlserve_api.v1alpha1.pool_status import SloStatus
from hlserve_operator.pools.actions import EventType, PoolActions
from hlserve_operator.pools.observed import EngineExit, OptionalApis, PodView, PoolObserved, RouterView, ScalerView
from hlserve_operator.pools.plan_pool import plan_pool
from hlserve_operator.pools.views import pod_view, scaler_view
from hlserve_operator.refs import Ref
from hlserve_operator.state import Manifest, Release
from hlserve_operator.testing.cluster import ALL_APIS, START, Cluster

RELEASE = Release(default_image="registry.example/engine@sha256:" + "a" * 64)
ROUTERS = RouterView(routers=2, answering=2, synced=2)


def a_pool(base: Callable[[], Manifest] = a_human_less_pool, **spec: Any) -> ServingPool:
    document = changed(base(), "metadata.uid", "pool-uid")
    document["metadata"]["generation"] = 3
    return ServingPool.model_validate({**document, "spec": {**document["spec"], "replicas": 1, **spec}})


def observed(pool: ServingPool, *pods: dict[str, Any], **changes: Any) -> PoolObserved:
    """The pool with its child made, and pods of it with the given facts."""
    cluster = Cluster(pool, RELEASE, places=0)
    cluster.reconcile()
    (revision,) = cluster.replicas() or {"none": 0}
    views = tuple(
        PodView(name=f"p{i}", uid=f"p{i}", revision=revision, created_at=START, **facts) for i, facts in enumerate(pods)
    )
    base = PoolObserved(pool=pool, objects=cluster.objects, pods=views, routers=ROUTERS, optional_apis=ALL_APIS)
    return replace(base, **changes)


def conditions(look: PoolObserved, seconds: int = 60) -> dict[str, Condition]:
    status = plan_pool(look, RELEASE, START + timedelta(seconds=seconds)).status
    assert status is not None
    return {c["type"]: Condition.model_validate(c) for c in status["conditions"]}


RUNNING: dict[str, Any] = {"ready": True, "started": True, "running_since": START}

FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no GPU": (
        {"unschedulable_since": START, "unschedulable_message": "0/3 nodes: 3 Insufficient nvidia.com/gpu."},
        "InsufficientGPU",
        "Insufficient nvidia.com/gpu",
    ),
    "a bad image": (
        {"waiting_reason": "ImagePullBackOff", "waiting_message": "manifest unknown"},
        "ImagePullFailed",
        "manifest unknown",
    ),
    "a crash loop": (
        {
            "waiting_reason": "CrashLoopBackOff",
            "restarts": 4,
            "last_exit": EngineExit(exit_code=1, reason="Error", message="ValueError: no such model", ran_seconds=3),
        },
        "CrashLoop",
        "no such model",
    ),
    "out of memory": (
        {"restarts": 2, "last_exit": EngineExit(exit_code=137, reason="OOMKilled"), "running_since": START},
        "CrashLoop",
        "raise resources.memory",
    ),
    "a missing plugin": (
        {
            "restarts": 1,
            "last_exit": EngineExit(
                exit_code=2, message="launch_server: error: unrecognized arguments: --enable-throughput-mode"
            ),
        },
        "PluginMissing",
        "use the engine image",
    ),
    "a hook that is not live": (
        {"restarts": 1, "last_exit": EngineExit(exit_code=3, message="hlserve_engine: hook of Scheduler is not live")},
        "PluginMissing",
        "not live",
    ),
    "a start that takes too long": (
        {"running_since": START - timedelta(seconds=1800)},
        "StartupTimeout",
        "startup.timeoutSeconds (1800 s)",
    ),
    "a start that was ended": (
        {"restarts": 1, "running_since": START, "last_exit": EngineExit(exit_code=137, ran_seconds=1810)},
        "StartupTimeout",
        "kubectl logs --previous p0",
    ),
    "a missing Secret": (
        {"waiting_reason": "CreateContainerConfigError", "waiting_message": 'secret "engine-key" not found'},
        "SecretMissing",
        "engine-key",
    ),
    "a load in time": ({"running_since": START}, "Starting", "may take 1800 s"),
}


@pytest.mark.parametrize(("pod", "reason", "words"), [pytest.param(*case, id=name) for name, case in FAULTS.items()])
def test_operator_engine_ready_names_the_fault(pod: dict[str, Any], reason: str, words: str) -> None:
    found = conditions(observed(a_pool(), pod))
    assert (found["EngineReady"].status, found["EngineReady"].reason) == ("False", reason)
    assert words in found["EngineReady"].message
    assert (found["Ready"].status, found["Ready"].reason) == ("False", "Starting")
    assert words in found["Ready"].message
    assert found["Ready"].observed_generation == 3


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        pytest.param("OSError: [Errno 28] No space left on device", "DiskFull", id="a full disk"),
        pytest.param("huggingface_hub.errors.RevisionNotFoundError: 404", "RevisionNotFound", id="a wrong revision"),
        pytest.param("GatedRepoError: 401 Client Error", "DownloadFailed", id="a gated model"),
    ],
)
def test_operator_model_available_names_the_fault(words: str, reason: str) -> None:
    pod = {"restarts": 3, "last_exit": EngineExit(exit_code=1, message=words)}
    assert conditions(observed(a_pool(), pod))["ModelAvailable"].reason == reason


QUOTA = 'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 8, limited: 8'


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param(QUOTA, "QuotaExceeded", id="a quota"),
        pytest.param("minimum cpu usage per Container is 1, but request is 0", "QuotaExceeded", id="a limit range"),
        pytest.param("violates PodSecurity restricted", "Starting", id="another refusal"),
    ],
)
def test_operator_engine_ready_says_what_refuses_pods(message: str, reason: str) -> None:
    look = observed(a_pool())
    ref = next(ref for ref in look.objects if ref.kind == "Deployment")
    failing = {
        "conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}]
    }
    found = conditions(replace(look, objects={**look.objects, ref: {**look.objects[ref], "status": failing}}))
    assert found["EngineReady"].reason == reason
    assert message[:40] in found["EngineReady"].message


def test_operator_missing_token_secret_is_named_before_any_pod_fails() -> None:
    source = {"uri": "hf://a/b", "revision": "c", "tokenSecretRef": {"name": "hub", "key": "token"}}
    pool = a_pool(model={"name": "m", "source": source})
    found = conditions(observed(pool, {"running_since": START}))
    assert found["ModelAvailable"].reason == "SecretMissing"
    present = conditions(observed(pool, {"running_since": START}, secrets={"hub": frozenset({"token"})}))
    assert present["ModelAvailable"].reason == "Downloading"


def test_operator_leader_worker_set_that_is_not_installed_is_named_and_picked_up_later() -> None:
    pool = a_pool(parallelism={"tensor": 4, "nodes": 2})
    lacking = PoolObserved(pool=pool, routers=ROUTERS)
    assert conditions(lacking)["EngineReady"].reason == "LeaderWorkerSetMissing"
    kinds = {m["kind"] for m in plan_pool(lacking, RELEASE, START).apply}
    assert "LeaderWorkerSet" not in kinds
    installed = plan_pool(replace(lacking, optional_apis=ALL_APIS), RELEASE, START)
    assert "LeaderWorkerSet" in {manifest["kind"] for manifest in installed.apply}


KEDA = {"autoscaling": {"minReplicas": 1, "maxReplicas": 3}}
STRANGER = ScalerView(ref=Ref("autoscaling/v2", "HorizontalPodAutoscaler", "mine"), owned=False)
OURS = ScalerView(ref=Ref("keda.sh/v1alpha1", "ScaledObject", "agents"), owned=True, active=True)


@pytest.mark.parametrize(
    ("spec", "changes", "want"),
    [
        pytest.param({}, {}, None, id="no autoscaling"),
        pytest.param(KEDA, {"optional_apis": OptionalApis()}, ("False", "CRDMissing"), id="KEDA is missing"),
        pytest.param(KEDA, {}, ("Unknown", "Unknown"), id="not reported yet"),
        pytest.param(KEDA, {"scalers": (OURS,)}, ("True", "Active"), id="active"),
        pytest.param(KEDA, {"scalers": (OURS, STRANGER)}, ("False", "ConflictingScaler"), id="two autoscalers"),
        pytest.param(
            {"autoscaling": {"provider": "External", "maxReplicas": 3}},
            {"scalers": (STRANGER,)},
            ("True", "External"),
            id="something of the user's",
        ),
    ],
)
def test_operator_autoscaler_active(spec: Any, changes: dict[str, Any], want: tuple[str, str] | None) -> None:
    found = conditions(observed(a_pool(**spec), RUNNING, **changes)).get("AutoscalerActive")
    assert (None if found is None else (found.status, found.reason)) == want


def a_scaler(owner: dict[str, Any] | None = None, name: str = "agents") -> Manifest:
    target = {"apiVersion": "serving.hlserve.io/v1alpha1", "kind": "ServingPool", "name": name}
    metadata = {"name": "s", **({"ownerReferences": [owner]} if owner else {})}
    status = {"conditions": [{"type": "ScalingActive", "status": "False", "message": "no metric"}]}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata,
        "spec": {"scaleTargetRef": target},
        "status": status,
    }


def test_operator_scaler_is_ours_by_owner_or_through_keda() -> None:
    pool = a_pool()
    through = {"kind": "ScaledObject", "name": "agents", "uid": "x", "controller": True}
    ours = {"kind": "ServingPool", "name": "agents", "uid": "pool-uid", "controller": True}
    for owner, want in ((None, False), (through, True), (ours, True)):
        view = scaler_view(a_scaler(owner), pool)
        assert view is not None
        assert (view.owned, view.active, view.message) == (want, False, "no metric")
    assert scaler_view(a_scaler(name="other"), pool) is None


@pytest.mark.parametrize(
    ("routers", "routable", "ready"),
    [
        pytest.param(RouterView(), ("False", "NoRouter"), "False", id="no router"),
        pytest.param(RouterView(routers=2), ("Unknown", "Unknown"), "True", id="routers that do not answer"),
        pytest.param(
            RouterView(routers=2, answering=2, synced=1), ("False", "RouterSyncing"), "False", id="a table on its way"
        ),
        pytest.param(ROUTERS, ("True", "RouterSynced"), "True", id="every router"),
    ],
)
def test_operator_routable(routers: RouterView, routable: tuple[str, str], ready: str) -> None:
    found = conditions(observed(a_pool(), RUNNING, routers=routers))
    assert (found["Routable"].status, found["Routable"].reason) == routable
    assert found["Ready"].status == ready


@pytest.mark.parametrize(
    ("percent", "want"),
    [(None, ("Unknown", "NoTraffic")), (94, ("False", "Missed")), (95, ("True", "Met"))],
)
def test_operator_slo_met_is_said_of_interactive_pools_only(percent: int | None, want: tuple[str, str]) -> None:
    routers = replace(ROUTERS, slo=SloStatus(window_seconds=300, attainment_percent=percent))
    found = conditions(observed(a_pool(an_interactive_pool), RUNNING, routers=routers))
    assert (found["SLOMet"].status, found["SLOMet"].reason) == want
    assert "SLOAttainable" in found
    assert not {"SLOMet", "SLOAttainable"} & conditions(observed(a_pool(), RUNNING)).keys()


@pytest.mark.parametrize(
    ("spec", "changes", "want"),
    [
        pytest.param({}, {}, ("False", "NotCalibrated"), id="nothing to derive from"),
        pytest.param({"podPatch": {"x": 1}}, {}, ("False", "PatchRejected"), id="a bad patch"),
        pytest.param({"engine": {"extraArgs": ["--tp", "2"]}}, {}, ("False", "ArgRejected"), id="a bad argument"),
        pytest.param(
            {"calibrationRef": {"name": "c"}},
            {"calibration_problem": "there is no ConfigMap c"},
            ("False", "NotCalibrated"),
            id="a calibration that is missing",
        ),
        pytest.param(
            {
                "hardware": {"accelerator": "H200"},
                "model": {
                    "name": "m",
                    "source": {"uri": "pvc://a/b"},
                    "shape": {"name": "llama-3.1-8b"},
                },
                "engine": {"image": "registry.example/engine:1"},
            },
            {},
            ("True", "FloatingImageTag"),
            id="a tag",
        ),
    ],
)
def test_operator_config_derived(spec: dict[str, Any], changes: dict[str, Any], want: tuple[str, str]) -> None:
    found = conditions(replace(PoolObserved(pool=a_pool(**spec), routers=ROUTERS), **changes))["ConfigDerived"]
    assert (found.status, found.reason) == want


def test_operator_denied_call_and_old_crd_are_said_first() -> None:
    look = observed(a_pool(), RUNNING)
    denied = conditions(replace(look, denied="deployments is forbidden"))["Ready"]
    assert (denied.reason, "deployments is forbidden" in denied.message) == ("PermissionDenied", True)
    pruned = conditions(replace(look, pruned_fields=("spec.aliases",)))["Ready"]
    assert (pruned.reason, "spec.aliases" in pruned.message) == ("PrunedField", True)


def step(look: PoolObserved, seconds: int) -> tuple[PoolActions, PoolObserved]:
    """The actions, and the same observation with the status written."""
    actions = plan_pool(look, RELEASE, START + timedelta(seconds=seconds))
    document = look.pool.model_dump(mode="json", by_alias=True, exclude_unset=True)
    status = actions.status if actions.status is not None else document.get("status", {})
    return actions, replace(look, pool=ServingPool.model_validate({**document, "status": status}))


def test_operator_status_is_written_once_and_events_are_told_once() -> None:
    pod = FAULTS["no GPU"][0]
    first, look = step(observed(a_pool(), pod), 60)
    assert [(event.type, event.reason) for event in first.events] == [
        (EventType.WARNING, ConditionReason.INSUFFICIENT_GPU)
    ]
    second, _ = step(look, 90)
    assert (second.status, second.events) == (None, ())


def test_operator_condition_keeps_its_time_until_its_status_flips() -> None:
    _, look = step(observed(a_pool(), FAULTS["no GPU"][0]), 60)
    _, look = step(replace(look, pods=(replace(look.pods[0], unschedulable_since=None, running_since=START),)), 120)
    loading = {c.type: c for c in look.pool.status.conditions}[ConditionType.ENGINE_READY]
    assert (loading.reason, loading.last_transition_time) == ("Starting", START + timedelta(seconds=60))
    actions, look = step(replace(look, pods=(replace(look.pods[0], ready=True, started=True),)), 180)
    ready = {c.type: c for c in look.pool.status.conditions}[ConditionType.ENGINE_READY]
    assert (ready.reason, ready.last_transition_time) == ("Ready", START + timedelta(seconds=180))
    assert [(event.type, event.reason) for event in actions.events] == [(EventType.NORMAL, ConditionReason.READY)]


def test_operator_pod_view_survives_a_pod_without_status_and_foreign_annotations() -> None:
    annotations = {"serving.hlserve.io/draining-since": "yesterday", "controller.kubernetes.io/pod-deletion-cost": "x"}
    view = pod_view({"metadata": {"name": "a", "annotations": annotations}})
    assert (view.ready, view.draining_since, view.released, view.last_exit) == (False, None, False, None)
