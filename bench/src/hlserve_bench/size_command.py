"""`hlserve size`: from an SLO and a traffic to batch, chunk and replicas."""

import json
from pathlib import Path
from random import Random

import click
from rich.console import Console

from hlserve_bench import size_report
from hlserve_bench.finite import FiniteRange
from hlserve_bench.size_inputs import (
    EngineModel,
    TraceFormat,
    Traffic,
    engine_from_calibration,
    engine_from_names,
    engine_of_the_lab,
    traffic_from_numbers,
    traffic_from_trace,
)
from hlserve_bench.traces.reading import TraceError
from hlserve_capacity import devices, shapes
from hlserve_capacity.batch_choice import BatchProblem
from hlserve_capacity.limits import TPOT_MARGIN
from hlserve_capacity.queue_check import QueueCheck
from hlserve_capacity.sizing import DEFAULT_UTILISATION, Sizing, size_human_less, size_interactive
from hlserve_capacity.verdicts import Infeasible, PrefillStyle

EXIT_INFEASIBLE = 3
POSITIVE = FiniteRange(min=0, min_open=True)
SHARE = FiniteRange(min=0, max=1, max_open=True)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _print_names(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    click.echo("devices (hardware.accelerator, --device):")
    for name in devices.names():
        device = devices.by_name(name)
        click.echo(f"  {name:<16}{device.memory_bytes / 1e9:.0f} GB, {device.basis}")
    click.echo("model shapes (model.shape.name, --model):")
    for name in shapes.names():
        shape = shapes.by_name(name)
        click.echo(
            f"  {name:<16}{shape.parameters / 1e9:.1f}e9 parameters, {shape.kv_bytes_per_token / 1024:.0f} KiB of KV a token"
        )
    ctx.exit()


@click.command()
@click.option("--ttft-ms", type=POSITIVE, help="SLO: time to first token.")
@click.option("--tpot-ms", type=POSITIVE, help="SLO: time per output token.")
@click.option(
    "--percentile", type=click.Choice(["50", "90", "95", "99"]), default="95", show_default=True, help="Of the SLO."
)
@click.option("--human-less", is_flag=True, help="A pool without latency targets: memory bounds the batch.")
@click.option("--input-mean", type=FiniteRange(min=0), help="Mean prompt, tokens.")
@click.option("--input-p95", type=FiniteRange(min=0), help="P95 prompt, tokens; alone, the mean is a third of it.")
@click.option("--output-mean", type=FiniteRange(min=1), help="Mean reply, tokens.")
@click.option("--output-p95", type=FiniteRange(min=1), help="P95 reply, tokens; alone, the mean is a third of it.")
@click.option("--prefix-hit-rate", type=SHARE, default=0.0, help="Share of prompt tokens that need no prefill.")
@click.option("--trace", type=FILE, help="Take lengths and peak rate from a trace file instead.")
@click.option(
    "--trace-format", type=click.Choice([entry.value for entry in TraceFormat]), default="azure", show_default=True
)
@click.option("--peak-rps", type=POSITIVE, help="Peak requests a second; default: P99 minute of the trace.")
@click.option("--device", help="GPU by name; --list prints the known ones.")
@click.option("--model", help="Model shape by name; --list prints the known ones.")
@click.option("--tensor-parallel", type=int, default=1, show_default=True, help="GPUs a replica.")
@click.option("--t0-ms", type=FiniteRange(min=0), default=2.5, show_default=True, help="Host time a step.")
@click.option("--calibration", type=FILE, help="calibration.json of the real engine instead of --device and --model.")
@click.option("--lab", "use_lab", is_flag=True, help="The batching lab's engine instead of --device and --model.")
@click.option(
    "--max-batch", type=click.IntRange(min=1), help="Largest batch of the engine; default 256, 512 from TP 4 on."
)
@click.option("--batch", type=click.IntRange(min=1), help="Judge this batch instead of the largest that fits.")
@click.option("--chunk", type=click.IntRange(min=1), help="Judge this chunk size instead of the largest that fits.")
@click.option("--whole-prompts", is_flag=True, help="The engine does not chunk: each prompt joins in one step.")
@click.option("--margin", type=SHARE, default=TPOT_MARGIN, show_default=True, help="Share of TPOT kept free.")
@click.option(
    "--utilisation", type=POSITIVE, default=DEFAULT_UTILISATION, show_default=True, help="Of a replica at peak."
)
@click.option("--no-queue-check", is_flag=True, help="Skip the simulated queue: decode capacity alone oversells.")
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs a rate in the queue check."
)
@click.option("--seconds", type=POSITIVE, default=300.0, show_default=True, help="Schedule of each run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_print_names, help="Print known names."
)
def size(
    ttft_ms: float | None,
    tpot_ms: float | None,
    percentile: str,
    human_less: bool,
    input_mean: float | None,
    input_p95: float | None,
    output_mean: float | None,
    output_p95: float | None,
    prefix_hit_rate: float,
    trace: Path | None,
    trace_format: str,
    peak_rps: float | None,
    device: str | None,
    model: str | None,
    tensor_parallel: int,
    t0_ms: float,
    calibration: Path | None,
    use_lab: bool,
    max_batch: int | None,
    batch: int | None,
    chunk: int | None,
    whole_prompts: bool,
    margin: float,
    utilisation: float,
    no_queue_check: bool,
    seeds: int,
    seconds: float,
    as_json: bool,
) -> None:
    """Size a pool from its SLO and traffic: batch, chunk, capacity and replicas, and what binds each.

    Exit code 3 and one sentence if the SLO is out of reach, whatever the number of replicas.

    \b
    hlserve size --device A100-80G --model llama-3.1-8b --ttft-ms 1000 --tpot-ms 20 \\
        --input-p95 4000 --output-p95 800 --peak-rps 6
    hlserve size --human-less --device H200 --model qwen2.5-32b --input-p95 32000 --output-p95 800 --peak-rps 1
    hlserve size --lab --whole-prompts --ttft-ms 1000 --tpot-ms 16 --input-mean 200 --output-mean 200 --peak-rps 10
    """
    if human_less and (ttft_ms or tpot_ms):
        raise click.UsageError("a HumanLess pool has no latency targets: leave out --ttft-ms and --tpot-ms.")
    if not human_less and not (ttft_ms or tpot_ms):
        raise click.UsageError("give --ttft-ms or --tpot-ms, or --human-less for a pool without latency targets.")
    try:
        engine = _engine(device, model, tensor_parallel, t0_ms, calibration, use_lab)
        if trace is not None:
            traffic = traffic_from_trace(trace, TraceFormat(trace_format))
        else:
            traffic = traffic_from_numbers(
                input_mean=input_mean,
                input_p95=input_p95,
                output_mean=output_mean,
                output_p95=output_p95,
                prefix_hit_rate=prefix_hit_rate,
            )
        peak = _peak(peak_rps, traffic)
        largest = max_batch or engine.max_batch
        if human_less:
            answer = size_human_less(
                engine.cost, traffic.lengths, max_batch=largest, peak_rps=peak, utilisation=utilisation
            )
        else:
            problem = BatchProblem(
                cost=engine.cost,
                lengths=traffic.lengths,
                ttft_ms=ttft_ms,
                tpot_ms=tpot_ms,
                percentile=int(percentile),
                max_batch=largest,
                default_chunk_tokens=engine.default_chunk_tokens,
                fixed_batch=batch,
                fixed_chunk=chunk,
                tpot_margin=margin,
                prefill=PrefillStyle.WHOLE_PROMPTS if whole_prompts else PrefillStyle.CHUNKS,
            )
            check = QueueCheck(
                prompts=traffic.prompts,
                outputs=traffic.outputs,
                random_for_seed=Random,
                seeds=tuple(range(seeds)),
                seconds=seconds,
            )
            answer = size_interactive(
                problem, peak_rps=peak, queue_check=None if no_queue_check else check, utilisation=utilisation
            )
    except (ValueError, TraceError, OSError) as error:
        raise click.ClickException(f"{str(error).rstrip('.')}.") from error
    _print(answer, traffic, engine, _slo_words(ttft_ms, tpot_ms, percentile), as_json)


def _engine(
    device: str | None, model: str | None, tensor_parallel: int, t0_ms: float, calibration: Path | None, use_lab: bool
) -> EngineModel:
    if sum((device is not None or model is not None, calibration is not None, use_lab)) != 1:
        raise click.UsageError("name one engine: --device with --model, or --calibration, or --lab.")
    if calibration is not None:
        return engine_from_calibration(calibration)
    if use_lab:
        return engine_of_the_lab()
    if device is None or model is None:
        raise click.UsageError("--device and --model go together; --list prints the known names.")
    return engine_from_names(device, model, tensor_parallel, t0_ms)


def _peak(peak_rps: float | None, traffic: Traffic) -> float:
    peak = peak_rps if peak_rps is not None else traffic.peak_rps
    if peak is None:
        raise click.UsageError(
            "the peak rate is missing: give --peak-rps (sessions have no arrival rate of their own)."
        )
    return peak


def _slo_words(ttft_ms: float | None, tpot_ms: float | None, percentile: str) -> str:
    parts = [f"TTFT ≤ {ttft_ms:g} ms" if ttft_ms else "", f"TPOT ≤ {tpot_ms:g} ms" if tpot_ms else ""]
    said = ", ".join(part for part in parts if part)
    return f"{said} at p{percentile}" if said else "none (HumanLess)"


def _print(answer: Sizing | Infeasible, traffic: Traffic, engine: EngineModel, slo: str, as_json: bool) -> None:
    if isinstance(answer, Infeasible):
        if as_json:
            click.echo(json.dumps(size_report.infeasible_as_json(answer, engine), indent=2))
        click.echo(f"Infeasible: {answer.message}.", err=True)
        raise SystemExit(EXIT_INFEASIBLE)
    if as_json:
        click.echo(json.dumps(size_report.as_json(answer, traffic, engine), indent=2))
        return
    Console().print(size_report.table(answer, traffic, engine, slo))
