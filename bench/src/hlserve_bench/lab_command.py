"""`hlserve lab`: run batching schedulers on a load and compare them."""

import json
from pathlib import Path

import click
from rich.console import Console

from hlserve_bench import lab_results
from hlserve_bench.finite import FiniteRange
from hlserve_bench.lab_loads import (
    ClosedLoad,
    GoldenLoad,
    Load,
    OpenLoad,
    Scheduler,
    batching_of,
    parse_burst,
    parse_length,
    play,
)
from hlserve_capacity.lab.batching import Chunked
from hlserve_capacity.lab.golden import GOLDEN_MAX_BATCH, GoldenRun
from hlserve_capacity.lab.metrics import DEFAULT_STALL_MS
from hlserve_capacity.lab.records import LabRun
from hlserve_capacity.lab.workload import Burst, LengthDraw
from hlserve_capacity.linear import LinearCost

DEFAULT_RATE = 4.0
DEFAULT_SEEDS = 20
PLOT_SECONDS = 30.0


def _length(ctx: click.Context, param: click.Parameter, value: str) -> LengthDraw:
    try:
        return parse_length(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def _burst(ctx: click.Context, param: click.Parameter, value: str | None) -> Burst | None:
    try:
        return None if value is None else parse_burst(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


POSITIVE = FiniteRange(min=0, min_open=True)


@click.command()
@click.argument("schedulers", nargs=-1, type=click.Choice([scheduler.value for scheduler in Scheduler]))
@click.option("--rate", "rates", type=POSITIVE, multiple=True, help="Arrivals a second; repeat to compare. Default 4.")
@click.option(
    "--clients", type=click.IntRange(min=1), multiple=True, help="Closed loop instead: clients that wait; repeat."
)
@click.option("--think-ms", type=FiniteRange(min=0), default=0.0, help="Pause of a closed-loop client.")
@click.option("--golden", type=click.Choice([run.value for run in GoldenRun]), help="A load without random numbers.")
@click.option("--seconds", type=POSITIVE, default=60.0, show_default=True, help="Length of the schedule.")
@click.option("--cut", is_flag=True, help="Stop when the schedule ends; unfinished requests count as missed.")
@click.option("--seeds", type=click.IntRange(1, 1000), default=DEFAULT_SEEDS, show_default=True, help="Runs per row.")
@click.option("--first-seed", type=int, default=0, show_default=True, help="Seed of the first run.")
@click.option(
    "--prompts",
    callback=_length,
    default="200-200",
    show_default=True,
    help="200, 50-350, exp:200, lognormal:150,1500.",
)
@click.option("--outputs", callback=_length, default="exp:200", show_default=True, help="Same forms as --prompts.")
@click.option(
    "--burst", callback=_burst, metavar="START,END,FACTOR", help="More arrivals for a while, such as 20,30,2.5."
)
@click.option("--batch", "batches", type=click.IntRange(min=1), multiple=True, help="Slots; repeat. Default 16.")
@click.option(
    "--budget", type=click.IntRange(min=1), default=512, show_default=True, help="Prompt tokens a step, chunked."
)
@click.option("--ttft-ms", type=POSITIVE, default=1000.0, show_default=True, help="Goodput's limit of TTFT.")
@click.option("--tpot-ms", type=POSITIVE, default=16.0, show_default=True, help="Goodput's limit of TPOT.")
@click.option(
    "--stall-ms", type=POSITIVE, default=DEFAULT_STALL_MS, show_default=True, help="A gap above it is a stall."
)
@click.option("--step-ms", type=POSITIVE, default=8.0, show_default=True, help="Fixed part of a step.")
@click.option(
    "--sequence-ms",
    type=FiniteRange(min=0),
    default=0.3,
    show_default=True,
    help="Part per sequence in the batch.",
)
@click.option(
    "--prompt-token-us", type=FiniteRange(min=0), default=4.0, show_default=True, help="Part per prefilled token."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the slot timeline (PNG, SVG, PDF), first seed.",
)
@click.option("--plot-seconds", type=POSITIVE, default=PLOT_SECONDS, show_default=True, help="Seconds to draw.")
def lab(
    schedulers: tuple[str, ...],
    rates: tuple[float, ...],
    clients: tuple[int, ...],
    think_ms: float,
    golden: str | None,
    seconds: float,
    cut: bool,
    seeds: int,
    first_seed: int,
    prompts: LengthDraw,
    outputs: LengthDraw,
    burst: Burst | None,
    batches: tuple[int, ...],
    budget: int,
    ttft_ms: float,
    tpot_ms: float,
    stall_ms: float,
    step_ms: float,
    sequence_ms: float,
    prompt_token_us: float,
    as_json: bool,
    plot: Path | None,
    plot_seconds: float,
) -> None:
    """Run static, continuous or chunked batching on a load and compare them, in simulated time.

    SCHEDULERS: any of static, continuous, chunked; static and continuous if none is named.

    Each step of the simulated engine takes --step-ms, plus --sequence-ms for each sequence, plus --prompt-token-us for each
    prompt token. The defaults are whole microseconds, so results are exact.

    \b
    hlserve lab static continuous --rate 4
    hlserve lab continuous --rate 2 --rate 6 --rate 12 --batch 16
    hlserve lab continuous chunked --golden g3 --plot stall.png
    """
    if sum((bool(rates), bool(clients), golden is not None)) > 1:
        raise click.UsageError("--rate, --clients and --golden are three kinds of load: use one of them.")
    if burst is not None and (clients or golden):
        raise click.UsageError("--burst needs an open loop: use it with --rate.")
    chosen = [Scheduler(name) for name in schedulers] or [Scheduler.STATIC, Scheduler.CONTINUOUS]
    loads: list[Load]
    if golden is not None:
        loads, seeds = [GoldenLoad(GoldenRun(golden))], 1
    elif clients:
        loads = [
            ClosedLoad(clients=number, seconds=seconds, prompts=prompts, outputs=outputs, think_ms=think_ms)
            for number in clients
        ]
    else:
        loads = [
            OpenLoad(
                rate_per_second=rate, seconds=seconds, prompts=prompts, outputs=outputs, burst=burst, drain=not cut
            )
            for rate in rates or (DEFAULT_RATE,)
        ]
    cost = LinearCost(
        t0_us=_whole(1000 * step_ms), sequence_us=_whole(1000 * sequence_ms), prefill_token_us=_whole(prompt_token_us)
    )
    rows: list[lab_results.LabRow] = []
    pictures: list[tuple[str, LabRun, int]] = []
    for load in loads:
        for max_batch in batches or (GOLDEN_MAX_BATCH,):
            for scheduler in chosen:
                batching = batching_of(scheduler, max_batch, budget)
                try:
                    runs = [play(load, batching, cost, first_seed + index) for index in range(seeds)]
                except ValueError as error:
                    raise click.ClickException(f"{error}.") from error
                budget_tokens = batching.budget_tokens if isinstance(batching, Chunked) else None
                rows.append(
                    lab_results.row(
                        scheduler=scheduler.value,
                        load=load.label,
                        max_batch=max_batch,
                        budget_tokens=budget_tokens,
                        runs=runs,
                        ttft_ms=ttft_ms,
                        tpot_ms=tpot_ms,
                        stall_ms=stall_ms,
                    )
                )
                budgeted = f", budget {budget_tokens}" if budget_tokens else ""
                pictures.append((f"{scheduler.value}{budgeted}: {load.label}, {max_batch} slots", runs[0], max_batch))
    if plot is not None:
        _draw(pictures, plot, plot_seconds)
    if as_json:
        click.echo(json.dumps({"basis": "simulated", "rows": lab_results.as_json(rows)}, indent=2))
        return
    console = Console()
    console.print(lab_results.table(rows, ttft_ms=ttft_ms, tpot_ms=tpot_ms, stall_ms=stall_ms))
    if plot is not None:
        console.print(f"Slot timeline of the first seed: {plot}")


def _whole(microseconds: float) -> float:
    """Whole microseconds stay integers, so that simulated times are exact."""
    return round(microseconds) if abs(microseconds - round(microseconds)) < 1e-9 else microseconds


def _draw(pictures: list[tuple[str, LabRun, int]], path: Path, seconds: float) -> None:
    # matplotlib takes longer to import than most runs take to simulate.
    from hlserve_bench import lab_plot

    try:
        lab_plot.draw(pictures, path, until_s=seconds)
    except (ValueError, OSError) as error:
        raise click.ClickException(f"The picture cannot be drawn: {error}.") from error
