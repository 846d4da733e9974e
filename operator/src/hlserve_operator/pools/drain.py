"""How a replica is emptied before it goes: chosen (marked, told to drain), idle or past its deadline, released, given up."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from hlserve_operator.pools.actions import DrainCall, PodMark
from hlserve_operator.pools.engines import EngineReplica
from hlserve_operator.pools.observed import DrainAnswer
from hlserve_operator.render.metadata import DELETION_COST_ANNOTATION, DRAINING_ANNOTATION, RELEASED_COST

POLL_SECONDS = 1.0
"""How often a draining engine is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRule:
    """When a replica may go."""

    timeout_seconds: float
    wait: bool = False
    """Go on waiting after the timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is known of the requests that draining replicas still hold, by pod UID."""

    answers: Mapping[str, DrainAnswer] = field(default_factory=dict)
    """What the engines say; absent: no answer."""
    in_flight: Mapping[str, int] = field(default_factory=dict)
    """What the routers say."""
    acknowledged: frozenset[str] = frozenset()
    """Pods to which no router sends anything new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainStep:
    """What to do about the replicas that go, and about those that were to go and stay after all."""

    marks: tuple[PodMark, ...] = ()
    drains: tuple[DrainCall, ...] = ()
    gone: tuple[EngineReplica, ...] = ()
    """Replicas that their children may give up now."""
    waiting: tuple[EngineReplica, ...] = ()
    """Replicas that still drain."""
    cut: tuple[EngineReplica, ...] = ()
    """Replicas that go now although they may hold requests: the deadline has passed."""


def drain_step(
    going: Iterable[EngineReplica], staying: Iterable[EngineReplica], load: Load, rule: DrainRule, now: datetime
) -> DrainStep:
    """One step of every drain. A replica is given up one step after it was released, so that its deletion cost is known by then to
    whoever chooses the pod."""
    marks: list[PodMark] = []
    drains: list[DrainCall] = []
    gone: list[EngineReplica] = []
    waiting: list[EngineReplica] = []
    cut: list[EngineReplica] = []
    for engine in going:
        head = engine.head
        if not engine.started and not engine.released:
            marks.append(_mark(engine, {DELETION_COST_ANNOTATION: RELEASED_COST}))
            waiting.append(engine)
        elif not engine.started:
            gone.append(engine)
        elif engine.draining_since is None:
            marks.append(
                _mark(
                    engine,
                    {DRAINING_ANNOTATION: now.isoformat(timespec="seconds"), DELETION_COST_ANNOTATION: None},
                )
            )
            drains.append(DrainCall(pod=head.name, uid=head.uid, drain=True))
            waiting.append(engine)
        elif engine.released:
            gone.append(engine)
        elif is_empty(engine, load):
            marks.append(_mark(engine, {DELETION_COST_ANNOTATION: RELEASED_COST}))
            waiting.append(engine)
        elif not rule.wait and now - engine.draining_since >= timedelta(seconds=rule.timeout_seconds):
            marks.append(_mark(engine, {DELETION_COST_ANNOTATION: RELEASED_COST}))
            cut.append(engine)
            waiting.append(engine)
        else:
            if head.uid not in load.answers:
                drains.append(DrainCall(pod=head.name, uid=head.uid, drain=True))
            waiting.append(engine)
    for engine in staying:
        if engine.draining_since is not None or engine.released:
            drains.append(DrainCall(pod=engine.head.name, uid=engine.head.uid, drain=False))
            marks.append(_mark(engine, {DRAINING_ANNOTATION: None, DELETION_COST_ANNOTATION: None}))
    return DrainStep(marks=tuple(marks), drains=tuple(drains), gone=tuple(gone), waiting=tuple(waiting), cut=tuple(cut))


def is_empty(engine: EngineReplica, load: Load) -> bool:
    """Whether a draining replica has nothing left to do: it gets no new requests, and neither it nor a router knows of a running one.

    An engine without the drain call stays ready; then every router must have said that it leaves it alone.
    """
    uid = engine.head.uid
    answer = load.answers.get(uid)
    if answer is None or not answer.idle or load.in_flight.get(uid, 0):
        return False
    return not engine.head.ready if answer.draining else uid in load.acknowledged


def _mark(engine: EngineReplica, annotations: Mapping[str, str | None]) -> PodMark:
    return PodMark(pod=engine.head.name, uid=engine.head.uid, annotations=annotations)
