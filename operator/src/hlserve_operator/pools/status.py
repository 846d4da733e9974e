"""A pool's status, written only when it says something new, and the events that go with a change of its conditions."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from hlserve_api.conditions import ConditionReason
from hlserve_api.routing import Mode
from hlserve_api.v1alpha1 import ServingPool
from hlserve_api.v1alpha1.meta import Condition, ConditionStatus
from hlserve_api.v1alpha1.pool_status import CalibrationStatus, DerivedValue, EngineStatus, ServingPoolStatus
from hlserve_operator.pools.actions import EventType, PoolEvent
from hlserve_operator.pools.conditions import pool_conditions
from hlserve_operator.pools.facts import PoolFacts
from hlserve_operator.render.metadata import POOL_LABEL, ROLE_LABEL, SERVING

_R = ConditionReason
_GOOD: Final = frozenset({_R.READY, _R.ROLLING_OUT, _R.STABLE, _R.DRAINING, _R.SCALED_TO_ZERO, _R.REDUCED_CAPACITY})
"""Reasons of Ready and Progressing that are told as Normal events."""
_QUIET: Final = frozenset(
    {_R.STARTING, _R.DOWNLOADING, _R.ROUTER_SYNCING, _R.NO_TRAFFIC, _R.UNKNOWN, _R.MISSED, _R.NO_ROUTER, _R.NOT_CALIBRATED}
)  # fmt: skip
"""Reasons that come and go by themselves, or that concern something else than the pool: the condition is enough."""


def selector_of(pool: ServingPool) -> str:
    """The pool's serving pods as a label selector in text, for the scale subresource."""
    return f"{POOL_LABEL}={pool.name},{ROLE_LABEL}={SERVING}"


def pool_status(facts: PoolFacts, now: datetime) -> ServingPoolStatus:
    """The status that the facts come to."""
    observed, counts = facts.observed, facts.counts
    former = observed.pool.status
    engine = former.engine
    if facts.revision:
        same = former.engine is not None and former.engine.template_hash == facts.revision
        known = former.engine.image_digest if same and former.engine is not None else None
        arguments = former.engine.args if facts.kept and former.engine is not None else facts.arguments
        engine = EngineStatus(image_digest=facts.image_digest or known, template_hash=facts.revision, args=arguments)
    return ServingPoolStatus(
        observed_generation=observed.pool.metadata.generation,
        replicas=counts.existing,
        ready_replicas=counts.ready,
        updated_replicas=counts.updated,
        draining_replicas=counts.draining,
        selector=selector_of(observed.pool),
        engine=engine,
        derived=former.derived
        if facts.kept
        else tuple(
            DerivedValue(name=value.name, value=value.value, source=value.source, why=value.why[:512])
            for value in facts.derived.values
        ),
        calibration=None
        if observed.calibration is None
        else CalibrationStatus(key=observed.calibration.identity[:253]),
        slo=observed.routers.slo if observed.pool.spec.mode is Mode.INTERACTIVE else None,
        conditions=pool_conditions(facts, now),
    )


def status_document(status: ServingPoolStatus) -> dict[str, Any]:
    """A status as JSON, without what is unset."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def changed_status(former: ServingPoolStatus, status: ServingPoolStatus) -> Mapping[str, Any] | None:
    """The status to write; None if the stored one says the same."""
    document = status_document(status)
    return None if document == status_document(former) else document


def pool_events(former: Sequence[Condition], conditions: Sequence[Condition]) -> tuple[PoolEvent, ...]:
    """What to tell: a condition that has another reason than before, if it is bad, or if the pool's readiness or motion changed."""
    known = {condition.type: condition.reason for condition in former}
    events = []
    for condition in conditions:
        reason = ConditionReason(condition.reason)
        if known.get(condition.type) == reason or reason in _QUIET:
            continue
        told = condition.type in ("Ready", "Progressing")
        if told and reason in _GOOD:
            if condition.type in known or reason not in (_R.STABLE, _R.SCALED_TO_ZERO):
                events.append(PoolEvent(type=EventType.NORMAL, reason=reason, message=condition.message))
        elif condition.status is ConditionStatus.FALSE:
            kind = EventType.NORMAL if reason is _R.PAUSED else EventType.WARNING
            events.append(PoolEvent(type=kind, reason=reason, message=condition.message))
    return tuple(events)
