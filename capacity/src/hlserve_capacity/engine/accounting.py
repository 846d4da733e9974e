"""What a step adds to the engine's counters."""

from hlserve_capacity.engine.types import EngineTotals, Step


def count_step(totals: EngineTotals, step: Step, boundary_us: float) -> None:
    """Add one step; `boundary_us` is the part of it that chunk boundaries took."""
    totals.steps += 1
    totals.busy_us += step.duration_us
    if step.chunks and step.decode_sequences:
        kind, totals.mixed_steps = "mixed", totals.mixed_steps + 1
    elif step.chunks:
        kind, totals.prefill_steps = "prefill", totals.prefill_steps + 1
    else:
        kind, totals.decode_steps = "decode", totals.decode_steps + 1
    cost = totals.cost_us
    cost[kind] = cost.get(kind, 0.0) + step.duration_us
    if boundary_us:
        cost["chunk_boundary"] = cost.get("chunk_boundary", 0.0) + boundary_us
