"""What `plan_pool` decides. `execute` carries it out in the order of the fields, comparing each with the cluster first."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hlserve_api.conditions import ConditionReason
from hlserve_operator.refs import Ref
from hlserve_operator.state import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMark:
    """Annotations of one pod to set, or to remove where the value is None. A pod that is gone, or is another one, is passed over."""

    pod: str
    uid: str
    annotations: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainCall:
    """Tell one engine to drain, or to serve again. One that does not answer is asked again by the next reconcile."""

    pod: str
    uid: str
    drain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """One object of ours that is not needed any more; `uid` is the precondition."""

    ref: Ref
    uid: str


class EventType(StrEnum):
    """Kinds of Kubernetes events."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEvent:
    """Something to tell whoever looks at the pool."""

    type: EventType
    reason: ConditionReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolActions:
    """One step towards what the pool wants; empty but for `requeue_after_seconds` when there is nothing to do.

    Order: seed, serve-again calls (`drain=False`), marks, drain calls (`drain=True`), delete, apply, status, events. So a crash in
    between forgets no marked pod, and a pod that has to go is gone before its child is lowered and might choose another one.
    """

    seed_replicas: int | None = None
    """Write this to the pool's scale subresource: `spec.replicas` is absent."""
    marks: tuple[PodMark, ...] = ()
    drains: tuple[DrainCall, ...] = ()
    delete: tuple[Deletion, ...] = ()
    apply: tuple[Manifest, ...] = ()
    """Objects to be as they are here, children first that take replicas away. A child's `spec.replicas` is its new number: the
    operator is its only writer."""
    status: Mapping[str, Any] | None = None
    """The whole status as JSON; None: it is right as it is."""
    events: tuple[PoolEvent, ...] = ()
    requeue_after_seconds: float | None = None
    """When to look again if nothing happens before; None: the resync is enough."""

    @property
    def writes_nothing(self) -> bool:
        """True if nothing is written but `apply`, which is compared with the cluster first."""
        return (
            self.seed_replicas is None
            and not self.marks
            and not self.delete
            and self.status is None
            and not self.events
        )
