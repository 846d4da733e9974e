"""The slot timeline of a lab run as a picture: who held which slot, and doing what."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from hlserve_capacity.lab.records import LabRun
from hlserve_capacity.units import US_PER_SECOND

DECODING, PREFILL, HELD, WAITING = "#2a78b8", "#e8a33d", "#c9cdd2", "#b03a48"
SUFFIXES = (".png", ".svg", ".pdf")
_SLOT_HEIGHT = 0.82


@dataclass(frozen=True, slots=True)
class Span:
    """One slot in one state, in seconds."""

    slot: int
    start_s: float
    length_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The spans of a run by state, and how many requests waited from when on."""

    prefill: tuple[Span, ...]
    """Admitted, until the first token."""
    decoding: tuple[Span, ...]
    held: tuple[Span, ...]
    """The reply has ended, the slot is still paid for."""
    waiting: tuple[tuple[float, int], ...]


def timeline(run: LabRun, until_s: float) -> Timeline:
    """The first `until_s` seconds of a run. A request that is unfinished at the end holds its slot until then."""
    end_us = min(run.end_us, round(until_s * US_PER_SECOND))
    prefill: list[Span] = []
    decoding: list[Span] = []
    held: list[Span] = []
    changes: list[tuple[int, int]] = []
    for record in run.records:
        changes.append((record.request.arrival_us, 1))
        if record.slot is None or record.admitted_us is None:
            continue
        changes.append((record.admitted_us, -1))
        first_us = end_us if record.first_token_us is None else record.first_token_us
        last_us = end_us if record.finished_us is None else record.finished_us
        free_us = end_us if record.released_us is None else record.released_us
        for spans, start_us, stop_us in (
            (prefill, record.admitted_us, first_us),
            (decoding, first_us, last_us),
            (held, last_us, free_us),
        ):
            start_us, stop_us = min(start_us, end_us), min(stop_us, end_us)
            if stop_us > start_us:
                spans.append(Span(record.slot, start_us / US_PER_SECOND, (stop_us - start_us) / US_PER_SECOND))
    return Timeline(tuple(prefill), tuple(decoding), tuple(held), tuple(_waiting(changes, end_us)))


def _waiting(changes: Sequence[tuple[int, int]], end_us: int) -> list[tuple[float, int]]:
    points: list[tuple[float, int]] = [(0.0, 0)]
    count = 0
    for at_us, change in sorted(changes):
        if at_us > end_us:
            break
        count += change
        points.append((at_us / US_PER_SECOND, count))
    points.append((end_us / US_PER_SECOND, count))
    return points


def draw(runs: Sequence[tuple[str, LabRun, int]], path: Path, *, until_s: float) -> None:
    """Draw one panel per (title, run, slots), on one time axis, into a PNG, SVG or PDF file.

    Raises ValueError for another suffix, OSError if the file cannot be written.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path.name}: a picture ends in {', '.join(SUFFIXES)}")
    shown_s = min(until_s, max(run.end_us for _, run, _ in runs) / US_PER_SECOND)
    heights = [height for _, _, slots in runs for height in (max(2.0, 0.17 * slots), 0.8)]
    figure = Figure(figsize=(12, sum(heights) + 0.6 * len(runs) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for index, (title, run, slots) in enumerate(runs):
        lines = timeline(run, shown_s)
        _draw_slots(axes[2 * index], title, lines, slots)
        _draw_waiting(axes[2 * index + 1], lines)
    axes[0].set_xlim(0, shown_s)
    axes[-1].set_xlabel("simulated time, s")
    figure.legend(
        handles=[
            Patch(color=DECODING, label="decoding"),
            Patch(color=PREFILL, label="admitted, in prefill"),
            Patch(color=HELD, label="finished, slot still held"),
            Patch(color=WAITING, alpha=0.35, label="requests waiting"),
        ],
        loc="outside upper center",
        ncols=4,
        frameon=False,
    )
    figure.savefig(path, dpi=130)


def _draw_slots(axes: Axes, title: str, lines: Timeline, slots: int) -> None:
    for spans, color in ((lines.held, HELD), (lines.decoding, DECODING), (lines.prefill, PREFILL)):
        axes.barh(
            [span.slot for span in spans],
            [span.length_s for span in spans],
            left=[span.start_s for span in spans],
            height=_SLOT_HEIGHT,
            color=color,
            edgecolor="white" if color == DECODING else color,
            linewidth=0.3 if color == DECODING else 0.6,
        )
    axes.set_ylim(slots - 0.5, -0.5)
    axes.set_ylabel("slot")
    axes.set_yticks(range(0, slots, max(1, slots // 8)))
    axes.set_title(title, loc="left", fontsize=10)
    _plain(axes)


def _draw_waiting(axes: Axes, lines: Timeline) -> None:
    times, counts = zip(*lines.waiting, strict=True)
    axes.fill_between(times, counts, step="post", color=WAITING, alpha=0.35, linewidth=0)
    axes.set_ylim(0, max(1, max(counts)) * 1.1)
    axes.set_ylabel("waiting")
    axes.locator_params(axis="y", nbins=3, integer=True)
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
