"""A run's figures for the eyes of who started it."""

from collections.abc import Sequence

from hlserve_bench.router.figures import Figures
from hlserve_bench.router.goals import GOALS
from hlserve_bench.router.rows import Row
from hlserve_bench.router.tables import TABLES, cell, lines


def summary(rows: Sequence[Row]) -> str:
    """Tables, and the goals that the rows can tell of."""
    figures = Figures(rows)
    text: list[str] = []
    for table in TABLES:
        used = [
            index
            for index, column in enumerate(table.columns, 1)
            if any(column.reading(figures, name) for name in figures.candidates)
        ]
        body = [
            [line[0], *(line[index] for index in used)]
            for line in lines(table, figures, table.of or figures.candidates)
        ]
        if body and used:
            head = ["", *(table.columns[index - 1].title for index in used)]
            text += ["", table.title, *aligned([head, *body])]
    known = [(goal, found) for goal in GOALS if (found := goal.measured(figures)) is not None]
    if known:
        body = [
            [
                goal.ours,
                goal.figure,
                goal.against,
                goal.wanted,
                cell(found, 2, spread=True, rounds=figures.rounds),
                goal.verdict(found).value,
            ]
            for goal, found in known
        ]
        text += ["", "Goals", *aligned(body)]
    errors = {name: figures.errors(name) for name in figures.candidates if figures.errors(name)}
    if errors:
        text += ["", f"errors: {errors}"]
    return "\n".join(text)


def aligned(body: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width."""
    widths = [max(len(line[index]) for line in body) for index in range(len(body[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in body]
