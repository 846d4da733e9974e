"""The answer of `hlserve size` as text and as JSON."""

from dataclasses import asdict
from typing import Any

from rich.table import Table

from hlserve_bench.size_inputs import EngineModel, Traffic
from hlserve_capacity.linear import UNBOUNDED_POOL_TOKENS
from hlserve_capacity.sizing import Sizing
from hlserve_capacity.verdicts import BatchLimit, CapacityLimit, Infeasible

_LIMIT_WORDS = {
    BatchLimit.TPOT: "TPOT",
    BatchLimit.TTFT: "TTFT",
    BatchLimit.PREFILL: "prefill that the chunk must carry",
    BatchLimit.KV_POOL: "KV pool",
    BatchLimit.ENGINE: "engine's largest batch",
}


def table(sizing: Sizing, traffic: Traffic, engine: EngineModel, slo: str) -> Table:
    """Ceiling, chunk, capacity and replicas, each with its reason."""
    result = Table(title="Sizing (estimated)", show_header=False, title_justify="left", padding=(0, 1))
    result.add_column(style="bold", no_wrap=True)
    result.add_column(no_wrap=True)
    result.add_column(overflow="fold")
    lengths = traffic.lengths
    reuse = f", {100 * lengths.prefix_hit_rate:.0f} % of prompts reused" if lengths.prefix_hit_rate else ""
    result.add_row("engine", "", engine.description)
    result.add_row(
        "traffic",
        "",
        f"prompts {lengths.input_mean:,.0f} mean, {lengths.input_p95:,.0f} P95; replies {lengths.output_mean:,.0f} mean, "
        f"{lengths.output_p95:,.0f} P95; {traffic.description}{reuse}",
    )
    result.add_row("SLO", "", slo)
    result.add_section()
    result.add_row("batch", f"{sizing.batch}", f"bound by {_LIMIT_WORDS[sizing.batch_limit]}: {sizing.batch_why}")
    chunk = "–" if sizing.chunk_tokens is None else f"{sizing.chunk_tokens}"
    result.add_row("chunk", chunk, sizing.chunk_why)
    if sizing.itl_batch is not None and sizing.itl_batch < sizing.batch:
        result.add_row("", "", f"for every single token gap (ITL) within TPOT and its margin: batch {sizing.itl_batch}")
    if sizing.sessions_per_replica is not None:
        result.add_row("sessions", f"{sizing.sessions_per_replica}", "whose contexts fit 0.9 of a replica's KV pool")
    result.add_row("capacity", f"{sizing.capacity_rps:.2f} rps", _capacity_why(sizing))
    result.add_row(
        "replicas",
        f"{sizing.replicas}",
        f"⌈{sizing.peak_rps:.2f} rps peak / ({sizing.utilisation:g} × {sizing.capacity_rps:.2f} rps)⌉",
    )
    return result


def _capacity_why(sizing: Sizing) -> str:
    decode = f"{sizing.decode_capacity_rps:.2f} rps with all slots busy"
    if sizing.queue_capacity_rps is None:
        return decode
    if sizing.capacity_limit is CapacityLimit.TTFT_QUEUE:
        return f"highest simulated rate that keeps the SLO; {decode}, but the queue breaks TTFT or TPOT before"
    return f"{decode}, and the simulated queue keeps the SLO there"


def as_json(sizing: Sizing, traffic: Traffic, engine: EngineModel) -> dict[str, Any]:
    """The same as plain values; memory without a bound is null."""
    values = asdict(sizing)
    if engine.cost.pool_tokens == UNBOUNDED_POOL_TOKENS:
        values["kv_ceiling"] = None
    return {
        "feasible": True,
        "basis": engine.description,
        "lengths": asdict(traffic.lengths),
        **values,
        "capacity_rps": sizing.capacity_rps,
    }


def infeasible_as_json(answer: Infeasible, engine: EngineModel) -> dict[str, Any]:
    """An answer that no number of replicas helps."""
    return {"feasible": False, "basis": engine.description, **asdict(answer)}
