"""The tables of figures that both the page and the terminal show, as rows of text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hlserve_bench.router.candidates import DIRECT
from hlserve_bench.router.figures import ByRound, Estimate, Figures, estimate

NOT_MEASURED: Final = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of every candidate."""

    title: str
    reading: Callable[[Figures, str], ByRound]
    digits: int = 0
    spread: bool = False
    """The range over the rounds stands beside the median."""


@dataclass(frozen=True, slots=True)
class Table:
    """Some columns that belong together."""

    title: str
    columns: tuple[Column, ...]
    of: tuple[str, ...] = ()
    """Only these candidates."""


def _of(case: str, name: str) -> Callable[[Figures, str], ByRound]:
    return lambda figures, candidate: figures.values(candidate, case, name)


def _added(case: str, name: str) -> Callable[[Figures, str], ByRound]:
    return lambda figures, candidate: {} if candidate == DIRECT else figures.added(candidate, case, name)


TABLES: Final = (
    Table(
        "Replies: one core",
        (
            Column("requests/s, 1 connection", _of("reply-1", "finished_per_second")),
            Column("64", _of("reply-64", "finished_per_second"), spread=True),
            Column("256", _of("reply-256", "finished_per_second")),
            Column("CPU µs/request, 64", _of("reply-64", "cpu_us_per_request"), 1, spread=True),
            Column("1 MiB bodies/s", _of("body-1m", "finished_per_second")),
            Column("CPU µs each", _of("body-1m", "cpu_us_per_request")),
        ),
    ),
    Table(
        "Streams: CPU and memory",
        (
            Column("CPU µs/chunk, 64 × 20 ms", _of("stream-64", "cpu_us_per_chunk"), 1),
            Column("256 × 20 ms", _of("stream-256", "cpu_us_per_chunk"), 1, spread=True),
            Column("1,000 × 50 ms", _of("stream-1000", "cpu_us_per_chunk"), 1),
            Column("chunks/s delivered of 20,000", _of("stream-1000", "chunks_per_second")),
            Column("MiB at 1,000 streams", _of("stream-1000", "pss_mib"), 1),
            Column("KiB per stream", _of("stream-1000", "kib_per_stream"), 1, spread=True),
        ),
    ),
    Table(
        "Streams: delay in µs",
        (
            Column("added TTFT, p50", _added("ttft", "ttft_p50_us"), spread=True),
            Column("chunk p50, 256 × 20 ms", _of("stream-256", "delay_p50_us")),
            Column("p99, 64 × 20 ms", _of("stream-64", "delay_p99_us")),
            Column("p99, 256 × 20 ms", _of("stream-256", "delay_p99_us"), spread=True),
            Column("p99, 1,000 × 50 ms", _of("stream-1000", "delay_p99_us")),
            Column("chunks after all clients left", _of("stream-256", "chunks_after_leaving")),
        ),
    ),
    Table(
        "Workers",
        (
            Column("CPU µs/request, 64", _of("reply-64", "cpu_us_per_request"), 1, spread=True),
            Column("largest share of 64 connections", _of("spread", "largest_share"), 2, spread=True),
            Column("mean", _of("spread", "mean_share"), 2),
        ),
        of=("hlserve", "hlserve-1-free", "hlserve-2"),
    ),
)


def cell(found: Estimate | None, digits: int, *, spread: bool, rounds: int) -> str:
    """A figure with its range, and with its number of rounds where that is not all of them."""
    if found is None:
        return NOT_MEASURED
    text = f"{found.median:,.{digits}f}"
    if spread and found.rounds > 1:
        text = f"{text} ({found.low:,.{digits}f}–{found.high:,.{digits}f})"
    return text if found.rounds == rounds else f"{text}, {found.rounds} of {rounds}"


def lines(table: Table, figures: Figures, candidates: Sequence[str]) -> list[list[str]]:
    """The body of a table: candidates that have any of its figures."""
    body = []
    for name in candidates:
        cells = [
            cell(estimate(column.reading(figures, name)), column.digits, spread=column.spread, rounds=figures.rounds)
            for column in table.columns
        ]
        if any(text != NOT_MEASURED for text in cells):
            body.append([name, *cells])
    return body
