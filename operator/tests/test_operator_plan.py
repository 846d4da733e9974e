"""A pool's children: pinned byte for byte, equal when planned twice, and right where a mistake would hurt."""

import operator
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hlserve_api.v1alpha1 import ServingPool
from hlserve_capacity.derive import derive
from hlserve_operator.__main__ import to_yaml
from hlserve_operator.files import read_pools
from hlserve_operator.plan import plan
from hlserve_operator.render.metadata import POOL_LABEL, ROLE_LABEL
from hlserve_operator.state import Manifest, NotRenderableError, Release

GOLDEN = Path(__file__).parent / "golden"
RELEASE = Release(
    default_image="registry.example/sglang@sha256:" + "0" * 64, monitoring_namespace_labels={"team": "watch"}
)
CASES = sorted(path.name.removesuffix(".pool.yaml") for path in GOLDEN.glob("*.pool.yaml"))


def a_pool(case: str = "humanless", **spec: Any) -> ServingPool:
    """The pool of a golden case with some of its spec's fields replaced; None removes one."""
    document = yaml.safe_load((GOLDEN / f"{case}.pool.yaml").read_text(encoding="utf-8"))
    merged = {**document["spec"], **spec}
    document["spec"] = {name: value for name, value in merged.items() if value is not None}
    return ServingPool.model_validate(document)


def objects(pool: ServingPool, release: Release = RELEASE) -> dict[str, Manifest]:
    """The planned objects by kind."""
    return {manifest["kind"]: manifest for manifest in plan(pool, derive(pool), release).objects}


def pod(pool: ServingPool) -> dict[str, Any]:
    spec: dict[str, Any] = objects(pool)["Deployment"]["spec"]["template"]["spec"]
    return spec


def engine(pool: ServingPool) -> dict[str, Any]:
    container: dict[str, Any] = pod(pool)["containers"][0]
    return container


@pytest.mark.parametrize("case", CASES)
def test_operator_plan_is_as_pinned(case: str) -> None:
    (pool,) = read_pools(GOLDEN / f"{case}.pool.yaml")
    got = to_yaml(list(plan(pool, derive(pool), RELEASE).objects))
    golden = GOLDEN / f"{case}.objects.yaml"
    if os.environ.get("HLSERVE_UPDATE_GOLDEN") == "1":
        golden.write_text(got, encoding="utf-8")
    assert got == golden.read_text(encoding="utf-8")


def test_operator_plan_pins_four_pools() -> None:
    assert CASES == ["humanless", "interactive", "minimal", "nodes"]


@pytest.mark.parametrize("case", CASES)
def test_operator_plan_is_the_same_the_second_time(case: str) -> None:
    first = plan(a_pool(case), derive(a_pool(case)), RELEASE)
    assert plan(a_pool(case), derive(a_pool(case)), RELEASE) == first


MOVES_NO_POD = {
    "replicas": {"replicas": 7},
    "autoscaling": {"autoscaling": {"minReplicas": 1, "maxReplicas": 2}},
    "rollout": {"rollout": {"paused": True}},
    "disruption": {"throughput": {"preemptible": True}},
    "media": {"allowedMediaDomains": ["images.example"]},
}
ROLLS = {
    "an image": {"engine": {"image": "registry.example/other@sha256:" + "1" * 64}},
    "an argument": {"engine": {"extraArgs": ["--log-level", "debug"]}},
    "a variable": {"engine": {"env": [{"name": "A", "value": "b"}]}},
    "a memory request": {"resources": {"memory": "64Gi"}},
    "a node label": {"scheduling": {"nodeSelector": {"zone": "a"}}},
    "a grace period": {"drain": {"timeoutSeconds": 901}},
    "a model revision": {"model": {"name": "m", "source": {"uri": "hf://a/b", "revision": "c0ffee"}}},
    "a pod patch": {"podPatch": {"metadata": {"labels": {"team": "a"}}}},
    "nodes": {"parallelism": {"tensor": 4, "nodes": 2}},
    "the mode": {"mode": "Interactive", "slo": {"tpotMilliseconds": 50}, "throughput": None},
}


@pytest.mark.parametrize("spec", [pytest.param(spec, id=name) for name, spec in MOVES_NO_POD.items()])
def test_operator_revision_stays_when_no_pod_needs_to_change(spec: dict[str, Any]) -> None:
    changed = a_pool(**spec)
    assert plan(changed, derive(changed), RELEASE).revision == plan(a_pool(), derive(a_pool()), RELEASE).revision


@pytest.mark.parametrize("spec", [pytest.param(spec, id=name) for name, spec in ROLLS.items()])
def test_operator_revision_changes_with(spec: dict[str, Any]) -> None:
    changed = a_pool(**spec)
    assert plan(changed, derive(changed), RELEASE).revision != plan(a_pool(), derive(a_pool()), RELEASE).revision


@settings(max_examples=25)
@given(st.permutations(["mode", "model", "hardware", "traffic", "autoscaling", "drain", "throughput"]))
def test_operator_revision_does_not_depend_on_the_order_of_fields(order: list[str]) -> None:
    document = yaml.safe_load((GOLDEN / "humanless.pool.yaml").read_text(encoding="utf-8"))
    pool = ServingPool.model_validate({**document, "spec": {name: document["spec"][name] for name in order}})
    assert plan(pool, derive(pool), RELEASE).revision == plan(a_pool(), derive(a_pool()), RELEASE).revision


def test_operator_deployment_is_named_by_its_revision_and_selects_only_it() -> None:
    planned = plan(a_pool(), derive(a_pool()), RELEASE)
    deployment = objects(a_pool())["Deployment"]
    selector = {POOL_LABEL: "agents", "serving.hlserve.io/revision": planned.revision}
    assert deployment["metadata"]["name"] == f"agents-{planned.revision}"
    assert deployment["spec"]["selector"]["matchLabels"] == selector
    assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_operator_service_selects_every_revision() -> None:
    assert objects(a_pool())["Service"]["spec"]["selector"] == {POOL_LABEL: "agents", ROLE_LABEL: "serving"}


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({"throughput": {"preemptible": False}}, "25%", id="a protected throughput pool loses a quarter"),
        pytest.param({"throughput": {}}, None, id="a throughput pool is preemptible by default"),
        pytest.param({"throughput": None}, None, id="also without the object"),
        pytest.param(
            {"mode": "Interactive", "slo": {"tpotMilliseconds": 50}, "throughput": None}, 1, id="interactive loses one"
        ),
    ],
)
def test_operator_disruption_budget(spec: dict[str, Any], want: object) -> None:
    budget = objects(a_pool(**spec)).get("PodDisruptionBudget")
    assert (budget["spec"]["maxUnavailable"] if budget else None) == want


def test_operator_network_policy_opens_the_engine_port_to_its_release_only() -> None:
    policy = objects(a_pool())["NetworkPolicy"]["spec"]
    assert policy["podSelector"] == {"matchLabels": {POOL_LABEL: "agents"}}
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": 30000, "protocol": "TCP"}]
    release = {"app.kubernetes.io/instance": "hlserve"}
    assert rule["from"] == [
        {"podSelector": {"matchLabels": {**release, "app.kubernetes.io/component": "router"}}},
        {"podSelector": {"matchLabels": {**release, "app.kubernetes.io/component": "operator"}}},
        {"namespaceSelector": {"matchLabels": {"team": "watch"}}},
    ]
    (unwatched,) = objects(a_pool(), Release(default_image="i"))["NetworkPolicy"]["spec"]["ingress"]
    assert unwatched["from"] == rule["from"][:2]


def test_operator_engine_arguments_end_with_the_operators_own() -> None:
    args = engine(a_pool("interactive"))["args"]
    assert args[:2] == ["--log-level", "warning"]
    for flag, value in (
        ("--model-path", "meta-llama/Llama-3.1-70B-Instruct"),
        ("--revision", "1605565b47bb9346c5515c34102e054115b4f98b"),
        ("--port", "30000"),
        ("--tensor-parallel-size", "4"),
        ("--api-key", "$(HLSERVE_ENGINE_API_KEY)"),
    ):
        assert args[args.index(flag) + 1] == value
    assert "command" not in engine(a_pool("interactive"))


def test_operator_only_the_throughput_pool_runs_in_throughput_mode() -> None:
    assert "--enable-throughput-mode" in engine(a_pool("humanless"))["args"]
    assert "--enable-throughput-mode" not in engine(a_pool("interactive"))["args"]


@pytest.mark.parametrize(
    ("model", "want_path", "want_mount"),
    [
        pytest.param({"source": {"uri": "pvc://claim/a/b"}}, "/models/a/b", "/models", id="a claim is mounted"),
        pytest.param({"source": {"uri": "file:///opt/m"}}, "/opt/m", None, id="a file lies in the image"),
        pytest.param(
            {"source": {"uri": "file:///data/m"}, "cache": {"type": "HostPath", "hostPath": "/data"}},
            "/data/m",
            "/data",
            id="a file lies on the node",
        ),
        pytest.param(
            {"source": {"uri": "hf://a/b", "revision": "c"}}, "a/b", "/models", id="a download has a cache volume"
        ),
    ],
)
def test_operator_model_files(model: dict[str, Any], want_path: str, want_mount: str | None) -> None:
    container = engine(a_pool(model={"name": "m", **model}))
    assert container["args"][container["args"].index("--model-path") + 1] == want_path
    assert [m["mountPath"] for m in container["volumeMounts"]] == [p for p in (want_mount, "/dev/shm") if p]


def test_operator_gpus_follow_from_parallelism() -> None:
    resources = engine(a_pool("interactive"))["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": "4"}
    assert resources["requests"] == {"cpu": "16", "memory": "256Gi", "nvidia.com/gpu": "4"}


def test_operator_shared_memory_is_bounded() -> None:
    volumes = {volume["name"]: volume for volume in pod(a_pool("interactive"))["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "32Gi"}


def test_operator_pod_has_time_to_drain() -> None:
    assert pod(a_pool())["terminationGracePeriodSeconds"] == 900 + 5
    assert engine(a_pool())["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}


def test_operator_readiness_and_liveness_differ() -> None:
    """A draining engine is unready and alive: with one path for both the kubelet would kill what drains."""
    container = engine(a_pool())
    assert container["readinessProbe"]["httpGet"]["path"] == "/hlserve/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] >= 1800


def test_operator_pods_get_no_service_variables_and_no_token() -> None:
    spec = pod(a_pool())
    assert (spec["enableServiceLinks"], spec["automountServiceAccountToken"]) == (False, False)


def test_operator_children_of_a_stored_pool_are_owned_by_it() -> None:
    for manifest in objects(a_pool("interactive")).values():
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("ServingPool", "chat", True)
    for manifest in objects(a_pool("humanless")).values():
        assert "ownerReferences" not in manifest["metadata"]


@pytest.mark.parametrize(
    ("spec", "release", "want"),
    [
        pytest.param({"podPatch": {"status": {}}}, RELEASE, "only metadata and spec", id="a bad pod patch"),
        pytest.param(
            {"engine": {"extraArgs": ["--tp=2"]}}, RELEASE, "abbreviates --tp-size", id="a flag of the operator"
        ),
        pytest.param({}, Release(), "give --engine-image", id="no image anywhere"),
    ],
)
def test_operator_plan_says_what_it_cannot_render(spec: dict[str, Any], release: Release, want: str) -> None:
    pool = a_pool(**spec)
    with pytest.raises(NotRenderableError, match=want):
        plan(pool, derive(pool), release)


def test_operator_leaves_the_standard_librarys_operator_alone() -> None:
    assert operator.add(1, 1) == 2
