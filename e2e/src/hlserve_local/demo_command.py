"""`hlserve demo`: class-blind against HlServe on the same simulated GPUs and the same load, live or in virtual time."""

import asyncio
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from hlserve_bench.finite import FiniteRange
from hlserve_bench.records import write_records
from hlserve_bench.report.assemble import Timing
from hlserve_bench.report.checks import Bounds
from hlserve_bench.report.model import Report
from hlserve_bench.report.terminal import print_report
from hlserve_bench.traces.reading import TraceError
from hlserve_bench.traces.workload import draw_workload, load_sample
from hlserve_local.demo_arms import NAMES, DemoArm
from hlserve_local.demo_benchmark import write_variants
from hlserve_local.demo_cell import (
    CLASS_BLIND,
    DEFAULT_SEED,
    LIVE_TIMING,
    QUICKSTART,
    VIRTUAL_TIMING,
    DemoCell,
    ExamplesMissingError,
    find_examples,
)
from hlserve_local.demo_live import LoadFailedError, run_live
from hlserve_local.demo_report import DemoRun, failures, figures, report, write_report
from hlserve_local.demo_seeds import run_seeds
from hlserve_local.demo_view import ArmView
from hlserve_local.processes import StartError

EXIT_FAILED: Final = 1
DEFAULT_OUT = Path("out/demo")


@click.command()
@click.option(
    "--virtual", is_flag=True, help="Virtual time: the same arms without HTTP, in seconds instead of minutes."
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="How many seeds, counted up from --seed. Virtual only.",
)
@click.option("--seed", type=int, default=DEFAULT_SEED, show_default=True, help="Seed of the load.")
@click.option(
    "--variants",
    is_flag=True,
    help="Also every variant, each cause alone, and the cells where HlServe loses. Virtual only.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_OUT,
    show_default=True,
    help="Folder of the report.",
)
@click.option(
    "--warmup-seconds",
    type=FiniteRange(min=0),
    default=None,
    help="Before the measured window. [default: 30, virtual 120]",
)
@click.option(
    "--window-seconds",
    type=FiniteRange(min=1),
    default=None,
    help="The measured window. [default: 60, virtual 300]",
)
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="Virtual runs at a time.")
def demo(
    virtual: bool,
    seeds: int,
    seed: int,
    variants: bool,
    out: Path,
    warmup_seconds: float | None,
    window_seconds: float | None,
    jobs: int,
) -> None:
    """Show what two pools buy: chat and agent traffic through one shared pool, then through a pool for each.

    Both arms have the same four simulated GPUs and the same load: real OpenAI-SDK clients replay public traces through the real
    router. Writes report.json, report.html and a record of each request, and fails if the report does not show what it should.
    """
    if not virtual and (seeds > 1 or variants):
        raise click.UsageError("--seeds and --variants need --virtual: in real time they would take hours.")
    console = Console()
    usual = VIRTUAL_TIMING if virtual else LIVE_TIMING
    timing = Timing(
        warmup_seconds=usual.warmup_seconds if warmup_seconds is None else warmup_seconds,
        measured_seconds=usual.measured_seconds if window_seconds is None else window_seconds,
        drain_seconds=usual.drain_seconds,
    )
    cell = DemoCell()
    try:
        if virtual:
            result = run_seeds(cell, timing, range(seed, seed + seeds), jobs, console)
        else:
            out.mkdir(parents=True, exist_ok=True)
            result = asyncio.run(_live(cell, timing, seed, out, console))
        _show(result, out, console)
        if variants:
            write_variants(out, timing, range(seed, seed + seeds), jobs, result.manifest, console)
    except (ExamplesMissingError, TraceError, StartError, LoadFailedError, ValueError) as failure:
        raise click.ClickException(str(failure)) from failure
    except TimeoutError as failure:
        raise click.ClickException("The load did not end in time: this machine is too busy; try again.") from failure
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    if sentences := failures(result):
        raise click.ClickException("The demo does not show what it should. " + " ".join(sentences))


async def _live(cell: DemoCell, timing: Timing, seed: int, out: Path, console: Console) -> Report:
    examples = find_examples()
    workload = draw_workload(load_sample(), cell.load(timing), seed)
    run = DemoRun(cell=cell, timing=timing, workload=workload, clock="real")
    arms: list[DemoArm] = []
    results = []
    with ArmView(console) as view:
        for folder in (CLASS_BLIND, QUICKSTART):
            on_progress = view.start(NAMES[folder], timing.load_seconds + timing.drain_seconds)
            arm, records = await run_live(examples / folder, workload.spec, timing, seed, on_progress)
            arms.append(arm)
            results.append(figures(run, arm, records))
            write_records(out / f"records-{folder}.jsonl", records)
    return report(run, arms[1], results[0], results[1], Bounds())


def _show(result: Report, out: Path, console: Console) -> None:
    json_path, html_path = write_report(result, out)
    print_report(result, console)
    console.print(f"[bold]{html_path}[/] (the page), [bold]{json_path}[/] (the figures)")
