"""What the conditions of a pool are made of: the plan's findings in one frozen value."""

from dataclasses import dataclass
from enum import StrEnum

from hlserve_capacity.derive import DerivedPool
from hlserve_operator.pools.faults import Fault
from hlserve_operator.pools.observed import PoolObserved


class Motion(StrEnum):
    """Where replicas are between one state and another."""

    STABLE = "stable"
    ROLLING_OUT = "rolling_out"
    DRAINING = "draining"
    BLOCKED = "blocked"
    PAUSED = "paused"
    DEADLINE_EXCEEDED = "deadline_exceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Replicas of a pool."""

    desired: int
    existing: int
    ready: int
    updated: int
    """Of the current revision."""
    draining: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """Everything that a pool's status says, before it is put into words."""

    observed: PoolObserved
    derived: DerivedPool
    revision: str
    """The current one; empty if the spec cannot be rendered."""
    kept: bool
    """The revision, and the settings that it was made with, are those of the former status."""
    arguments: tuple[str, ...]
    image: str
    counts: Counts
    motion: Motion
    motion_message: str
    rejected: Fault | None = None
    """Why the spec cannot be rendered."""
    engine_fault: Fault | None = None
    model_fault: Fault | None = None
    taken: tuple[str, ...] = ()
    """Names of objects that the pool needs and that are somebody else's."""
    image_digest: str | None = None
    """Of a running engine of the current revision."""
