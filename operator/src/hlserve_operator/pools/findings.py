"""What a situation comes to in facts: counts, faults, and what moves or why nothing does."""

from datetime import datetime, timedelta

from hlserve_api.conditions import ConditionReason
from hlserve_api.v1alpha1.meta import ConditionStatus
from hlserve_operator.pools.facts import Counts, Motion, PoolFacts
from hlserve_operator.pools.faults import Fault, engine_fault, model_fault
from hlserve_operator.pools.situation import Situation


def pool_facts(now_is: Situation, taken: tuple[str, ...]) -> PoolFacts:
    """The facts of a situation. `taken`: wanted objects that are somebody else's."""
    observed, target = now_is.observed, now_is.target
    engines = [engine for known in now_is.revisions for engine in known.engines]
    counts = Counts(
        desired=now_is.desired,
        existing=len(engines),
        ready=sum(engine.ready for engine in engines),
        updated=0 if now_is.current is None else len(now_is.current.engines),
        draining=sum(engine.started for engine in now_is.drains.waiting),
    )
    watched = now_is.revisions if now_is.current is None else (now_is.current,)
    names = {known.child.revision for known in watched}
    pods = [pod for pod in observed.pods if pod.revision in names]
    fault = engine_fault(
        [known.child for known in watched], pods, observed.pool.spec.startup.timeout_seconds, now_is.now
    )
    if target.lacks_api:
        fault = Fault(
            reason=ConditionReason.LEADER_WORKER_SET_MISSING,
            message="parallelism.nodes is above 1, and LeaderWorkerSet is not installed: install it, or set nodes to 1.",
        )
    motion, message = _motion(now_is, fault)
    digests = [pod.image_id for pod in pods if pod.revision == target.revision and pod.image_id]
    return PoolFacts(
        observed=observed,
        derived=now_is.derived,
        revision=target.revision,
        kept=target.kept,
        arguments=() if target.engine is None else target.engine.arguments,
        image="" if target.engine is None else target.engine.image,
        counts=counts,
        motion=motion,
        motion_message=message,
        rejected=target.rejected,
        engine_fault=fault,
        model_fault=model_fault(pods),
        taken=taken,
        image_digest=min(digests, default=None),
    )


def _motion(now_is: Situation, fault: Fault | None) -> tuple[Motion, str]:
    rollout, target = now_is.observed.pool.spec.rollout, now_is.target
    leaving = sum(engine.started for engine in now_is.drains.waiting)
    left = sum(known.child.replicas for known in now_is.outdated)
    why = f" {fault.message}" if fault is not None else ""
    if target.engine is None or target.lacks_api:
        words = f" {target.rejected.message}" if target.rejected is not None else why
        return Motion.BLOCKED, f"The spec cannot be rolled out; what is there stays.{words}"
    if not left:
        if leaving:
            return Motion.DRAINING, f"{leaving} replicas finish their requests before they go."
        return Motion.STABLE, "All replicas are of the current revision."
    if rollout.paused:
        return Motion.PAUSED, f"rollout.paused is set; {left} replicas are of another revision."
    silence = now_is.now - _last_progress(now_is)
    if not leaving and silence >= timedelta(seconds=rollout.progress_deadline_seconds):
        return Motion.DEADLINE_EXCEEDED, (
            f"No progress within {rollout.progress_deadline_seconds} s; {left} replicas of another revision stay. "
            f"Correct the spec, or put it back.{why}"
        )
    no_room = fault is not None and fault.reason in (ConditionReason.INSUFFICIENT_GPU, ConditionReason.QUOTA_EXCEEDED)
    if no_room and not now_is.step.fell_back and not leaving:
        return Motion.BLOCKED, f"A replica of the new revision finds no room; what is there serves.{why}"
    note = " There is no room for a further replica, so they are replaced one by one." if now_is.step.fell_back else ""
    return Motion.ROLLING_OUT, f"{left} replicas are of another revision than {target.revision}.{note}{why}"


def _last_progress(now_is: Situation) -> datetime:
    """When the rollout last got on: it began, or a replica of the new revision was made or became ready."""
    if now_is.current is None:
        return now_is.now
    times = [
        condition.last_transition_time
        for condition in now_is.observed.pool.status.conditions
        if condition.type == "Progressing" and condition.status is ConditionStatus.TRUE
    ]
    times.append(now_is.current.child.created_at)
    times += [e.head.ready_since for e in now_is.current.engines if e.head.ready_since is not None]
    return max(times)
