"""The pair that the SLO decides: how many requests run together, and how large a chunk may join them."""

from dataclasses import dataclass

from hlserve_capacity.derive_types import DerivationInputs, SloReason, SloTarget
from hlserve_capacity.engine.types import StepCost
from hlserve_capacity.limits import (
    CHUNK_STEP_TOKENS,
    TPOT_MARGIN,
    kv_ceiling,
    largest_chunk,
    largest_that_fits,
    prefill_alone_us,
    prefill_beside_batch_us,
    steady_step_us,
    tpot_ceiling,
)
from hlserve_capacity.units import US_PER_MS, ms_from_us

TTFT_QUEUE_SHARE = 0.2
"""Share of the TTFT target that prefill leaves to queueing; without it every short wait would be a miss."""
DEFAULT_CHUNK_TOKENS = 8192
"""The engine's default chunk where the device is not known."""


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """A batch, a chunk (None: the engine's default), why, and whether the SLO holds with them."""

    batch: int
    batch_why: str
    chunk: int | None
    chunk_why: str
    slo_reason: SloReason
    slo_message: str


def memory_bound(inputs: DerivationInputs, cost: StepCost) -> tuple[int, str]:
    """The batch that memory allows, and the reason. At least 1: a pool serves even if its P95 request does not fit twice."""
    lengths = inputs.lengths
    ceiling = kv_ceiling(cost.pool_tokens, lengths)
    if ceiling > inputs.max_batch:
        return inputs.max_batch, f"largest batch with a decode graph; the KV pool would allow {ceiling}"
    return max(1, ceiling), f"0.9 × {cost.pool_tokens:,} KV tokens / {lengths.peak_tokens:,.0f} (P95 prompt + reply)"


def choose(inputs: DerivationInputs, slo: SloTarget, cost: StepCost) -> BatchChoice:
    """The largest batch for which a chunk exists that keeps both targets.

    TPOT is a mean over a reply, so the batch is bound by the mean step of a steady state at 90 % of the target; a single
    mixed step may take the whole target, which bounds the chunk. The chunk must carry the prefill that the batch brings,
    and finish a P95 prompt within the TTFT target.
    """
    memory, memory_why = memory_bound(inputs, cost)
    if inputs.overrides.max_running_requests is not None:
        memory, memory_why = inputs.overrides.max_running_requests, "set in spec.engine"
    tpot = memory
    if slo.tpot_ms is not None:
        tpot = tpot_ceiling(cost, slo.tpot_ms * US_PER_MS * (1 - TPOT_MARGIN), inputs.lengths, memory)
        if not tpot:
            return _tpot_infeasible(inputs, slo, slo.tpot_ms, cost)
    if inputs.overrides.max_running_requests is not None and tpot < memory:
        return _user_batch_too_large(inputs, slo, memory, tpot, cost)
    sustained = _largest_sustained(inputs, slo, cost, tpot)
    if not sustained:
        return _tpot_infeasible(inputs, slo, slo.tpot_ms or 0, cost)
    batch = sustained
    if slo.ttft_ms is not None:
        roomy_us = slo.ttft_ms * US_PER_MS * (1 - TTFT_QUEUE_SHARE)
        in_time = largest_that_fits(lambda size: _prefill_us(inputs, slo, cost, size) <= roomy_us, sustained)
        if not in_time and _prefill_us(inputs, slo, cost, 1) <= slo.ttft_ms * US_PER_MS:
            in_time = 1
        if not in_time:
            return _ttft_infeasible(inputs, slo, slo.ttft_ms, sustained, cost)
        batch = in_time
    chunk, chunk_why = chunk_for(inputs, slo, cost, batch)
    why = memory_why if batch == memory else _batch_why(inputs, slo, cost, batch, tpot, sustained)
    return BatchChoice(batch, why, chunk, chunk_why, SloReason.ATTAINABLE, _attainable(inputs, slo, cost, batch, chunk))


def chunk_for(inputs: DerivationInputs, slo: SloTarget, cost: StepCost, batch: int) -> tuple[int | None, str]:
    """The largest chunk that fits beside the batch (0: none), and the reason."""
    if inputs.overrides.chunked_prefill_size is not None:
        return inputs.overrides.chunked_prefill_size, "set in spec.engine"
    if slo.tpot_ms is None:
        return inputs.default_chunk_tokens, "the engine's default: no TPOT target bounds a step"
    upper = inputs.default_chunk_tokens or DEFAULT_CHUNK_TOKENS
    chunk = largest_chunk(cost, batch, inputs.lengths, slo.tpot_ms * US_PER_MS, upper)
    return chunk, f"largest chunk whose step with {batch} running requests stays within {slo.tpot_ms} ms"


def _chunk_tokens(inputs: DerivationInputs, slo: SloTarget, cost: StepCost, batch: int) -> int:
    chunk, _ = chunk_for(inputs, slo, cost, batch)
    return DEFAULT_CHUNK_TOKENS if chunk is None else chunk


def _largest_sustained(inputs: DerivationInputs, slo: SloTarget, cost: StepCost, upper: int) -> int:
    def sustained(batch: int) -> bool:
        demand = batch * inputs.lengths.prefill_tokens_per_output_token
        return _chunk_tokens(inputs, slo, cost, batch) >= demand

    if inputs.overrides.max_running_requests is not None:
        return upper
    return largest_that_fits(sustained, upper)


def _prefill_us(inputs: DerivationInputs, slo: SloTarget, cost: StepCost, batch: int) -> float:
    return prefill_beside_batch_us(cost, batch, inputs.lengths, max(1, _chunk_tokens(inputs, slo, cost, batch)))


def _batch_why(inputs: DerivationInputs, slo: SloTarget, cost: StepCost, batch: int, tpot: int, sustained: int) -> str:
    if batch == tpot:
        step_ms = ms_from_us(steady_step_us(cost, batch, inputs.lengths))
        return f"mean step {step_ms:.1f} ms within 90 % of TPOT {slo.tpot_ms} ms at p{slo.percentile}"
    if batch == sustained:
        return f"TPOT {slo.tpot_ms} ms leaves a chunk that carries the prefill of {batch} running requests, not of {batch + 1}"
    return f"a P95 prompt is prefilled within 80 % of TTFT {slo.ttft_ms} ms beside {batch} running requests, not beside {batch + 1}"


def _attainable(inputs: DerivationInputs, slo: SloTarget, cost: StepCost, batch: int, chunk: int | None) -> str:
    step_ms = ms_from_us(steady_step_us(cost, batch, inputs.lengths))
    prefill_ms = ms_from_us(prefill_beside_batch_us(cost, batch, inputs.lengths, chunk or DEFAULT_CHUNK_TOKENS))
    return f"{batch} running requests: mean step {step_ms:.1f} ms, P95 prompt prefilled in {prefill_ms:.0f} ms"


def _tpot_infeasible(inputs: DerivationInputs, slo: SloTarget, tpot_ms: int, cost: StepCost) -> BatchChoice:
    floor_ms = ms_from_us(steady_step_us(cost, 1, inputs.lengths))
    message = (
        f"TPOT {tpot_ms} ms with 10 % margin is out of reach: one request alone takes {floor_ms:.1f} ms a token; raise the "
        "target, use more tensor parallelism, or a faster device"
    )
    chunk = inputs.overrides.chunked_prefill_size or CHUNK_STEP_TOKENS
    why = "smallest useful chunk: the SLO is out of reach"
    return BatchChoice(
        1, "the SLO is out of reach, served one at a time", chunk, why, SloReason.TPOT_INFEASIBLE, message
    )


def _user_batch_too_large(
    inputs: DerivationInputs, slo: SloTarget, batch: int, ceiling: int, cost: StepCost
) -> BatchChoice:
    step_ms = ms_from_us(steady_step_us(cost, batch, inputs.lengths))
    message = (
        f"engine.maxRunningRequests {batch} gives a mean step of {step_ms:.1f} ms, above 90 % of TPOT {slo.tpot_ms} ms; at "
        f"most {ceiling} keep it"
    )
    chunk, why = chunk_for(inputs, slo, cost, batch)
    return BatchChoice(
        batch, "set in spec.engine", max(CHUNK_STEP_TOKENS, chunk or 0), why, SloReason.TPOT_INFEASIBLE, message
    )


def _ttft_infeasible(inputs: DerivationInputs, slo: SloTarget, ttft_ms: int, batch: int, cost: StepCost) -> BatchChoice:
    default_chunk = inputs.default_chunk_tokens or DEFAULT_CHUNK_TOKENS
    floor_ms = ms_from_us(prefill_alone_us(cost, inputs.lengths, default_chunk))
    prompt = f"a prompt of {inputs.lengths.input_p95:,.0f} tokens (P95)"
    chunk, chunk_why = chunk_for(inputs, slo, cost, batch)
    if floor_ms > ttft_ms:
        message = f"TTFT {ttft_ms} ms is out of reach: {prompt} takes {floor_ms:.0f} ms alone on an idle engine"
    else:
        single = _chunk_tokens(inputs, slo, cost, 1)
        slowest_ms = ms_from_us(prefill_alone_us(cost, inputs.lengths, max(1, single)))
        message = (
            f"TTFT {ttft_ms} ms and TPOT {slo.tpot_ms} ms exclude each other: {prompt} takes {slowest_ms:.0f} ms in the "
            f"chunks of {single} tokens that TPOT leaves, {floor_ms:.0f} ms without that bound"
        )
    return BatchChoice(
        batch, f"TPOT allows {batch}; TTFT is out of reach", chunk, chunk_why, SloReason.TTFT_INFEASIBLE, message
    )
