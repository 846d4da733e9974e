"""Replicas of a pool as the plan counts them: one pod of a Deployment, or all pods of one group of a LeaderWorkerSet."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from hlserve_operator.pools.observed import ChildView, PodView


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReplica:
    """One replica. Requests are served by its first pod; the others compute for it."""

    revision: str
    index: int
    """Of the group in a LeaderWorkerSet, which gives up its highest index first; 0 in a Deployment."""
    pods: tuple[PodView, ...]
    """Worker 0 first."""
    complete: bool = True
    """Every pod of the replica exists."""

    @property
    def head(self) -> PodView:
        """The pod that serves."""
        return self.pods[0]

    @property
    def ready(self) -> bool:
        """Whether it gets requests."""
        return self.complete and all(pod.ready for pod in self.pods)

    @property
    def started(self) -> bool:
        """Whether it may hold requests: its engine has passed the startup probe and runs."""
        return self.head.worker == 0 and (self.head.started or self.head.ready)

    @property
    def draining_since(self) -> datetime | None:
        """When it was chosen to go; None: it was not."""
        return self.head.draining_since

    @property
    def released(self) -> bool:
        """Whether it has drained and is marked as the next to go."""
        return self.head.released

    def unschedulable(self, now: datetime, patience_seconds: float) -> bool:
        """Whether a pod of it has found no node for so long."""
        patience = timedelta(seconds=patience_seconds)
        return any(p.unschedulable_since is not None and now - p.unschedulable_since >= patience for p in self.pods)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A child with its replicas: those that exist and are not on their way out."""

    child: ChildView
    engines: tuple[EngineReplica, ...]

    @property
    def missing(self) -> int:
        """Replicas that are wanted of the child and have no pod yet."""
        return max(0, self.child.replicas - len(self.engines))

    @property
    def ordered(self) -> bool:
        """Whether the child itself decides which replica goes: the one with the highest index."""
        return self.child.ref.kind == "LeaderWorkerSet"

    def lowered(self, gone: Collection[EngineReplica], missing: int) -> int:
        """Replicas to ask for once those of `gone`, and `missing` that have no pod, are given up. Where the child decides which one
        goes, only as many as are free at the top: lowering it further would end one that still drains."""
        if not self.ordered:
            return self.child.replicas - missing - sum(engine in gone for engine in self.engines)
        present = {engine.index: engine for engine in self.engines}
        wanted, least = self.child.replicas, self.child.replicas - missing - len(gone)
        while wanted > max(0, least) and (wanted - 1 not in present or present[wanted - 1] in gone):
            wanted -= 1
        return wanted


def engines_of(pods: Iterable[PodView], nodes: int) -> tuple[EngineReplica, ...]:
    """The replicas that a revision's pods make up, pods that end left out. `nodes`: pods of one replica."""
    groups: dict[tuple[str, object], list[PodView]] = {}
    for pod in pods:
        if not pod.terminating and not pod.finished:
            groups.setdefault((pod.revision, pod.uid if nodes == 1 else pod.group), []).append(pod)
    return tuple(
        EngineReplica(
            revision=members[0].revision,
            index=members[0].group,
            pods=tuple(sorted(members, key=lambda pod: pod.worker)),
            complete=len(members) >= nodes,
        )
        for members in groups.values()
    )


def revision_of(child: ChildView, pods: Iterable[PodView]) -> Revision:
    """A child with its replicas, without those that it is about to give up: more exist than it wants for as long as it takes its
    controller to delete them, and they must not be chosen, or spared, a second time."""
    engines = engines_of((pod for pod in pods if pod.revision == child.revision), child.nodes)
    if child.ref.kind == "LeaderWorkerSet":
        return Revision(child=child, engines=tuple(e for e in engines if e.index < child.replicas))
    leaving = max(0, len(engines) - child.replicas)
    return Revision(child=child, engines=tuple(sorted(engines, key=going_first)[leaving:]))


def going_first(engine: EngineReplica) -> tuple[int, float, str]:
    """Sort key: what is given up first. What never served costs nothing; what has begun to drain goes on; the newest has the least
    in its cache."""
    if not engine.started:
        rank = 0
    elif engine.released:
        rank = 1
    elif engine.draining_since is not None:
        rank = 2
    else:
        rank = 4 if engine.ready else 3
    return (rank, -engine.head.created_at.timestamp(), engine.head.name)
