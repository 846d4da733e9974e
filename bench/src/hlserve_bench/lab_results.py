"""Results of `hlserve lab` over seeds, as rows for the terminal and for JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from hlserve_capacity.lab.metrics import goodput_share, summarise
from hlserve_capacity.lab.records import LabRun


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over seeds and its range; None: nothing was observed in any run."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRow:
    """One scheduler on one load, over all seeds."""

    scheduler: str
    load: str
    max_batch: int
    budget_tokens: int | None
    seeds: int
    tokens_per_second: Spread
    useful_share: Spread
    goodput_share: Spread
    ttft_p50_ms: Spread | None
    ttft_p95_ms: Spread | None
    tpot_p95_ms: Spread | None
    itl_p99_ms: Spread | None
    itl_max_ms: Spread | None
    stall_count: Spread
    duration_ms: Spread
    steps: Spread
    arrivals: Spread
    finished: Spread
    max_waiting: Spread


def row(
    *,
    scheduler: str,
    load: str,
    max_batch: int,
    budget_tokens: int | None,
    runs: Sequence[LabRun],
    ttft_ms: float,
    tpot_ms: float,
    stall_ms: float,
) -> LabRow:
    """Collect the runs of one cell."""
    summaries = [summarise(run, stall_ms=stall_ms) for run in runs]
    goodputs = [goodput_share(run, ttft_ms=ttft_ms, tpot_ms=tpot_ms) for run in runs]
    return LabRow(
        scheduler=scheduler,
        load=load,
        max_batch=max_batch,
        budget_tokens=budget_tokens,
        seeds=len(runs),
        tokens_per_second=_spread([summary.tokens_per_second for summary in summaries]),
        useful_share=_spread([summary.useful_share for summary in summaries]),
        goodput_share=_spread(goodputs),
        ttft_p50_ms=_observed([summary.ttft.p50_ms for summary in summaries]),
        ttft_p95_ms=_observed([summary.ttft.p95_ms for summary in summaries]),
        tpot_p95_ms=_observed([summary.tpot.p95_ms for summary in summaries]),
        itl_p99_ms=_observed([summary.itl.p99_ms for summary in summaries]),
        itl_max_ms=_observed([summary.itl.max_ms for summary in summaries]),
        stall_count=_spread([summary.stall_count for summary in summaries]),
        duration_ms=_spread([summary.duration_ms for summary in summaries]),
        steps=_spread([summary.steps for summary in summaries]),
        arrivals=_spread([summary.arrivals for summary in summaries]),
        finished=_spread([summary.finished for summary in summaries]),
        max_waiting=_spread([summary.max_waiting for summary in summaries]),
    )


def table(rows: Sequence[LabRow], *, ttft_ms: float, tpot_ms: float, stall_ms: float) -> Table:
    """The rows as a table of means over seeds, narrow enough for 80 columns; ranges are in the JSON."""
    result = Table(
        title="Batching lab (simulated)",
        box=SIMPLE_HEAD,
        padding=0,
        collapse_padding=True,
        pad_edge=False,
        caption_justify="left",
        caption=(
            f"Means over seeds; latencies in ms, long ones in s (nearest-rank percentiles). Goodput: share of all arrivals with "
            f"TTFT ≤ {ttft_ms:g} ms and TPOT ≤ {tpot_ms:g} ms. Stalls: token gaps above {stall_ms:g} ms a run."
        ),
    )
    result.add_column("scheduler", no_wrap=True)
    result.add_column("load", no_wrap=True)
    for heading in (
        "B",
        "tok/s",
        "useful\n%",
        "good-\nput %",
        "TTFT\np50",
        "TTFT\np95",
        "TPOT\np95",
        "ITL\np99",
        "ITL\nmax",
        "stalls",
    ):
        result.add_column(heading, justify="right", no_wrap=True)
    for entry in rows:
        budget = f" {entry.budget_tokens}" if entry.budget_tokens else ""
        result.add_row(
            f"{entry.scheduler}{budget}",
            entry.load,
            str(entry.max_batch),
            f"{entry.tokens_per_second.mean:.0f}",
            f"{100 * entry.useful_share.mean:.1f}",
            f"{100 * entry.goodput_share.mean:.1f}",
            _latency(entry.ttft_p50_ms),
            _latency(entry.ttft_p95_ms),
            _latency(entry.tpot_p95_ms),
            _latency(entry.itl_p99_ms),
            _latency(entry.itl_max_ms),
            f"{entry.stall_count.mean:.0f}",
        )
    return result


def as_json(rows: Sequence[LabRow]) -> list[dict[str, Any]]:
    """The rows as plain values."""
    return [asdict(entry) for entry in rows]


def _spread(values: Sequence[float]) -> Spread:
    return Spread(fmean(values), min(values), max(values))


def _observed(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return _spread(known) if known else None


def _latency(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    if spread.mean >= 1000:
        seconds = spread.mean / 1000
        return f"{seconds:.1f}s" if seconds < 100 else f"{seconds:.0f}s"
    return f"{spread.mean:.1f}"
