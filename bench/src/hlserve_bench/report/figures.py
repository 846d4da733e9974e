"""The report's plots as SVG that takes its colours from the page, so that one picture serves light and dark.

The arms differ in hue and in line style, so the plots read without colour as well (Okabe-Ito blue and vermilion).
"""

import io
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from hlserve_bench.report.model import ArmReport, ClassReport, Percentiles, Report

# Stand-ins that `_to_page_colours` turns into the page's own variables.
_INK, _GRID, _BLIND, _OURS, _SHADE = "#010203", "#010204", "#010205", "#010206", "#010207"
_VARIABLES = {_INK: "--ink", _GRID: "--grid", _BLIND: "--blind", _OURS: "--ours", _SHADE: "--shade"}
_STYLES: tuple[tuple[str, Literal["dashed", "solid"]], ...] = ((_BLIND, "dashed"), (_OURS, "solid"))

_RC: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
}


def latency_figure(report: Report, which: str) -> str:
    """CDFs of TTFT, TPOT and E2E of one class, both arms in each."""
    figures = [_figures(arm, which) for arm in (report.arms.class_blind, report.arms.hlserve)]
    names = [report.arms.class_blind.name, report.arms.hlserve.name]
    slo = (report.slo.ttft_ms, report.slo.tpot_ms, None) if which == "interactive" else (None, None, None)
    panels = (
        ("Time to first token", [f.ttft_ms for f in figures], slo[0]),
        ("Time per output token", [f.tpot_ms for f in figures], slo[1]),
        ("End to end", [f.e2e_ms for f in figures], slo[2]),
    )
    with rc_context(_RC):
        figure = Figure(figsize=(9.6, 2.9), layout="constrained")
        for axes, (title, curves, bound) in zip(_row(figure, 3), panels, strict=True):
            axes.set_title(title)
            _cdf(axes, curves, bound)
        _legend(figure, names)
        return _svg(figure, f"latency-{which}")


def throughput_figure(report: Report) -> str:
    """Output tokens a second over the run, a panel a class."""
    arms = (report.arms.class_blind, report.arms.hlserve)
    start = report.window.warmup_seconds
    end = start + report.window.measured_seconds
    with rc_context(_RC):
        figure = Figure(figsize=(9.6, 2.7), layout="constrained")
        panels = (("Agents, output tokens/s", "agent"), ("Chat, output tokens/s", "interactive"))
        for axes, (title, which) in zip(_row(figure, 2), panels, strict=True):
            axes.set_title(title)
            axes.axvspan(start, end, color=_SHADE, linewidth=0)
            for arm, (colour, dashes) in zip(arms, _STYLES, strict=True):
                values = arm.series.agent if which == "agent" else arm.series.interactive
                times = [(index + 0.5) * arm.series.bin_seconds for index in range(len(values))]
                axes.plot(times, values, color=colour, linestyle=dashes)
            axes.set_xlim(0, end)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("seconds since the start (shaded: measured)")
        _legend(figure, [arm.name for arm in arms])
        return _svg(figure, "throughput")


def _cdf(axes: Axes, curves: Iterable[Percentiles | None], bound_ms: float | None) -> None:
    edges: list[float] = []
    for curve, (colour, dashes) in zip(curves, _STYLES, strict=True):
        if curve is None:
            continue
        seconds = [max(value, 0.1) / 1000 for value in curve.quantiles]
        axes.plot(seconds, range(1, 101), color=colour, linestyle=dashes)
        edges += [seconds[0], seconds[-1]]
        if curve.lower_bounds:
            axes.annotate(
                "at least", (seconds[49], 50), xytext=(-6, 0), textcoords="offset points", fontsize=8.5, ha="right"
            )
    if bound_ms is not None:
        bound = bound_ms / 1000
        axes.axvline(bound, color=_INK, linewidth=1, linestyle="dotted")
        axes.annotate("SLO", (bound, 100), xytext=(4, -4), textcoords="offset points", fontsize=8.5, va="top")
        edges.append(bound)
    if edges:
        _scale(axes, min(edges) * 0.8, max(edges) * 1.25)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _seconds(value)))
    axes.set_ylim(0, 101)
    axes.set_ylabel("% of requests")


def _scale(axes: Axes, low: float, high: float) -> None:
    """Linear within a decade, where a logarithmic axis would have too few ticks or too many; else logarithmic."""
    if high / low < 10:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    else:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 200 else (1.0, 3.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(low, high)


def _legend(figure: Figure, names: Sequence[str]) -> None:
    """One legend for the whole figure, above it, where it hides no line."""
    lines = [
        Line2D([], [], color=colour, linestyle=dashes, label=name)
        for name, (colour, dashes) in zip(names, _STYLES, strict=True)
    ]
    figure.legend(handles=lines, loc="outside upper right", ncols=2, fontsize=9.5)


def _seconds(value: float) -> str:
    return f"{value * 1000:g} ms" if value < 0.0995 else f"{value:g} s"


def _row(figure: Figure, panels: int) -> list[Axes]:
    return [figure.add_subplot(1, panels, index + 1) for index in range(panels)]


def _figures(arm: ArmReport, which: str) -> ClassReport:
    return arm.classes.interactive if which == "interactive" else arm.classes.agent


def _svg(figure: Figure, name: str) -> str:
    """The figure as inline SVG: no metadata, ids of its own, page colours, scales with the page."""
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\swidth="[^"]*pt"|\sheight="[^"]*pt"', "", svg, count=2)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    return _to_page_colours(svg)


def _to_page_colours(svg: str) -> str:
    for stand_in, variable in _VARIABLES.items():
        svg = svg.replace(stand_in, f"var({variable})")
    return svg
