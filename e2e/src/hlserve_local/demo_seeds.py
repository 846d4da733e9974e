"""Both arms of the demo's cell in virtual time, at one seed or several."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from rich.console import Console
from rich.progress import track

from hlserve_bench.report.assemble import Timing, seed_result
from hlserve_bench.report.checks import Bounds
from hlserve_bench.report.model import ArmReport, Report
from hlserve_bench.traces.workload import draw_workload, load_sample
from hlserve_local.demo_arms import DemoArm, demo_arm
from hlserve_local.demo_cell import CLASS_BLIND, QUICKSTART, DemoCell
from hlserve_local.demo_report import DemoRun, figures, report
from hlserve_local.demo_virtual import run_virtual


@dataclass(frozen=True, slots=True)
class VirtualTask:
    """One arm at one seed: all that a worker process needs."""

    cell: DemoCell
    timing: Timing
    arm: DemoArm
    seed: int


def run_task(task: VirtualTask) -> ArmReport:
    """One arm's figures at one seed."""
    run = _run(task.cell, task.timing, task.seed)
    return figures(run, task.arm, run_virtual(task.arm.arm, run.workload, task.timing, task.arm.cost))


def run_tasks(tasks: Sequence[VirtualTask], jobs: int, console: Console, title: str) -> list[ArmReport]:
    """All tasks in order, `jobs` at a time."""
    if jobs == 1 or len(tasks) == 1:
        return [run_task(task) for task in track(tasks, title, console=console, disable=not console.is_terminal)]
    with ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn")) as pool:
        results = pool.map(run_task, tasks)
        return list(track(results, title, total=len(tasks), console=console, disable=not console.is_terminal))


def run_seeds(cell: DemoCell, timing: Timing, seeds: Sequence[int], jobs: int, console: Console) -> Report:
    """The report of the first seed, with the comparison at every seed in it."""
    arms = (demo_arm(CLASS_BLIND), demo_arm(QUICKSTART))
    tasks = [VirtualTask(cell, timing, arm, seed) for seed in seeds for arm in arms]
    results = run_tasks(tasks, jobs, console, "both arms at every seed")
    pairs = list(zip(results[::2], results[1::2], strict=True))
    digests = [_run(cell, timing, seed).workload.digest for seed in seeds]
    found = [
        seed_result(seed, digest, blind, ours)
        for seed, digest, (blind, ours) in zip(seeds, digests, pairs, strict=True)
    ]
    return report(_run(cell, timing, seeds[0]), arms[1], *pairs[0], Bounds(), found)


def _run(cell: DemoCell, timing: Timing, seed: int) -> DemoRun:
    workload = draw_workload(load_sample(), cell.load(timing), seed)
    return DemoRun(cell=cell, timing=timing, workload=workload, clock="virtual")
