"""The Deployment of one revision. Its template is never edited: a change makes a new revision beside it."""

import math
from typing import Any

from hlserve_api.routing import Mode
from hlserve_api.v1alpha1 import ServingPool
from hlserve_api.v1alpha1.pool_placement import Scheduling
from hlserve_operator.render.metadata import (
    POOL_LABEL,
    REVISION_LABEL,
    ROLE_LABEL,
    SERVING,
    WORKER,
    labels,
    metadata,
)
from hlserve_operator.render.pod_patch import patched
from hlserve_operator.render.volumes import MODELS_PATH, TLS_PATH, Mount, mounts
from hlserve_operator.state import ENGINE_CONTAINER, ENGINE_PORT, EnginePlan, Manifest, Release

PROBE_PERIOD_SECONDS = 10
LIVENESS_SECONDS = {Mode.INTERACTIVE: 120, Mode.HUMAN_LESS: 300}
"""How long an engine may not answer `/health` before it is restarted. Long, because a restart cuts every stream that it holds;
longer in HumanLess, where one unbounded prefill may keep the process busy."""
ENDPOINT_REMOVAL_SECONDS = 5
"""Pause before SIGTERM, in which routers learn that the pod goes."""


def deployment(engine: EnginePlan, release: Release, revision: str, replicas: int) -> Manifest:
    """The Deployment `<pool>-<revision>` with `replicas` engines. Raises PatchRejectedError like `pod_template`."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child_metadata(engine.pool, release, revision),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 0,
            "progressDeadlineSeconds": engine.pool.spec.rollout.progress_deadline_seconds,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": revision_selector(engine.pool, revision)},
            "template": pod_template(engine, release, revision, SERVING),
        },
    }


def child_metadata(pool: ServingPool, release: Release, revision: str) -> dict[str, Any]:
    """Metadata of a revision's Deployment or LeaderWorkerSet."""
    meta = metadata(pool, release.name, f"{pool.name}-{revision}")
    meta["labels"][REVISION_LABEL] = revision
    return meta


def revision_selector(pool: ServingPool, revision: str) -> dict[str, str]:
    """Labels that select the pods of one revision."""
    return {POOL_LABEL: pool.name, REVISION_LABEL: revision}


def pod_template(engine: EnginePlan, release: Release, revision: str, role: str) -> dict[str, Any]:
    """The pod template, `podPatch` merged in. A worker has no probes and no part in drains: its replica stands and falls with the pod
    that serves. Raises PatchRejectedError, in one sentence, if the patch touches what is the operator's."""
    pool, selector = engine.pool, revision_selector(engine.pool, revision)
    spec = _pod(engine, selector)
    if role == WORKER:
        for name in ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle"):
            del spec["containers"][0][name]
    template = {
        "metadata": {
            "labels": {**labels(pool, release.name), ROLE_LABEL: role, **_queue(pool.spec.scheduling), **selector}
        },
        "spec": spec,
    }
    return template if pool.spec.pod_patch is None else patched(template, pool.spec.pod_patch)


def _pod(engine: EnginePlan, selector: dict[str, str]) -> dict[str, Any]:
    pool = engine.pool
    volumes = mounts(pool)
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": engine.grace_seconds + ENDPOINT_REMOVAL_SECONDS,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        **_placement(pool.spec.scheduling, selector),
        "containers": [_container(engine, volumes)],
        "volumes": [mount.volume for mount in volumes],
    }
    if pool.spec.engine.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": reference.name} for reference in pool.spec.engine.image_pull_secrets]
    return pod


def _container(engine: EnginePlan, volumes: tuple[Mount, ...]) -> dict[str, Any]:
    spec = engine.pool.spec
    scheme = "HTTP" if spec.engine.tls is None else "HTTPS"
    startup_failures = math.ceil(spec.startup.timeout_seconds / PROBE_PERIOD_SECONDS)
    liveness_failures = LIVENESS_SECONDS[spec.mode] // PROBE_PERIOD_SECONDS
    container: dict[str, Any] = {
        "name": ENGINE_CONTAINER,
        "image": engine.image,
        "args": [*engine.arguments, *_secret_arguments(engine.pool)],
        "env": _environment(engine.pool),
        "ports": [{"name": "http", "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        "resources": _resources(engine.pool),
        "startupProbe": _probe("/health", scheme, startup_failures),
        "readinessProbe": {**_probe("/hlserve/ready", scheme, 2), "periodSeconds": 2},
        "livenessProbe": _probe("/health", scheme, liveness_failures),
        "lifecycle": {"preStop": {"sleep": {"seconds": ENDPOINT_REMOVAL_SECONDS}}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount.container_mount for mount in volumes],
    }
    if spec.engine.image_pull_policy is not None:
        container["imagePullPolicy"] = spec.engine.image_pull_policy.value
    return container


def _probe(path: str, scheme: str, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": scheme},
        "periodSeconds": PROBE_PERIOD_SECONDS,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _resources(pool: ServingPool) -> dict[str, Any]:
    wanted = pool.spec.resources
    gpus = {wanted.gpu_resource_name: str(pool.spec.parallelism.gpus_per_pod)}
    requests = {name: value for name, value in (("cpu", wanted.cpu), ("memory", wanted.memory)) if value is not None}
    return {"requests": {**requests, **gpus}, "limits": gpus}


def _environment(pool: ServingPool) -> list[dict[str, Any]]:
    spec = pool.spec
    result: list[dict[str, Any]] = [
        {"name": "HLSERVE_POOL", "value": pool.name},
        {"name": "HLSERVE_MODE", "value": spec.mode.value},
        {"name": "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES", "value": "1"},
    ]
    if spec.model.source.uri.startswith("hf://"):
        result.append({"name": "HF_HOME", "value": f"{MODELS_PATH}/huggingface"})
    for name, reference in (
        ("HF_TOKEN", spec.model.source.token_secret_ref),
        ("HLSERVE_ENGINE_API_KEY", spec.engine.api_key_secret_ref),
    ):
        if reference is not None:
            result.append({"name": name, "valueFrom": {"secretKeyRef": {"name": reference.name, "key": reference.key}}})
    return [
        *result,
        *(variable.model_dump(mode="json", by_alias=True, exclude_none=True) for variable in spec.engine.env),
    ]


def _secret_arguments(pool: ServingPool) -> list[str]:
    result: list[str] = []
    if pool.spec.engine.api_key_secret_ref is not None:
        result += ["--api-key", "$(HLSERVE_ENGINE_API_KEY)"]  # Kubernetes puts the variable's value in
    if pool.spec.engine.tls is not None:
        result += ["--ssl-certfile", f"{TLS_PATH}/tls.crt", "--ssl-keyfile", f"{TLS_PATH}/tls.key"]
    return result


def _queue(scheduling: Scheduling) -> dict[str, str]:
    return {} if scheduling.queue_name is None else {"kueue.x-k8s.io/queue-name": scheduling.queue_name}


def _placement(scheduling: Scheduling, selector: dict[str, str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "nodeSelector": dict(scheduling.node_selector or {}),
        "tolerations": [t.model_dump(mode="json", by_alias=True, exclude_none=True) for t in scheduling.tolerations],
        "topologySpreadConstraints": [
            {**c.model_dump(mode="json", by_alias=True), "labelSelector": {"matchLabels": selector}}
            for c in scheduling.topology_spread_constraints
        ],
        "priorityClassName": scheduling.priority_class_name,
        "runtimeClassName": scheduling.runtime_class_name,
        "schedulerName": scheduling.scheduler_name,
    }
    return {name: value for name, value in result.items() if value}
