"""One moment of one pool, decided but not yet put into words: what its status and its next actions are made of."""

from dataclasses import dataclass
from datetime import datetime

from hlserve_capacity.derive import DerivedPool
from hlserve_operator.pools.drain import DrainStep
from hlserve_operator.pools.engines import Revision
from hlserve_operator.pools.faults import Fault
from hlserve_operator.pools.observed import PoolObserved
from hlserve_operator.pools.rollout import Step
from hlserve_operator.state import EnginePlan, Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the pool's spec comes to: rendered, or the reason why it cannot be."""

    engine: EnginePlan | None = None
    revision: str = ""
    fresh: Manifest | None = None
    """The current revision's child, to be made; None: it exists, or cannot be made here."""
    kept: bool = False
    """The revision stays although it would be another one today: what changed is ours, not the user's, and too little to roll."""
    rejected: Fault | None = None
    lacks_api: bool = False
    """LeaderWorkerSet is needed and not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What was seen and what was decided."""

    observed: PoolObserved
    derived: DerivedPool
    target: Target
    revisions: tuple[Revision, ...]
    """Every child with its replicas, oldest first."""
    desired: int
    step: Step
    held: bool
    """No revision may replace another: the rollout is paused, or the spec cannot be rendered."""
    drains: DrainStep
    now: datetime

    @property
    def current(self) -> Revision | None:
        """The revision that the spec asks for; None: it has no child yet."""
        return next((known for known in self.revisions if known.child.revision == self.target.revision), None)

    @property
    def outdated(self) -> tuple[Revision, ...]:
        """Other revisions that still have replicas."""
        return tuple(
            known for known in self.revisions if known.child.revision != self.target.revision and known.child.replicas
        )
