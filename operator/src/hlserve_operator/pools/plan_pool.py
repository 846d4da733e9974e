"""From what is observed of one pool to the next thing to do for it."""

from collections.abc import Sequence
from datetime import datetime

from hlserve_api.conditions import ConditionReason
from hlserve_api.v1alpha1.pool_operations import DrainTimeoutAction
from hlserve_capacity.derive import DerivedPool, derive
from hlserve_operator.caps import Caps
from hlserve_operator.plan import engine_plan, wanted_replicas
from hlserve_operator.pools.actions import Deletion, PoolActions
from hlserve_operator.pools.drain import POLL_SECONDS, DrainRule, DrainStep, Load, drain_step
from hlserve_operator.pools.engines import Revision, revision_of
from hlserve_operator.pools.facts import Motion, PoolFacts
from hlserve_operator.pools.faults import Fault
from hlserve_operator.pools.findings import pool_facts
from hlserve_operator.pools.keeping import kept_revision
from hlserve_operator.pools.objects import available, kept_child, left_over, new_child, taken_names, wanted_shared
from hlserve_operator.pools.observed import PoolObserved
from hlserve_operator.pools.rollout import Step, hold, room, step
from hlserve_operator.pools.situation import Situation, Target
from hlserve_operator.pools.status import changed_status, pool_events, pool_status
from hlserve_operator.pools.views import children_of
from hlserve_operator.refs import Ref
from hlserve_operator.revision import revision
from hlserve_operator.state import (
    ArgumentRejectedError,
    Manifest,
    NotRenderableError,
    PatchRejectedError,
    Release,
)

SETTLE_SECONDS = 5.0
"""How soon to look again during a rollout, and while a name is taken."""
WATCH_SECONDS = 30.0
"""How soon to look again while replicas are missing."""


def plan_pool(observed: PoolObserved, release: Release, now: datetime) -> PoolActions:
    """What to do next for a pool, from a fresh observation. The same observation and time give the same actions; where everything is as
    wanted they write nothing. A pool that is being deleted needs nothing: its objects go with it."""
    pool = observed.pool
    if pool.metadata.deletion_timestamp is not None:
        return PoolActions()
    derived = derive(pool, observed.calibration)
    revisions = tuple(revision_of(child, observed.pods) for child in children_of(observed.objects.values(), pool))
    seed = _seed(observed, revisions)
    desired = seed if seed is not None else wanted_replicas(pool)
    target = _target(observed, derived, release, revisions)
    next_step, held = _next_step(observed, target, revisions, desired, now)
    situation = Situation(
        observed=observed,
        derived=derived,
        target=target,
        revisions=revisions,
        desired=desired,
        step=next_step,
        held=held,
        drains=_drains(observed, derived, revisions, next_step, now),
        now=now,
    )
    empty = _empty_children(situation)
    children, fresh = _children(situation, release, empty)
    shared = () if target.engine is None else wanted_shared(target.engine, release, observed.optional_apis)
    taken = taken_names(observed, [*shared, *fresh])
    facts = pool_facts(situation, taken)
    status = pool_status(facts, now)
    return PoolActions(
        seed_replicas=seed,
        marks=situation.drains.marks,
        drains=situation.drains.drains,
        delete=_deletions(situation, shared, empty),
        apply=tuple(m for m in (*children, *shared, *fresh) if str(Ref.of(m)) not in taken),
        status=changed_status(pool.status, status),
        events=pool_events(pool.status.conditions, status.conditions),
        requeue_after_seconds=_requeue(situation, facts),
    )


def _seed(observed: PoolObserved, revisions: Sequence[Revision]) -> int | None:
    """What to write to the scale subresource of a pool without `spec.replicas`: what it has, else autoscaling's minimum, else 1."""
    if observed.pool.spec.replicas is not None:
        return None
    if revisions:
        return sum(known.child.replicas for known in revisions)
    return wanted_replicas(observed.pool)


def _target(observed: PoolObserved, derived: DerivedPool, release: Release, revisions: Sequence[Revision]) -> Target:
    try:
        engine = engine_plan(observed.pool, derived, release)
        if revisions and observed.pool.spec.calibration_ref is not None and observed.calibration is None:
            words = f"The calibration cannot be read, so engines stay as they are. {observed.calibration_problem}"
            return Target(rejected=Fault(reason=ConditionReason.NOT_CALIBRATED, message=words))
        kept = kept_revision(observed, engine, derived, revisions)
        today = revision(engine)
        name = today if kept is None else kept
        if any(known.child.revision == name for known in revisions):
            return Target(engine=engine, revision=name, kept=name != today)
        manifest = new_child(engine, release, name, 0, Caps.of(derived))
    except NotRenderableError as error:
        reason = ConditionReason.IMAGE_PULL_FAILED
        if isinstance(error, PatchRejectedError):
            reason = ConditionReason.PATCH_REJECTED
        elif isinstance(error, ArgumentRejectedError):
            reason = ConditionReason.ARG_REJECTED
        return Target(rejected=Fault(reason=reason, message=str(error)))
    served = bool(available([manifest], observed.optional_apis))
    return Target(engine=engine, revision=name, fresh=manifest if served else None, lacks_api=not served)


def _next_step(
    observed: PoolObserved, target: Target, revisions: Sequence[Revision], desired: int, now: datetime
) -> tuple[Step, bool]:
    """The next step, and whether no revision may replace another."""
    rollout = observed.pool.spec.rollout
    current = next((known for known in revisions if known.child.revision == target.revision), None)
    others = [known for known in revisions if known is not current]
    replicas = sum(known.child.replicas for known in others)
    cannot = target.engine is None or target.lacks_api
    if cannot or (rollout.paused and replicas):
        return (hold(desired, revisions) if revisions else Step(current=0)), True
    return step(desired, current, others, room(rollout, desired), now), False


def _drains(
    observed: PoolObserved, derived: DerivedPool, revisions: Sequence[Revision], next_step: Step, now: datetime
) -> DrainStep:
    chosen = {engine.head.uid for engine in next_step.going.engines}
    staying = [engine for known in revisions for engine in known.engines if engine.head.uid not in chosen]
    rule = DrainRule(
        timeout_seconds=derived.grace_seconds,
        wait=observed.pool.spec.drain.on_timeout is DrainTimeoutAction.WAIT,
    )
    routers = observed.routers
    load = Load(answers=observed.drain_answers, in_flight=routers.in_flight, acknowledged=routers.acknowledged)
    return drain_step(next_step.going.engines, staying, load, rule, now)


def _children(situation: Situation, release: Release, empty: Sequence[Ref]) -> tuple[list[Manifest], list[Manifest]]:
    """Every child with its number of replicas, those that give some up first; and the one that is new."""
    observed, target, decided = situation.observed, situation.target, situation.step
    changes: list[tuple[int, Manifest]] = []
    for known in situation.revisions:
        view = known.child
        if view.ref in empty:
            continue
        wanted = known.lowered(situation.drains.gone, decided.going.missing.get(view.revision, 0))
        if wanted == view.replicas:  # none is added where one is given up
            wanted = decided.raised.get(view.revision, wanted)
            wanted = max(wanted, decided.current) if view.revision == target.revision else wanted
        # Caps move with the spec where pods need not: only a revision that is what the spec comes to today gets new ones.
        fits = view.revision == target.revision and not target.kept
        caps = Caps.of(situation.derived) if fits else None
        manifest = kept_child(observed.pool, release, view, observed.objects[view.ref], wanted, caps)
        changes.append((wanted - view.replicas, manifest))
    fresh = []
    if target.fresh is not None and not situation.held:
        fresh.append({**target.fresh, "spec": {**target.fresh["spec"], "replicas": decided.current}})
    return [manifest for _, manifest in sorted(changes, key=lambda change: change[0])], fresh


def _empty_children(situation: Situation) -> tuple[Ref, ...]:
    """Revisions that nothing wants and nothing is left of. None goes while it is not known which revision is wanted."""
    if situation.target.engine is None:
        return ()
    with_pods = {pod.revision for pod in situation.observed.pods if not pod.finished}
    return tuple(
        known.child.ref
        for known in situation.revisions
        if known.child.revision not in {situation.target.revision, *with_pods} and not known.child.replicas
    )


def _deletions(situation: Situation, shared: Sequence[Manifest], empty: Sequence[Ref]) -> tuple[Deletion, ...]:
    """Pods that have drained and whose readiness would spare them, empty revisions, and objects that nothing wants."""
    observed = situation.observed
    pods = tuple(
        Deletion(ref=Ref("v1", "Pod", engine.head.name), uid=engine.head.uid)
        for engine in situation.drains.gone
        if engine.head.ready
    )
    if situation.target.engine is None:
        return pods
    children = tuple(Deletion(ref=ref, uid=observed.objects[ref]["metadata"].get("uid", "")) for ref in empty)
    return (*pods, *children, *(Deletion(ref=ref, uid=uid) for ref, uid in left_over(observed, shared)))


def _requeue(situation: Situation, facts: PoolFacts) -> float | None:
    """When to look again: often while something drains, now and then while something is missing or moves, which makes no event of its
    own when its time has come."""
    drains = situation.drains
    # A mark to be taken back stays until its engine has heard of it.
    if drains.waiting or drains.gone or drains.marks:
        return POLL_SECONDS
    if facts.taken or facts.motion in (Motion.ROLLING_OUT, Motion.BLOCKED):
        return SETTLE_SECONDS
    return WATCH_SECONDS if facts.counts.ready < facts.counts.desired else None
