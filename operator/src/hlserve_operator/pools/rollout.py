"""How many replicas of which revision there are to be next, and which ones go. Nothing is remembered: each call decides from what
there is, so that a crash, a changed mind or a foreign hand in between only changes the next answer.

A step never does more than one revision's first replica can answer for: until a replica of the new revision has been ready, one at
most is made and one at most is given up for it, and none if the pool may have none missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil, floor

from hlserve_api.v1alpha1.pool_operations import Rollout, RolloutStrategy
from hlserve_operator.pools.engines import EngineReplica, Revision, going_first

SURGE_PATIENCE_SECONDS = 10.0
"""How long the pod of a surge may look for a node before an Auto rollout goes one by one: some schedulers need a second try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a rollout may do beyond the wanted number of replicas."""

    surge: int
    """Replicas more than wanted."""
    unavailable: int
    """Replicas fewer than wanted."""
    fallback: bool = False
    """Give up one replica for a new one that finds no room beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Going:
    """What is given up."""

    engines: tuple[EngineReplica, ...] = ()
    """Replicas that are to drain and go."""
    missing: Mapping[str, int] = field(default_factory=dict)
    """By revision: wanted replicas without a pod, which need not be made any more."""

    def __add__(self, other: "Going") -> "Going":
        missing = {
            name: self.missing.get(name, 0) + other.missing.get(name, 0) for name in {*self.missing, *other.missing}
        }
        return Going(engines=self.engines + other.engines, missing=missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a moment's decision comes to."""

    current: int
    """Replicas of the current revision to ask for now. Never fewer than there are: those that go are among `going`."""
    going: Going = Going()
    raised: Mapping[str, int] = field(default_factory=dict)
    """By other revisions than the current one: replicas to ask for now."""
    fell_back: bool = False
    """A replica is given up because the new one finds no room."""


def room(rollout: Rollout, desired: int) -> Room:
    """Bounds of a rollout for `desired` replicas. Percentages round up for surge and down for what may be missing, as in a Deployment;
    where both come to 0, one may be missing, or nothing could ever move."""
    one_by_one = rollout.strategy is RolloutStrategy.ONE_BY_ONE
    surge = 0 if one_by_one else _count(rollout.max_surge, desired, default=1, up=True)
    unavailable = _count(rollout.max_unavailable, desired, default=1 if one_by_one else 0, up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return Room(surge=surge, unavailable=unavailable, fallback=rollout.strategy is RolloutStrategy.AUTO)


def step(desired: int, current: Revision | None, others: Sequence[Revision], bounds: Room, now: datetime) -> Step:
    """The next step of a pool that wants `desired` replicas of `current`; None: its child is still to be made."""
    others = [other for other in others if other.child.replicas]
    have = 0 if current is None else current.child.replicas
    surplus = Going() if current is None else going([current], have - desired)
    if not others:
        return Step(current=max(have, desired), going=surplus)
    ready = 0 if current is None else sum(e.ready and e.draining_since is None for e in current.engines)
    serving = sum(engine.started for other in others for engine in other.engines)
    unproven = ready == 0 and serving > 0
    blocked = bounds.fallback and current is not None and _finds_no_room(current, now)
    unavailable = max(bounds.unavailable, 1 if blocked else 0)
    keep = desired - (min(unavailable, 1) if unproven else unavailable) - ready
    old = sum(other.child.replicas for other in others)
    wanted = max(have, min(desired, have + max(0, desired + bounds.surge - have - old)))
    if unproven:
        wanted = max(have, min(wanted, 1))
    return Step(
        current=wanted,
        going=going(others, old - max(0, min(keep, serving))) + surplus,
        fell_back=blocked,
    )


def hold(desired: int, revisions: Sequence[Revision]) -> Step:
    """The next step where no revision may replace another: the rollout is paused, or the spec cannot be rendered. The last of
    `revisions` that serves takes what is missing; what is too much is given up by the others first. At least one must be given."""
    home = max(revisions, key=lambda r: (sum(engine.ready for engine in r.engines), r.child.created_at))
    total = sum(r.child.replicas for r in revisions)
    if total <= desired:
        wanted = home.child.replicas + desired - total
        return Step(current=0, raised={home.child.revision: wanted} if wanted != home.child.replicas else {})
    strangers = [r for r in revisions if r is not home]
    surplus = total - desired
    from_strangers = min(surplus, sum(r.child.replicas for r in strangers))
    return Step(current=0, going=going(strangers, from_strangers) + going([home], surplus - from_strangers))


def going(revisions: Sequence[Revision], count: int) -> Going:
    """`count` replicas of `revisions` to give up, none if it is not positive: first those without a pod, then in the order of
    `going_first`."""
    missing: dict[str, int] = {}
    chosen: list[EngineReplica] = []
    for revision in revisions:
        unmade = min(revision.missing, max(0, count))
        if unmade:
            missing[revision.child.revision] = unmade
            count -= unmade
    for revision in revisions:
        if revision.ordered:  # the child takes its highest index, whatever would be the better choice
            top = sorted(revision.engines, key=lambda engine: -engine.index)[: max(0, count)]
            chosen += top
            count -= len(top)
    free = [engine for revision in revisions if not revision.ordered for engine in revision.engines]
    chosen += sorted(free, key=going_first)[: max(0, count)]
    return Going(engines=tuple(chosen), missing=missing)


def _finds_no_room(current: Revision, now: datetime) -> bool:
    if current.child.create_failure and current.missing:
        return True
    return any(engine.unschedulable(now, SURGE_PATIENCE_SECONDS) for engine in current.engines)


def _count(bound: str | None, desired: int, *, default: int, up: bool) -> int:
    if bound is None:
        return default
    if bound.endswith("%"):
        share = desired * int(bound.removesuffix("%")) / 100
        return ceil(share) if up else floor(share)
    return int(bound)
