"""Derivation over plain numbers: what `hlserve_capacity.derive` does once it has read a ServingPool."""

import math

from hlserve_api.routing import Mode, PriorityOrder
from hlserve_api.v1alpha1.pool_status import DerivedSource
from hlserve_capacity.batch_choice import BatchChoice, BatchProblem, choose, memory_bound
from hlserve_capacity.derive_types import (
    CostBasis,
    DerivationInputs,
    DerivedPool,
    DerivedValue,
    Overrides,
    SloTarget,
)
from hlserve_capacity.engine.types import StepCost
from hlserve_capacity.limits import KV_SHARE, completions_per_second
from hlserve_capacity.units import US_PER_MS
from hlserve_capacity.verdicts import SloReason

HUMAN_LESS_GRACE_SECONDS = 600
MAX_GRACE_SECONDS = 3600
GRACE_SLACK_SECONDS = 15
HUMAN_LESS_WAITING = 128
"""Requests that may wait in a human-less engine: up to so many SGLang orders by prefix. Longest-prefix order and KV-aware admission
keep a session's rounds together only if they see them: rounds held back by the router come first in, first out, and find their
prefix evicted."""


class _Ledger:
    """Collects settings with their provenance; a user's value wins."""

    def __init__(self, basis: CostBasis | None) -> None:
        self.values: list[DerivedValue] = []
        self._basis = basis

    def derived(self, name: str, user: int | None, derived: int | None, why: str) -> int | None:
        """The value in force; it is recorded unless it is None."""
        if user is not None:
            return self.record(name, user, DerivedSource.USER, "set in spec.engine")
        source = self._basis.source if self._basis else DerivedSource.DEFAULT
        basis = f" ({self._basis.description})" if self._basis else ""
        return self.record(name, derived, source, f"{why}{basis}")

    def default(self, name: str, user: int | None, default: int | None, why: str) -> int | None:
        """The same for a value that no estimate is behind."""
        if user is not None:
            return self.record(name, user, DerivedSource.USER, "set in spec.engine")
        return self.record(name, default, DerivedSource.DEFAULT, why)

    def record(self, name: str, value: int | None, source: DerivedSource, why: str) -> int | None:
        if value is not None:
            self.values.append(DerivedValue(name, str(value), source, why))
        return value


def derive_values(inputs: DerivationInputs) -> DerivedPool:
    """Settings of one pool with their provenance."""
    if inputs.mode is Mode.HUMAN_LESS:
        return _human_less(inputs)
    if inputs.slo is None:
        raise ValueError("an Interactive pool needs an SLO to derive its settings from")
    if inputs.basis is None or inputs.slo.observe_only:
        return _interactive_defaults(inputs, inputs.slo)
    return _interactive(inputs, inputs.slo, inputs.basis)


def _interactive(inputs: DerivationInputs, slo: SloTarget, basis: CostBasis) -> DerivedPool:
    choice = choose(_problem(inputs, slo, basis.cost))
    user, ledger = inputs.overrides, _Ledger(basis)
    running = ledger.derived("maxRunningRequests", user.max_running_requests, choice.batch, choice.batch_why)
    chunk = ledger.derived("chunkedPrefillSize", user.chunked_prefill_size, choice.chunk, choice.chunk_why)
    queue = _queue_bound(inputs, slo, basis.cost, choice)
    queued = ledger.derived("maxQueuedRequests", user.max_queued_requests, queue[0], queue[1])
    ttl_ms = ledger.derived("queueTtlMilliseconds", None, queue[2], "TTFT less the prefill of a P95 prompt")
    return _finish(
        inputs,
        ledger,
        running=running,
        queued=queued,
        chunk=chunk,
        ttl_ms=ttl_ms,
        max_in_flight=_sum(running, queued),
        in_flight_tokens=_interactive_tokens(inputs, basis.cost, queued),
        choice=choice,
    )


def _interactive_defaults(inputs: DerivationInputs, slo: SloTarget) -> DerivedPool:
    """Nothing to derive from, or only to observe: the engine's own settings; the SLO is judged if it can be."""
    user, ledger = inputs.overrides, _Ledger(inputs.basis)
    why = "only observed: slo.enforcement is Observe" if slo.observe_only else inputs.missing_basis
    running = ledger.default("maxRunningRequests", user.max_running_requests, None, why)
    chunk = ledger.default("chunkedPrefillSize", user.chunked_prefill_size, inputs.default_chunk_tokens, why)
    queued = ledger.default("maxQueuedRequests", user.max_queued_requests, None, why)
    choice = None if inputs.basis is None else choose(_problem(inputs, slo, inputs.basis.cost))
    return _finish(
        inputs,
        ledger,
        running=running,
        queued=queued,
        chunk=chunk,
        ttl_ms=None,
        max_in_flight=_sum(running, queued),
        in_flight_tokens=None,
        choice=choice,
    )


def _human_less(inputs: DerivationInputs) -> DerivedPool:
    user, ledger = inputs.overrides, _Ledger(inputs.basis)
    if inputs.basis is None:
        running = ledger.default("maxRunningRequests", user.max_running_requests, None, inputs.missing_basis)
    else:
        batch, _, why = memory_bound(inputs.basis.cost, inputs.lengths, inputs.max_batch)
        running = ledger.derived("maxRunningRequests", user.max_running_requests, batch, why)
    chunk_why = "the device's default: it sets the memory reserve; throughput mode lifts only the scheduling bound"
    chunk = ledger.default("chunkedPrefillSize", user.chunked_prefill_size, inputs.default_chunk_tokens, chunk_why)
    queued = ledger.default("maxQueuedRequests", user.max_queued_requests, None, "")
    return _finish(
        inputs,
        ledger,
        running=running,
        queued=queued,
        chunk=chunk,
        ttl_ms=None,
        max_in_flight=_sum(running, HUMAN_LESS_WAITING if queued is None else queued),
        in_flight_tokens=None,
        kv_tokens=None if inputs.basis is None else inputs.basis.cost.pool_tokens,
        choice=None,
    )


def _problem(inputs: DerivationInputs, slo: SloTarget, cost: StepCost) -> BatchProblem:
    return BatchProblem(
        cost=cost,
        lengths=inputs.lengths,
        ttft_ms=slo.ttft_ms,
        tpot_ms=slo.tpot_ms,
        percentile=slo.percentile,
        max_batch=inputs.max_batch,
        default_chunk_tokens=inputs.default_chunk_tokens,
        fixed_batch=inputs.overrides.max_running_requests,
        fixed_chunk=inputs.overrides.chunked_prefill_size,
    )


def _queue_bound(
    inputs: DerivationInputs, slo: SloTarget, cost: StepCost, choice: BatchChoice
) -> tuple[int | None, str, int | None]:
    """(queue bound, why, time to live in ms): what is left of TTFT after prefill, at the rate of completions.

    Without a target, or with one that prefill alone breaks, there is nothing to bound: shedding would help nobody.
    """
    if slo.ttft_ms is None or choice.slo_reason is SloReason.TTFT_INFEASIBLE:
        return None, "", None
    slack_ms = max(1, math.floor(slo.ttft_ms - choice.prefill_ms))
    rate = completions_per_second(cost, choice.batch, inputs.lengths)
    why = f"({slo.ttft_ms} ms TTFT - {choice.prefill_ms:.0f} ms prefill) × {rate:.2f} completions/s, at least 1"
    return max(1, math.floor(slack_ms / US_PER_MS * rate)), why, slack_ms


def _interactive_tokens(inputs: DerivationInputs, cost: StepCost, queued: int | None) -> int | None:
    if queued is None:
        return None
    return math.floor(KV_SHARE * cost.pool_tokens + queued * inputs.lengths.peak_tokens)


def _sum(running: int | None, queued: int | None) -> int | None:
    return None if running is None or queued is None else running + queued


def _finish(
    inputs: DerivationInputs,
    ledger: _Ledger,
    *,
    running: int | None,
    queued: int | None,
    chunk: int | None,
    ttl_ms: int | None,
    max_in_flight: int | None,
    in_flight_tokens: int | None,
    choice: BatchChoice | None,
    kv_tokens: int | None = None,
) -> DerivedPool:
    """The settings that do not depend on the batch, and the whole."""
    user = inputs.overrides
    context = ledger.default("contextLength", user.context_length, inputs.context_length, "the model's own")
    waiting = inputs.mode is Mode.HUMAN_LESS and user.max_queued_requests is None
    in_flight_why = (
        f"running + {HUMAN_LESS_WAITING} that the engine orders by prefix" if waiting else "running + queued"
    )
    ledger.derived("maxInFlight", None, max_in_flight, in_flight_why)
    tokens_why = "KV of 0.9 of the pool, and P95 lengths of the queue"
    tokens = ledger.derived("inFlightTokens", user.in_flight_tokens, in_flight_tokens, tokens_why)
    return DerivedPool(
        max_running_requests=running,
        max_queued_requests=queued,
        chunked_prefill_size=chunk,
        context_length=context,
        queue_ttl_milliseconds=ttl_ms,
        max_in_flight=max_in_flight,
        in_flight_tokens=tokens,
        kv_tokens=ledger.derived(
            "kvTokens", None, kv_tokens, "what the KV pool of a replica holds: active sessions stay inside it"
        ),
        grace_seconds=_grace(inputs, ledger),
        priority_order=_priority_order(inputs.mode, user, ledger),
        values=tuple(ledger.values),
        calibrated=inputs.basis is not None,
        slo_reason=choice.slo_reason if choice else SloReason.UNKNOWN,
        slo_message=choice.slo_message if choice else inputs.missing_basis or "the pool has no latency target",
    )


def _grace(inputs: DerivationInputs, ledger: _Ledger) -> int:
    def keep(seconds: int, source: DerivedSource, why: str) -> int:
        ledger.record("graceSeconds", seconds, source, why)
        return seconds

    if inputs.overrides.drain_timeout_seconds is not None:
        return keep(inputs.overrides.drain_timeout_seconds, DerivedSource.USER, "set in spec.drain")
    slo = inputs.slo
    if inputs.mode is Mode.HUMAN_LESS or slo is None or slo.tpot_ms is None:
        return keep(HUMAN_LESS_GRACE_SECONDS, DerivedSource.DEFAULT, "no TPOT target bounds a reply")
    longest_ms = inputs.max_output_tokens * slo.tpot_ms + (slo.ttft_ms or 0)
    seconds = min(MAX_GRACE_SECONDS, math.ceil(longest_ms / 1000) + GRACE_SLACK_SECONDS)
    why = f"{inputs.max_output_tokens} output tokens × {slo.tpot_ms} ms + TTFT + 15 s, at most an hour"
    return keep(seconds, DerivedSource.DEFAULT, why)


def _priority_order(mode: Mode, user: Overrides, ledger: _Ledger) -> PriorityOrder:
    if user.priority_order is not None:
        ledger.values.append(
            DerivedValue("priorityOrder", user.priority_order, DerivedSource.USER, "set in spec.engine")
        )
        return user.priority_order
    human_less = mode is Mode.HUMAN_LESS
    order = PriorityOrder.NONE if human_less else PriorityOrder.HIGHER_FIRST
    why = "prefix-aware order excludes priorities" if human_less else "urgent classes first"
    ledger.values.append(DerivedValue("priorityOrder", order, DerivedSource.DEFAULT, why))
    return order
