"""A pool's conditions, each from the same facts. `Ready` says whether it serves; the others say why not and what moves."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from hlserve_api.conditions import ConditionReason, ConditionType
from hlserve_api.routing import Mode
from hlserve_api.v1alpha1.meta import Condition, ConditionStatus
from hlserve_api.v1alpha1.pool_operations import AutoscalingProvider
from hlserve_capacity.verdicts import SloReason
from hlserve_operator.pools.facts import Motion, PoolFacts

MAX_MESSAGE = 1024

_R = ConditionReason
_T = ConditionType
_TRUE, _FALSE, _UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN

Finding = tuple[ConditionType, ConditionStatus, ConditionReason, str]
"""A condition before it has a time: type, status, reason, message."""

_MOTION = {
    Motion.STABLE: (_FALSE, _R.STABLE),
    Motion.ROLLING_OUT: (_TRUE, _R.ROLLING_OUT),
    Motion.DRAINING: (_TRUE, _R.DRAINING),
    Motion.BLOCKED: (_FALSE, _R.BLOCKED),
    Motion.PAUSED: (_FALSE, _R.PAUSED),
    Motion.DEADLINE_EXCEEDED: (_FALSE, _R.DEADLINE_EXCEEDED),
}
_SLO = {
    SloReason.ATTAINABLE: (_TRUE, _R.ATTAINABLE),
    SloReason.TTFT_INFEASIBLE: (_FALSE, _R.TTFT_INFEASIBLE),
    SloReason.TPOT_INFEASIBLE: (_FALSE, _R.TPOT_INFEASIBLE),
    SloReason.UNKNOWN: (_UNKNOWN, _R.UNKNOWN),
}


def denied_message(refusal: str) -> str:
    """What to do about a right that is missing. A condition and an event say it in the same words, so it is told once."""
    return f"Restore the operator's Role. {refusal}"


def pool_conditions(facts: PoolFacts, now: datetime) -> tuple[Condition, ...]:
    """All conditions of a pool. The time of one whose status did not change stays as it was."""
    pool = facts.observed.pool
    return stamped(tuple(_findings(facts)), pool.status.conditions, pool.metadata.generation, now)


def stamped(
    findings: Sequence[Finding], former: Sequence[Condition], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Findings as conditions: `lastTransitionTime` moves only when the status does."""
    known = {condition.type: condition for condition in former}
    result = []
    for type_, status, reason, message in findings:
        before = known.get(type_)
        since = before.last_transition_time if before is not None and before.status is status else now
        result.append(
            Condition(
                type=type_,
                status=status,
                reason=reason,
                message=message[:MAX_MESSAGE],
                last_transition_time=since.replace(microsecond=0),
                observed_generation=generation,
            )
        )
    return tuple(result)


def _findings(facts: PoolFacts) -> Iterator[Finding]:
    model, engine, routable = _model(facts), _engine(facts), _routable(facts)
    yield _ready(facts, model, engine, routable)
    yield model
    yield _config(facts)
    yield engine
    yield routable
    status, reason = _MOTION[facts.motion]
    yield _T.PROGRESSING, status, reason, facts.motion_message
    if facts.observed.pool.spec.mode is Mode.INTERACTIVE:
        status, reason = _SLO[facts.derived.slo_reason]
        yield _T.SLO_ATTAINABLE, status, reason, facts.derived.slo_message
        yield _slo_met(facts)
    scaler = _autoscaler(facts)
    if scaler is not None:
        yield scaler


def _ready(facts: PoolFacts, model: Finding, engine: Finding, routable: Finding) -> Finding:
    observed, counts = facts.observed, facts.counts
    if observed.denied:
        return _T.READY, _FALSE, _R.PERMISSION_DENIED, denied_message(observed.denied)
    if facts.taken:
        names = ", ".join(facts.taken)
        message = (
            f"{names} exists already and does not belong to this pool: delete or rename it, or name the pool otherwise."
        )
        return _T.READY, _FALSE, _R.NAME_TAKEN, message
    if observed.pruned_fields:
        names = ", ".join(observed.pruned_fields)
        return _T.READY, _FALSE, _R.PRUNED_FIELD, f"The installed CRD does not know {names}: upgrade hlserve-crds."
    if not counts.desired and not counts.ready:
        return _T.READY, _FALSE, _R.SCALED_TO_ZERO, "No replica is wanted."
    unknown_to_routers = routable[2] is _R.NO_ROUTER or (routable[2] is _R.ROUTER_SYNCING and not _was_ready(facts))
    if not counts.ready or unknown_to_routers:
        cause = next((f for f in (facts.rejected, facts.model_fault, facts.engine_fault) if f is not None), None)
        waits = cause.message if cause is not None else engine[3] if not counts.ready else routable[3]
        return _T.READY, _FALSE, _R.STARTING, waits
    if counts.ready < counts.desired:
        return _T.READY, _TRUE, _R.REDUCED_CAPACITY, f"{counts.ready} of {counts.desired} replicas serve."
    return _T.READY, _TRUE, _R.READY, f"{counts.ready} of {counts.desired} replicas serve."


def _was_ready(facts: PoolFacts) -> bool:
    """Routers that wait for a newer table still serve a pool that they knew."""
    return any(c.type == _T.READY and c.status is _TRUE for c in facts.observed.pool.status.conditions)


def _model(facts: PoolFacts) -> Finding:
    token = facts.observed.pool.spec.model.source.token_secret_ref
    if any(pod.started or pod.ready for pod in facts.observed.pods):
        return _T.MODEL_AVAILABLE, _TRUE, _R.AVAILABLE, "At least one replica has loaded the model."
    if token is not None and token.key not in facts.observed.secrets.get(token.name, frozenset()):
        message = f"Secret {token.name} with key {token.key}, the download token, is not there: create it."
        return _T.MODEL_AVAILABLE, _FALSE, _R.SECRET_MISSING, message
    if facts.model_fault is not None:
        return _T.MODEL_AVAILABLE, _FALSE, facts.model_fault.reason, facts.model_fault.message
    source = facts.observed.pool.spec.model.source.uri
    if source.startswith("hf://") and any(pod.running_since is not None for pod in facts.observed.pods):
        return _T.MODEL_AVAILABLE, _FALSE, _R.DOWNLOADING, f"An engine downloads or loads {source}."
    return _T.MODEL_AVAILABLE, _UNKNOWN, _R.UNKNOWN, "No engine has said yet what became of its model."


def _config(facts: PoolFacts) -> Finding:
    if facts.rejected is not None and facts.rejected.reason is not _R.IMAGE_PULL_FAILED:
        return _T.CONFIG_DERIVED, _FALSE, facts.rejected.reason, facts.rejected.message
    problem = facts.observed.calibration_problem
    if problem and not facts.derived.calibrated:
        return _T.CONFIG_DERIVED, _FALSE, _R.NOT_CALIBRATED, problem
    if not facts.derived.calibrated:
        message = "Settings are the engine's defaults, the pool serves. Set hardware.accelerator and model.shape, or calibrationRef."
        return _T.CONFIG_DERIVED, _FALSE, _R.NOT_CALIBRATED, message
    note = f" The calibration is not used: {problem}" if problem else ""
    if facts.image and "@sha256:" not in facts.image:
        message = f"{facts.image} is named by a tag, which may move: use a digest.{note}"
        return _T.CONFIG_DERIVED, _TRUE, _R.FLOATING_IMAGE_TAG, message
    return _T.CONFIG_DERIVED, _TRUE, _R.DERIVED, f"status.derived lists every setting with its source.{note}"


def _engine(facts: PoolFacts) -> Finding:
    counts, fault = facts.counts, facts.engine_fault
    if counts.desired and counts.ready >= counts.desired:
        return _T.ENGINE_READY, _TRUE, _R.READY, f"{counts.ready} of {counts.desired} replicas answer."
    if counts.ready:
        why = f" {fault.message}" if fault is not None else ""
        message = f"{counts.ready} of {counts.desired} replicas answer.{why}"
        return _T.ENGINE_READY, _TRUE, _R.REDUCED_CAPACITY if counts.desired else _R.READY, message
    missing = _missing_secret(facts)
    if missing is not None:
        return _T.ENGINE_READY, _FALSE, _R.SECRET_MISSING, missing
    if fault is not None:
        return _T.ENGINE_READY, _FALSE, fault.reason, fault.message
    if facts.rejected is not None:
        return _T.ENGINE_READY, _FALSE, _R.STARTING, facts.rejected.message
    if not counts.desired:
        return _T.ENGINE_READY, _FALSE, _R.STARTING, "No replica is wanted."
    seconds = facts.observed.pool.spec.startup.timeout_seconds
    message = f"0 of {counts.desired} replicas answer; each may take {seconds} s to load."
    return _T.ENGINE_READY, _FALSE, _R.STARTING, message


def _missing_secret(facts: PoolFacts) -> str | None:
    engine, known = facts.observed.pool.spec.engine, facts.observed.secrets
    if engine.tls is not None and engine.tls.secret_name not in known:
        return f"Secret {engine.tls.secret_name}, the engines' certificate, is not there: create it."
    reference = engine.api_key_secret_ref
    if reference is not None and reference.key not in known.get(reference.name, frozenset()):
        return f"Secret {reference.name} with key {reference.key}, the engines' key, is not there: create it."
    for variable in engine.env:
        source = variable.value_from.secret_key_ref if variable.value_from is not None else None
        if source is not None and source.key not in known.get(source.name, frozenset()):
            return f"Secret {source.name} with key {source.key}, for variable {variable.name}, is not there: create it."
    return None


def _routable(facts: PoolFacts) -> Finding:
    routers = facts.observed.routers
    if not routers.routers:
        message = "No router is running: look at the release's router Deployment."
        return _T.ROUTABLE, _FALSE, _R.NO_ROUTER, message
    if not routers.answering:
        message = f"None of {routers.routers} routers answers the operator; they go on with the last table they have."
        return _T.ROUTABLE, _UNKNOWN, _R.UNKNOWN, message
    message = f"{routers.synced} of {routers.routers} routers have the routing table with this pool."
    if routers.synced < routers.answering:
        return _T.ROUTABLE, _FALSE, _R.ROUTER_SYNCING, message
    return _T.ROUTABLE, _TRUE, _R.ROUTER_SYNCED, message


def _slo_met(facts: PoolFacts) -> Finding:
    measured, slo = facts.observed.routers.slo, facts.observed.pool.spec.slo
    if measured is None or measured.attainment_percent is None or slo is None:
        return _T.SLO_MET, _UNKNOWN, _R.NO_TRAFFIC, "No request ended in the window."
    share = f"{measured.attainment_percent} % of requests met the targets, {slo.percentile.value} % have to."
    met = measured.attainment_percent >= slo.percentile
    return _T.SLO_MET, _TRUE if met else _FALSE, _R.MET if met else _R.MISSED, share


def _autoscaler(facts: PoolFacts) -> Finding | None:
    observed = facts.observed
    scaling = observed.pool.spec.autoscaling
    strangers = [scaler for scaler in observed.scalers if not scaler.owned]
    if scaling is None:
        return None
    if scaling.provider is AutoscalingProvider.EXTERNAL:
        message = "Something of yours writes the scale subresource; the operator makes no autoscaler."
        return _T.AUTOSCALER_ACTIVE, _TRUE, _R.EXTERNAL, message
    if strangers:
        names = ", ".join(str(scaler.ref) for scaler in strangers)
        message = f"{names} changes this pool's replicas too: remove it, or set autoscaling.provider to External."
        return _T.AUTOSCALER_ACTIVE, _FALSE, _R.CONFLICTING_SCALER, message
    if scaling.provider is AutoscalingProvider.KEDA and not observed.optional_apis.keda:
        message = "KEDA is not installed: install it, or choose provider HPA or External."
        return _T.AUTOSCALER_ACTIVE, _FALSE, _R.CRD_MISSING, message
    said = next((scaler for scaler in observed.scalers if scaler.active is not None), None)
    if said is None:
        return _T.AUTOSCALER_ACTIVE, _UNKNOWN, _R.UNKNOWN, "The autoscaler has not reported yet."
    if said.active:
        return _T.AUTOSCALER_ACTIVE, _TRUE, _R.ACTIVE, f"{said.ref} changes the replicas."
    return _T.AUTOSCALER_ACTIVE, _UNKNOWN, _R.UNKNOWN, f"{said.ref} does not work: {said.message}"
