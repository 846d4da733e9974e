"""A cluster in miniature, as far as a pool can tell: controllers that make and delete pods, a scheduler with so many places, engines
that load, serve, drain and fail. It is told how much time passes. What it must never see it notes in `violations`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from hlserve_api.v1alpha1 import ServingPool
from hlserve_capacity.calibration import Calibration
from hlserve_operator.pools.actions import PoolActions
from hlserve_operator.pools.observed import DrainAnswer, OptionalApis, PodView, PoolObserved, RouterView
from hlserve_operator.pools.plan_pool import plan_pool
from hlserve_operator.pools.views import CHILD_KINDS, GROUP_INDEX_LABEL, WORKER_INDEX_LABEL, pod_view
from hlserve_operator.refs import Ref
from hlserve_operator.render.metadata import DELETION_COST_ANNOTATION, DRAINING_ANNOTATION, REVISION_LABEL
from hlserve_operator.state import Manifest, Release

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
LOAD_SECONDS: Final = 6
TERMINATION_SECONDS: Final = 3
ALL_APIS: Final = OptionalApis(leader_worker_set=True, keda=True, pod_monitor=True)
BAD_IMAGE: Final = "registry.example/bad@sha256:" + "b" * 64
"""Pods of this image never become ready."""


@dataclass(slots=True, eq=False)
class Pod:
    """One pod. Only the first pod of a replica serves."""

    name: str
    uid: str
    child: Ref
    revision: str
    image: str
    created: datetime
    group: int = 0
    worker: int = 0
    scheduled: datetime | None = None
    ready_since: datetime | None = None
    gone_at: datetime | None = None
    busy_until: datetime = START
    engine_drains: bool = False
    hung: bool = False
    annotations: dict[str, str] = field(default_factory=dict)

    def started(self, now: datetime) -> bool:
        """The engine has loaded."""
        loaded = self.scheduled is not None and now - self.scheduled >= timedelta(seconds=LOAD_SECONDS)
        return loaded and self.image != BAD_IMAGE

    def busy(self, now: datetime) -> bool:
        """It holds a request."""
        return self.started(now) and self.busy_until > now

    def manifest(self, now: datetime) -> Manifest:
        """As the API server would show it."""
        labels = {REVISION_LABEL: self.revision}
        if self.child.kind == "LeaderWorkerSet":
            labels |= {GROUP_INDEX_LABEL: str(self.group), WORKER_INDEX_LABEL: str(self.worker)}
        metadata: dict[str, Any] = {
            "name": self.name, "uid": self.uid, "labels": labels, "annotations": dict(self.annotations),
            "creationTimestamp": self.created.isoformat(),
        }  # fmt: skip
        if self.gone_at is not None:
            metadata["deletionTimestamp"] = self.gone_at.isoformat()
        if self.scheduled is None:
            conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                           "lastTransitionTime": self.created.isoformat(),
                           "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}]  # fmt: skip
            return {"metadata": metadata, "status": {"phase": "Pending", "conditions": conditions}}
        ready = self.ready_since is not None
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": (self.ready_since or now).isoformat()}
        container: dict[str, Any] = {
            "name": "engine", "started": self.started(now), "imageID": self.image,
            "state": {"running": {"startedAt": self.scheduled.isoformat()}},
        }  # fmt: skip
        if self.image == BAD_IMAGE:
            container |= {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
        return {
            "metadata": metadata,
            "status": {"phase": "Running", "conditions": [condition], "containerStatuses": [container]},
        }


@dataclass(slots=True, eq=False)
class Cluster:
    """One pool's world. `places`: pods that find a node."""

    pool: ServingPool
    release: Release
    places: int
    now: datetime = START
    objects: dict[Ref, Manifest] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    cuts: int = 0
    """Requests that ended with their pod, after its deadline."""
    engines_answer: bool = True
    engines_know_the_call: bool = True
    """Engines without a drain call stay ready, and are asked for their load instead."""
    routers_answer: bool = True
    apis: OptionalApis = ALL_APIS
    calibration: Calibration | None = None
    _count: int = 0

    def edit(self, **spec: Any) -> None:
        """The user changes fields of the spec; None removes one."""
        document = self.pool.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
        merged = {**document["spec"], **spec}
        document["spec"] = {name: value for name, value in merged.items() if value is not None}
        document["metadata"]["generation"] = self.pool.metadata.generation + 1
        self.pool = ServingPool.model_validate(document)

    def observe(self) -> PoolObserved:
        """Everything about the pool at this moment."""
        marked = [pod for pod in self.pods if DRAINING_ANNOTATION in pod.annotations]
        answers = {
            pod.uid: DrainAnswer(running=int(pod.busy(self.now)), queued=0, draining=pod.engine_drains)
            for pod in self.pods
            if (pod.engine_drains or (pod in marked and not self.engines_know_the_call))
            and pod.started(self.now)
            and self.engines_answer
        }
        told = frozenset(pod.uid for pod in marked) if self.routers_answer else frozenset()
        return PoolObserved(
            pool=self.pool,
            objects=dict(self.objects),
            pods=self.views(),
            optional_apis=self.apis,
            calibration=self.calibration,
            drain_answers=answers,
            routers=RouterView(
                routers=1, answering=int(self.routers_answer), synced=int(self.routers_answer), acknowledged=told
            ),
        )

    def views(self) -> tuple[PodView, ...]:
        """The pods as the operator sees them."""
        return tuple(pod_view(pod.manifest(self.now)) for pod in self.pods)

    def reconcile(self, writes: int | None = None) -> PoolActions:
        """One pass of the operator, which dies after `writes` writes; None: it does not."""
        actions = plan_pool(self.observe(), self.release, self.now)
        for write in islice(self._writes(actions), writes):
            write()
        return actions

    def changed_by(self, actions: PoolActions) -> bool:
        """Whether anything in the cluster would be written: what is to be applied and is already so does not count."""
        applied = all(self._in_place(manifest) for manifest in actions.apply)
        return not (actions.writes_nothing and applied)

    def tick(self, seconds: int = 1) -> None:
        """Time passes, and the cluster's own controllers work."""
        for _ in range(seconds):
            self.now += timedelta(seconds=1)
            self._collect()
            for ref in [ref for ref in self.objects if ref.kind in CHILD_KINDS]:
                self._control(ref)
            self._schedule()
            for pod in self.pods:
                serves = pod.started(self.now) and not pod.engine_drains and not pod.hung and pod.gone_at is None
                pod.ready_since = (pod.ready_since or self.now) if serves else None

    def replicas(self) -> dict[str, int]:
        """Wanted replicas by revision."""
        return {
            manifest["metadata"]["labels"][REVISION_LABEL]: manifest["spec"]["replicas"]
            for ref, manifest in self.objects.items()
            if ref.kind in CHILD_KINDS
        }

    def serving(self) -> list[Pod]:
        """Pods that get new requests."""
        return [pod for pod in self.pods if pod.ready_since is not None and DRAINING_ANNOTATION not in pod.annotations]

    def kill(self, pod: Pod) -> None:
        """A pod is lost from outside, with what it holds."""
        self.pods.remove(pod)

    def _writes(self, actions: PoolActions) -> list[Any]:
        def seed() -> None:
            document = self.pool.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
            document["spec"]["replicas"] = actions.seed_replicas
            document["metadata"]["generation"] = self.pool.metadata.generation + 1
            self.pool = ServingPool.model_validate(document)

        def status() -> None:
            document = self.pool.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
            self.pool = ServingPool.model_validate({**document, "status": actions.status})

        return [
            *([seed] if actions.seed_replicas is not None else []),
            *(lambda d=d: self._drain(d.uid, d.drain) for d in actions.drains if not d.drain),
            *(lambda m=m: self._annotate(m.uid, m.annotations) for m in actions.marks),
            *(lambda d=d: self._drain(d.uid, d.drain) for d in actions.drains if d.drain),
            *(lambda d=d: self._delete(d.ref, d.uid) for d in actions.delete),
            *(lambda m=m: self._apply(m) for m in actions.apply),
            *([status] if actions.status is not None else []),
        ]

    def _in_place(self, manifest: Manifest) -> bool:
        stored = self.objects.get(Ref.of(manifest))
        return stored is not None and all(stored[key] == manifest[key] for key in ("spec",) if key in manifest)

    def _apply(self, manifest: Manifest) -> None:
        ref = Ref.of(manifest)
        known = self.objects.get(ref, {}).get("metadata", {})
        self._count += 1
        stamp = {"uid": known.get("uid", f"u{self._count}")}
        stamp["creationTimestamp"] = known.get("creationTimestamp", self.now.isoformat())
        self.objects[ref] = {**manifest, "metadata": {**manifest["metadata"], **stamp}}

    def _delete(self, ref: Ref, uid: str) -> None:
        if ref.kind == "Pod":
            for pod in [pod for pod in self.pods if pod.uid == uid and pod.gone_at is None]:
                self._end(pod)
        else:
            self.objects.pop(ref, None)

    def _annotate(self, uid: str, annotations: Mapping[str, str | None]) -> None:
        for pod in self.pods:
            if pod.uid == uid:
                for name, value in annotations.items():
                    pod.annotations.pop(name, None)
                    if value is not None:
                        pod.annotations[name] = value

    def _drain(self, uid: str, drain: bool) -> None:
        for pod in self.pods:
            if pod.uid == uid and self.engines_answer and self.engines_know_the_call:
                pod.engine_drains = drain

    def _control(self, ref: Ref) -> None:
        """A Deployment's or LeaderWorkerSet's controller."""
        spec = self.objects[ref]["spec"]
        pods = [pod for pod in self.pods if pod.child == ref and pod.gone_at is None]
        if ref.kind == "LeaderWorkerSet":
            size = spec["leaderWorkerTemplate"]["size"]
            for pod in pods:
                if pod.group >= spec["replicas"]:
                    self._end(pod)
            present = {(pod.group, pod.worker) for pod in pods}
            for group in range(spec["replicas"]):
                for worker in range(size):
                    if (group, worker) not in present:
                        self._make(ref, spec["leaderWorkerTemplate"]["leaderTemplate"], group, worker)
            return
        for _ in range(spec["replicas"] - len(pods)):
            self._make(ref, spec["template"], 0, 0)
        for pod in sorted(pods, key=self._rank)[: max(0, len(pods) - spec["replicas"])]:
            self._end(pod)

    def _rank(self, pod: Pod) -> tuple[bool, bool, int, float]:
        """Which pod a ReplicaSet gives up first: unassigned, unready, cheapest, newest."""
        cost = int(pod.annotations.get(DELETION_COST_ANNOTATION, "0"))
        return pod.scheduled is not None, pod.ready_since is not None, cost, -pod.created.timestamp()

    def _make(self, ref: Ref, template: Manifest, group: int, worker: int) -> None:
        self._count += 1
        image = template["spec"]["containers"][0]["image"]
        revision = self.objects[ref]["metadata"]["labels"][REVISION_LABEL]
        name = f"{ref.name}-{self._count}"
        self.pods.append(
            Pod(name=name, uid=name, child=ref, revision=revision, image=image, created=self.now, group=group, worker=worker)
        )  # fmt: skip

    def _end(self, pod: Pod) -> None:
        pod.gone_at = self.now + timedelta(seconds=TERMINATION_SECONDS)
        if pod.worker == 0 and pod.busy(self.now):
            since = pod.annotations.get(DRAINING_ANNOTATION)
            limit = timedelta(seconds=self.pool.spec.drain.timeout_seconds or 600)
            if since is None or self.now - datetime.fromisoformat(since) < limit:
                self.violations.append(f"{pod.name} was ended while busy, before its deadline")
            self.cuts += 1

    def _collect(self) -> None:
        """Pods that have ended go, and so do those of children that are gone."""
        self.pods = [pod for pod in self.pods if pod.gone_at is None or pod.gone_at > self.now]
        for pod in self.pods:
            if pod.child not in self.objects and pod.gone_at is None:
                self._end(pod)

    def _schedule(self) -> None:
        free = self.places - sum(pod.scheduled is not None for pod in self.pods)
        for pod in self.pods:
            if pod.scheduled is None and pod.gone_at is None and free > 0:
                pod.scheduled = self.now
                free -= 1
