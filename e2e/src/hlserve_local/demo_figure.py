"""The benchmark page's picture: chat goodput against agents' output, a mark an arm."""

import io

from matplotlib import rc_context
from matplotlib.figure import Figure

from hlserve_local.demo_page import PageContent
from hlserve_local.demo_table import Row

_RC = {
    "svg.fonttype": "path",
    "svg.hashsalt": "variants",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_MIDDLE = 0.5
_LABELS_HIGH = 20
"""Labels that fit above each other."""
_INK, _GRID, _BLUE, _ORANGE = "#1c2127", "#d9dee3", "#0067a8", "#c2500a"


def variants_figure(content: PageContent) -> str:
    """An SVG on white, since a page of Markdown cannot lend it colours."""
    with rc_context(_RC):  # type: ignore[arg-type]
        figure = Figure(figsize=(8.4, 4.6), layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        axes.grid(color=_GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        named = {"class_blind": _ORANGE, "hlserve": _BLUE}
        others = [row for key, row in content.rows.items() if key not in named and key != "cause_lpm"]
        axes.scatter(*_points(others), s=34, color=_INK, marker="o", alpha=0.75, linewidths=0)
        for key, colour in named.items():
            marker = "D" if key == "hlserve" else "s"
            axes.scatter(*_points([content.rows[key]]), s=90, color=colour, marker=marker, linewidths=0)
        rows = [row for key, row in content.rows.items() if key != "cause_lpm"]
        top = max(row.agent_output for row in rows)
        line = top / _LABELS_HIGH
        for column in (
            [row for row in rows if row.chat_goodput_share < _MIDDLE],
            [row for row in rows if row.chat_goodput_share >= _MIDDLE],
        ):
            for row, height in _spread(column, line):
                top = max(top, height)
                x, y = row.chat_goodput_share, row.agent_output
                axes.annotate(
                    row.title,
                    (x, y),
                    xytext=(max(other.chat_goodput_share for other in column) + 0.04, height),
                    va="center",
                    fontsize=8.5,
                    color=named.get(row.key, _INK),
                    fontweight="bold" if row.key in named else "normal",
                    arrowprops={
                        "arrowstyle": "-",
                        "color": _GRID,
                        "linewidth": 0.8,
                        "shrinkA": 0,
                        "shrinkB": 4,
                        "relpos": (0, 0.5),
                    },
                )
        axes.set_xlabel("chat goodput (share of requests inside the SLO, simulated)")
        axes.set_ylabel("agents' output tokens/s (simulated)")
        axes.set_xlim(-0.03, 1.75)
        axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
        axes.set_ylim(0, top + line)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _points(rows: list[Row]) -> tuple[list[float], list[float]]:
    return [row.chat_goodput_share for row in rows], [row.agent_output for row in rows]


def _spread(rows: list[Row], line: float) -> list[tuple[Row, float]]:
    """Heights for the labels of one column: near their marks, and far enough from each other to be read."""
    heights: list[tuple[Row, float]] = []
    floor = 0.0
    for row in sorted(rows, key=lambda row: row.agent_output):
        height = max(row.agent_output, floor)
        heights.append((row, height))
        floor = height + line
    return heights
