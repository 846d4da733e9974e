"""`hlserve demo --virtual --variants`: runs every arm of the benchmark page at every seed and writes the page."""

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console

from hlserve_bench.report.assemble import Timing
from hlserve_bench.report.model import Manifest
from hlserve_capacity.virtual.arms import PoolConfig
from hlserve_local.demo_arms import DemoArm, demo_arm
from hlserve_local.demo_cell import CLASS_BLIND, QUICKSTART, DemoCell
from hlserve_local.demo_figure import variants_figure
from hlserve_local.demo_losses import LOSS_CELLS
from hlserve_local.demo_page import LossResult, PageContent, render_page
from hlserve_local.demo_search import Searched, search_blind, search_capped, search_shedding
from hlserve_local.demo_seeds import VirtualTask, run_tasks
from hlserve_local.demo_table import Row, seed_figures
from hlserve_local.demo_variants import causes, others

PAGE = "README.md"
RESULTS = "results.json"
FIGURE = "variants.svg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One arm to run."""

    key: str
    title: str
    cell: DemoCell
    arm: DemoArm
    searched: str | None = None


def write_variants(
    out: Path, timing: Timing, seeds: Sequence[int], jobs: int, manifest: Manifest, console: Console
) -> None:
    """Search, run and write `README.md`, `results.json` and `variants.svg` into `out`."""
    cell, blind, ours = DemoCell(), demo_arm(CLASS_BLIND), demo_arm(QUICKSTART)
    console.print("searching the settings of the opponents, on seeds of their own …")
    shed, capped = search_shedding(cell, blind), search_capped(cell, blind)
    stronger = [
        _found("shedding", "class-blind that sheds after 0.9 s", cell, shed),
        _found("capped", "class-blind with agents capped for chat", cell, capped),
    ]
    steps = [Entry(key=item.key, title=item.title, cell=cell, arm=item.arm) for item in causes(blind, ours)]
    mixtures = [Entry(key=item.key, title=item.title, cell=cell, arm=item.arm) for item in others(blind, ours)]
    with ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn")) as pool:
        losses = list(pool.map(_loss_entries, range(len(LOSS_CELLS))))
    entries = [
        Entry(key="class_blind", title="class-blind", cell=cell, arm=blind),
        Entry(key="hlserve", title="HlServe", cell=cell, arm=ours),
        *stronger,
        *steps,
        *mixtures,
        *(entry for triple in losses for entry in triple),
    ]
    rows = _run(entries, timing, seeds, jobs, console)
    content = PageContent(
        rows={key: row for key, row in rows.items() if not key.startswith("loss_")},
        groups={
            "blind": tuple(entry.key for entry in stronger),
            "causes": tuple(entry.key for entry in steps),
            "other": tuple(entry.key for entry in mixtures),
        },
        losses=[
            LossResult(spec.title, *(rows[entry.key] for entry in triple))
            for spec, triple in zip(LOSS_CELLS, losses, strict=True)
        ],
        timing=timing,
        seeds=seeds,
        manifest=manifest,
    )
    out.mkdir(parents=True, exist_ok=True)
    (out / PAGE).write_text(render_page(content), encoding="utf-8")
    (out / FIGURE).write_text(variants_figure(content), encoding="utf-8")
    results = {
        "basis": "simulated",
        "manifest": manifest.model_dump(),
        "rows": {key: asdict(row) for key, row in rows.items()},
    }
    (out / RESULTS).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    console.print(f"[bold]{out / PAGE}[/] (the page), [bold]{out / RESULTS}[/] (every seed)")


def _found(key: str, title: str, cell: DemoCell, searched: Searched) -> Entry:
    own = cell if searched.sessions is None else replace(cell, agent_sessions=searched.sessions)
    return Entry(key=key, title=title, cell=own, arm=searched.arm, searched=searched.setting)


def _loss_entries(index: int) -> tuple[Entry, Entry, Entry]:
    """Class-blind, HlServe and shedding class-blind of one cell, in the order that LossResult takes them."""
    spec = LOSS_CELLS[index]
    # On the demo's own hardware and SLO the demo's class-blind flags hold: a little more generous than the search would be.
    blind = Searched(spec.blind(), "the demo's own") if spec.is_demo_hardware else search_blind(spec.cell, spec.blind())
    return (
        _found(f"loss_{spec.key}_class_blind", "class-blind", spec.cell, blind),
        Entry(key=f"loss_{spec.key}_hlserve", title="HlServe", cell=spec.cell, arm=spec.ours()),
        _found(f"loss_{spec.key}_shedding", "class-blind that sheds", spec.cell, search_shedding(spec.cell, blind.arm)),
    )


def _run(entries: Sequence[Entry], timing: Timing, seeds: Sequence[int], jobs: int, console: Console) -> dict[str, Row]:
    tasks = [VirtualTask(entry.cell, timing, entry.arm, seed) for entry in entries for seed in seeds]
    results = run_tasks(tasks, jobs, console, "every arm at every seed")
    rows = {}
    for position, entry in enumerate(entries):
        reports = results[position * len(seeds) : (position + 1) * len(seeds)]
        rows[entry.key] = Row(
            key=entry.key,
            title=entry.title,
            searched=entry.searched,
            flags={pool.name: _settings(pool) for pool in entry.arm.arm.pools},
            seeds=tuple(seed_figures(seed, report) for seed, report in zip(seeds, reports, strict=True)),
        )
    return rows


def _settings(pool: PoolConfig) -> str:
    engine = pool.engine
    chunk = "greedy" if engine.throughput_mode else f"chunk {engine.chunked_prefill_size}"
    admission = ", KV-aware admission" if engine.kv_aware_admission else ""
    return f"{pool.replicas} × max-running {engine.max_running_requests}, {chunk}, {engine.schedule_policy.value}{admission}"
