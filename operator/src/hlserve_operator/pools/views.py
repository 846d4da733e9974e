"""From Kubernetes objects as plain data to the few facts that the plan looks at. Absent and unknown fields are no error."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from hlserve_api.v1alpha1 import GROUP, ServingPool
from hlserve_operator.pools.observed import ChildView, EngineExit, PodView, ScalerView
from hlserve_operator.refs import Ref
from hlserve_operator.render.metadata import (
    CAPS_ANNOTATION,
    DELETION_COST_ANNOTATION,
    DRAINING_ANNOTATION,
    RELEASED_COST,
    REVISION_LABEL,
    TEMPLATE_ANNOTATION,
)
from hlserve_operator.state import ENGINE_CONTAINER, Manifest

CHILD_KINDS = ("Deployment", "LeaderWorkerSet")
GROUP_INDEX_LABEL = "leaderworkerset.sigs.k8s.io/group-index"
WORKER_INDEX_LABEL = "leaderworkerset.sigs.k8s.io/worker-index"
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def pod_view(pod: Mapping[str, Any]) -> PodView:
    """One pod of a pool."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    conditions = conditions_of(status)
    ready, scheduled = conditions.get("Ready", {}), conditions.get("PodScheduled", {})
    container = _engine_container(status)
    state = container.get("state") or {}
    waiting, running = state.get("waiting") or {}, state.get("running")
    unschedulable = scheduled.get("status") == "False"
    return PodView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        revision=labels.get(REVISION_LABEL, ""),
        created_at=_time(metadata.get("creationTimestamp")) or EPOCH,
        group=_index(labels.get(GROUP_INDEX_LABEL)),
        worker=_index(labels.get(WORKER_INDEX_LABEL)),
        ready=ready.get("status") == "True",
        ready_since=_time(ready.get("lastTransitionTime")) if ready.get("status") == "True" else None,
        started=bool(container.get("started")) and running is not None,
        running_since=_time(running.get("startedAt")) if running is not None else None,
        terminating="deletionTimestamp" in metadata,
        finished=status.get("phase") in ("Succeeded", "Failed"),
        unschedulable_since=_time(scheduled.get("lastTransitionTime")) or EPOCH if unschedulable else None,
        unschedulable_message=scheduled.get("message", "") if unschedulable else "",
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        restarts=int(container.get("restartCount") or 0),
        last_exit=_last_exit(container),
        image_id=container.get("imageID", ""),
        draining_since=_time(annotations.get(DRAINING_ANNOTATION)),
        released=annotations.get(DELETION_COST_ANNOTATION) == RELEASED_COST,
    )


def child_view(child: Manifest, create_failure: str = "") -> ChildView:
    """One child of a pool. `create_failure`: the newest FailedCreate event's message, for kinds without such a condition."""
    metadata, spec, status = child["metadata"], child.get("spec") or {}, child.get("status") or {}
    annotations = metadata.get("annotations") or {}
    failure = conditions_of(status).get("ReplicaFailure", {})
    if failure.get("status") == "True":
        create_failure = failure.get("message", "")
    return ChildView(
        ref=Ref.of(child),
        revision=(metadata.get("labels") or {}).get(REVISION_LABEL, ""),
        replicas=int(spec.get("replicas", 1)),
        created_at=_time(metadata.get("creationTimestamp")) or EPOCH,
        template=_template(annotations.get(TEMPLATE_ANNOTATION)),
        caps=annotations.get(CAPS_ANNOTATION, ""),
        nodes=int((spec.get("leaderWorkerTemplate") or {}).get("size", 1)),
        create_failure=create_failure,
    )


def owned_by(manifest: Mapping[str, Any], pool: ServingPool) -> bool:
    """Whether an object is the pool's own: its controller reference names this very pool, not an earlier one of the same name."""
    owners = manifest["metadata"].get("ownerReferences") or []
    return any(owner.get("controller") and owner.get("uid") == pool.metadata.uid for owner in owners)


def children_of(objects: Iterable[Manifest], pool: ServingPool) -> tuple[ChildView, ...]:
    """The pool's children, oldest first. One that is being deleted is none any more."""
    children = [
        child_view(manifest)
        for manifest in objects
        if manifest["kind"] in CHILD_KINDS
        and owned_by(manifest, pool)
        and "deletionTimestamp" not in manifest["metadata"]
    ]
    return tuple(sorted(children, key=lambda child: (child.created_at, child.ref.name)))


def scaler_view(scaler: Manifest, pool: ServingPool) -> ScalerView | None:
    """A HorizontalPodAutoscaler or ScaledObject as seen from a pool; None if its target is something else."""
    target = (scaler.get("spec") or {}).get("scaleTargetRef") or {}
    group = str(target.get("apiVersion", "")).partition("/")[0]
    if (group, target.get("kind"), target.get("name")) != (GROUP, pool.kind, pool.name):
        return None
    conditions = conditions_of(scaler.get("status") or {})
    works = conditions.get("ScalingActive") or conditions.get("Ready") or {}
    # KEDA works through an HPA of its own, which belongs to the ScaledObject
    owners = scaler["metadata"].get("ownerReferences") or []
    through_keda = any(o.get("kind") == "ScaledObject" and o.get("name") == pool.name for o in owners)
    return ScalerView(
        ref=Ref.of(scaler),
        owned=owned_by(scaler, pool) or through_keda,
        active={"True": True, "False": False}.get(works.get("status", "")),
        message=works.get("message", ""),
    )


def conditions_of(status: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The conditions in a status, by type."""
    return {condition["type"]: condition for condition in status.get("conditions") or []}


def _engine_container(status: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(
        (c for c in status.get("containerStatuses") or [] if c.get("name") == ENGINE_CONTAINER), {}
    )
    return found


def _last_exit(container: Mapping[str, Any]) -> EngineExit | None:
    ended = (container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get("terminated")
    if ended is None:
        return None
    begun, over = _time(ended.get("startedAt")), _time(ended.get("finishedAt"))
    return EngineExit(
        exit_code=int(ended.get("exitCode") or 0),
        reason=ended.get("reason", ""),
        message=ended.get("message", ""),
        ran_seconds=(over - begun).total_seconds() if begun is not None and over is not None else 0.0,
    )


def _template(text: str | None) -> Manifest | None:
    try:
        document = json.loads(text or "")
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _time(text: object) -> datetime | None:
    """An RFC 3339 time; None if it is absent or somebody wrote something else there."""
    if not isinstance(text, str):
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def _index(text: object) -> int:
    return int(text) if isinstance(text, str) and text.isdecimal() else 0
