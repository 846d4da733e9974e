"""What `hlserve size` is asked about: traffic (numbers or a trace) and engines (device and model, a calibration, or the lab's)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hlserve_bench.traces.agentic import load_agentic
from hlserve_bench.traces.azure import load_azure
from hlserve_bench.traces.mooncake import load_mooncake
from hlserve_capacity import devices, shapes
from hlserve_capacity.calibration import parse_calibration
from hlserve_capacity.engine.types import StepCost
from hlserve_capacity.lab.workload import LengthDraw, empirical, exponential
from hlserve_capacity.lengths import P95_OF_UNIT_EXPONENTIAL, Lengths, from_samples
from hlserve_capacity.linear import batching_lab
from hlserve_capacity.percentiles import nearest_rank
from hlserve_capacity.roofline import Roofline

GRAPH_BATCH = 256
GRAPH_BATCH_TP4 = 512
"""SGLang's largest decode graph: 256, from four-way tensor parallelism on 512."""


class TraceFormat(StrEnum):
    """The trace formats that sizing reads."""

    AZURE = "azure"
    MOONCAKE = "mooncake"
    AGENTIC = "agentic"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Lengths, how to draw them, and the peak rate if a trace has one (99th percentile of its minutes)."""

    lengths: Lengths
    prompts: LengthDraw
    outputs: LengthDraw
    peak_rps: float | None
    description: str


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A step cost and what is known of its engine."""

    cost: StepCost
    description: str
    max_batch: int
    default_chunk_tokens: int | None


def traffic_from_numbers(
    *,
    input_mean: float | None,
    input_p95: float | None,
    output_mean: float | None,
    output_p95: float | None,
    prefix_hit_rate: float,
) -> Traffic:
    """Traffic of given lengths; what is missing follows as if lengths were exponential. Raises ValueError in one sentence."""
    prompt_mean, prompt_p95 = _both("input", input_mean, input_p95)
    reply_mean, reply_p95 = _both("output", output_mean, output_p95)
    lengths = Lengths(
        input_mean=prompt_mean,
        input_p95=prompt_p95,
        output_mean=max(1.0, reply_mean),
        output_p95=max(1.0, reply_p95),
        prefix_hit_rate=prefix_hit_rate,
    )
    return Traffic(
        lengths,
        prompts=exponential(max(1.0, lengths.new_input_mean)),
        outputs=exponential(lengths.output_mean),
        peak_rps=None,
        description="exponential lengths",
    )


def _both(side: str, mean: float | None, p95: float | None) -> tuple[float, float]:
    if mean is None and p95 is None:
        raise ValueError(f"the {side} lengths are missing: give --{side}-mean, --{side}-p95 or --trace")
    if mean is not None and p95 is not None:
        if p95 < mean / 2:
            raise ValueError(f"--{side}-p95 {p95:g} is far below --{side}-mean {mean:g}: check the two numbers")
        return mean, p95
    if p95 is not None:
        return p95 / P95_OF_UNIT_EXPONENTIAL, p95
    known = mean or 0.0
    return known, known * P95_OF_UNIT_EXPONENTIAL


def traffic_from_trace(path: Path, trace_format: TraceFormat) -> Traffic:
    """Lengths and peak rate of a trace. Raises TraceError in one sentence for a file that cannot be used."""
    match trace_format:
        case TraceFormat.AZURE:
            azure = load_azure(path).rows
            return _traced(
                path,
                [row.input_tokens for row in azure],
                [row.output_tokens for row in azure],
                arrivals=[row.at_seconds for row in azure],
            )
        case TraceFormat.MOONCAKE:
            mooncake = load_mooncake(path).rows
            return _traced(
                path,
                [row.input_tokens for row in mooncake],
                [row.output_tokens for row in mooncake],
                arrivals=[row.at_seconds for row in mooncake],
            )
        case TraceFormat.AGENTIC:
            rounds = [entry for session in load_agentic(path).rows for entry in session.rounds]
            inputs = [entry.input_tokens for entry in rounds]
            reused = sum(min(entry.prefix_tokens, entry.input_tokens) for entry in rounds)
            return _traced(
                path,
                inputs,
                [max(1, entry.output_tokens) for entry in rounds],
                arrivals=(),
                prefix_hit_rate=min(0.999, reused / max(1, sum(inputs))),
                new_inputs=[max(1, entry.input_tokens - entry.prefix_tokens) for entry in rounds],
            )


def _traced(
    path: Path,
    inputs: Sequence[int],
    outputs: Sequence[int],
    *,
    arrivals: Sequence[float],
    prefix_hit_rate: float = 0.0,
    new_inputs: Sequence[int] | None = None,
) -> Traffic:
    return Traffic(
        from_samples(inputs, outputs, prefix_hit_rate=prefix_hit_rate),
        prompts=empirical(inputs if new_inputs is None else new_inputs),
        outputs=empirical(outputs),
        peak_rps=peak_minute_rps(arrivals),
        description=f"{path.name}, {len(inputs):,} requests",
    )


def peak_minute_rps(arrivals_seconds: Sequence[float]) -> float | None:
    """99th percentile of the rates of whole minutes, nearest-rank; None without arrivals."""
    if not arrivals_seconds:
        return None
    start = min(arrivals_seconds)
    minutes = Counter(int((at - start) // 60) for at in arrivals_seconds)
    rates = [minutes[minute] / 60 for minute in range(max(minutes) + 1)]
    return nearest_rank(rates, 99)


def engine_from_names(device_name: str, model_name: str, tensor_parallel: int, t0_ms: float) -> EngineModel:
    """A roofline. Raises ValueError in one sentence for names that the tables do not hold."""
    device, shape = devices.by_name(device_name), shapes.by_name(model_name)
    cost = Roofline(shape, device, tensor_parallel, t0_ms * 1000)
    return EngineModel(
        cost,
        f"roofline estimate of {shape.name} on {tensor_parallel} × {device.name} ({device.basis})",
        GRAPH_BATCH if tensor_parallel < 4 else GRAPH_BATCH_TP4,
        device.default_chunk_tokens,
    )


def engine_from_calibration(path: Path) -> EngineModel:
    """The engine that a calibration document describes. Raises OSError, or CalibrationError in one sentence."""
    calibration = parse_calibration(path.read_bytes())
    errors = calibration.fit_errors
    words = f"calibration of {calibration.identity} (fit errors: median {errors.median_percent:g} %, max {errors.max_percent:g} %)"
    return EngineModel(calibration.cost, words, GRAPH_BATCH, None)


def engine_of_the_lab() -> EngineModel:
    """The batching lab's engine: 8 ms + 0.3 ms a sequence + 4 µs a prompt token, no memory limit."""
    return EngineModel(batching_lab(), "the batching lab's engine (8 ms + 0.3 ms a sequence)", GRAPH_BATCH, None)
