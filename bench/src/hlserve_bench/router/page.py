"""`docs/benchmarks/router.md`: made of the rows and the manifest beside it, so that nobody types a figure."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click
from jinja2 import Environment, PackageLoader, StrictUndefined

from hlserve_bench.router.candidates import CANDIDATES, DIRECT
from hlserve_bench.router.figures import Figures
from hlserve_bench.router.goals import GOALS, Verdict
from hlserve_bench.router.manifest import Manifest, commit_in_words, load_in_words
from hlserve_bench.router.rows import Row, read_rows
from hlserve_bench.router.tables import TABLES, Table, cell, lines

_DIRECT_DOES: Final = "no proxy: the load client on one engine; the floor of delays and the limit of the harness"
_ORDER: Final = (DIRECT, *(candidate.name for candidate in CANDIDATES))


def write_page(path: Path, rows: Sequence[Row], manifest: Manifest, *, check: bool) -> bool:
    """Writes it; with `check` only compares. True: the file is what it should be."""
    text = render(rows, manifest)
    if check:
        return path.exists() and path.read_text(encoding="utf-8") == text
    path.write_text(text, encoding="utf-8")
    return True


def render(rows: Sequence[Row], manifest: Manifest) -> str:
    """The page."""
    figures = Figures(rows)
    environment = Environment(
        loader=PackageLoader("hlserve_bench.router"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False,  # noqa: S701 - Markdown of our own figures
    )  # fmt: skip
    return environment.get_template("router.md.j2").render(
        manifest=manifest,
        commit=commit_in_words(asdict(manifest)),
        load=load_in_words(asdict(manifest)),
        goals=_goals(figures),
        who=_who(figures, manifest),
        tables=[(table.title, _table(table, figures)) for table in TABLES],
        failures=_failures(figures),
        libraries=", ".join(f"{name} {version}" for name, version in manifest.libraries.items()),
    )


def _goals(figures: Figures) -> str:
    body = []
    for goal in GOALS:
        found = goal.measured(figures)
        verdict = goal.verdict(found)
        said = f"**{verdict.value}**" if verdict is Verdict.MISSED else verdict.value
        body.append(
            [
                f"`{goal.ours}`",
                goal.figure,
                goal.against or "–",
                goal.wanted,
                cell(found, 2, spread=True, rounds=figures.rounds),
                said,
            ]
        )
    return _markdown(["", "figure", "against", "goal", "measured", ""], body)


def _who(figures: Figures, manifest: Manifest) -> str:
    body = [[f"`{DIRECT}`", "", _DIRECT_DOES, f"{figures.errors(DIRECT):,.0f}"]]
    for candidate in CANDIDATES:
        if candidate.name in figures.candidates:
            errors = f"{figures.errors(candidate.name):,.0f}"
            body.append([f"`{candidate.name}`", manifest.candidates.get(candidate.name, ""), candidate.does, errors])
    return _markdown(["name", "version", "what it does for a request", "errors"], body)


def _failures(figures: Figures) -> list[str]:
    """Which cases gave no figures in which rounds, and why the first of these."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in figures.failures:
        found.setdefault((row.candidate, row.case), []).append(row)
    return [
        f"`{candidate}` in `{case}`, {len(rows)} of {figures.rounds} rounds ({rows[0].failure})"
        for (candidate, case), rows in sorted(found.items())
    ]


def _table(table: Table, figures: Figures) -> str:
    body = [[f"`{line[0]}`", *line[1:]] for line in lines(table, figures, table.of or _ORDER)]
    return _markdown(["", *(column.title for column in table.columns)], body)


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *body])


@click.command()
@click.argument(
    "folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path("docs/benchmarks")
)
@click.option("--check", is_flag=True, help="Only say whether the page is what the rows make of it.")
def page(folder: Path, check: bool) -> None:
    """Write FOLDER/router.md from the rows and the manifest beside it."""
    rows = read_rows(folder / "router.jsonl")
    manifest = Manifest.from_json((folder / "router.manifest.json").read_text())
    if not write_page(folder / "router.md", rows, manifest, check=check):
        click.echo(f"{folder / 'router.md'} is not what its rows make of it. Run: make bench-router-report.", err=True)
        sys.exit(1)


if __name__ == "__main__":
    page()
