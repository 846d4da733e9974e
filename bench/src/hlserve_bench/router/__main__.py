"""`python -m hlserve_bench.router run|page`: the router's benchmark."""

import os
import sys
from pathlib import Path

import click

from hlserve_bench.router import candidates, cases
from hlserve_bench.router import soak as soak_report
from hlserve_bench.router.candidates import Candidate
from hlserve_bench.router.cases import Case
from hlserve_bench.router.interpreter import environment
from hlserve_bench.router.manifest import collect
from hlserve_bench.router.page import page
from hlserve_bench.router.peers import Missing, Ready, prepare
from hlserve_bench.router.programs import HarnessError, alone, build, work_folder
from hlserve_bench.router.rows import Row, write_rows
from hlserve_bench.router.running import Plan, Run
from hlserve_bench.router.soaking import Soak
from hlserve_bench.router.terminal import summary


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure the router beside other proxies and the bare control, and write the page about it."""


def _chosen_candidates(_: click.Context, __: click.Parameter, value: str) -> tuple[Candidate, ...]:
    if not value:
        return tuple(candidate for candidate in candidates.CANDIDATES if candidate.always)
    unknown = [name for name in value.split(",") if name not in candidates.BY_NAME]
    if unknown:
        raise click.BadParameter(f"there is no {unknown[0]}. There are: {', '.join(candidates.BY_NAME)}")
    return tuple(candidates.BY_NAME[name] for name in value.split(","))


def _chosen_cases(_: click.Context, __: click.Parameter, value: str) -> tuple[Case, ...]:
    if not value:
        return cases.CASES
    unknown = [name for name in value.split(",") if name not in cases.BY_NAME]
    if unknown:
        raise click.BadParameter(f"there is no {unknown[0]}. There are: {', '.join(cases.BY_NAME)}")
    return tuple(cases.BY_NAME[name] for name in value.split(","))


@main.command()
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--only", "chosen", callback=_chosen_candidates, default="", help="Candidates, with commas; none: all of record."
)
@click.option("--tests", "wanted", callback=_chosen_cases, default="", help="Cases, with commas; none: all.")
@click.option(
    "--candidate-core", type=click.IntRange(min=0), default=0, show_default=True, help="Core of the candidates."
)
@click.option(
    "--load-core", type=click.IntRange(min=0), default=1, show_default=True, help="Core of engine and clients."
)
@click.option("--real-time/--ordinary", default=False, help="SCHED_FIFO for the seconds of a case (root only).")
@click.option(
    "--python",
    default="",
    help="Interpreter of the router and the control, of this one's version; none: this one. One built with PGO is faster.",
)
@click.option("--peer-python", default="", help="Interpreter of the peers' virtual environments; none: this one.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for rows and manifest.")
def run(
    rounds: int,
    chosen: tuple[Candidate, ...],
    wanted: tuple[Case, ...],
    candidate_core: int,
    load_core: int,
    real_time: bool,
    python: str,
    peer_python: str,
    out: Path | None,
) -> None:
    """Run rounds of cases on candidates; print medians; write rows if --out is given."""
    try:
        cache = work_folder()
        programs = build(cache)
        own_python = environment(python, cache)
        found = [prepare(candidate, cache, peer_python, own_python) for candidate in chosen]
        ready = tuple(each for each in found if isinstance(each, Ready))
        load_before = os.getloadavg()[0]
        plan = Plan(rounds, wanted, ready, candidate_core, load_core, real_time, own_python)
        job = Run(plan, programs, cache, lambda text: click.echo(text, err=True))
        job.missing.extend(each for each in found if isinstance(each, Missing))
        with alone(cache):
            rows = _collected(job)
    except HarnessError as error:
        click.echo(f"bench-router: {error}", err=True)
        sys.exit(2)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_rows(out / "router.jsonl", rows)
        (out / "router.manifest.json").write_text(collect(plan, job.missing, sys.argv[1:], load_before).to_json())
    click.echo(summary(rows))
    for missing in job.missing:
        click.echo(f"not measured: {missing.candidate.name}: {missing.reason}")


def _collected(job: Run) -> list[Row]:
    rows: list[Row] = []
    try:
        for row in job.rows():
            rows.append(row)
    except KeyboardInterrupt:
        click.echo("stopped: what was measured so far follows", err=True)
    return rows


main.add_command(page)


@main.command()
@click.option("--seconds", type=click.IntRange(min=2), default=600, show_default=True)
@click.option("--streams", type=click.IntRange(1, 10_000), default=1000, show_default=True)
@click.option("--interval-seconds", type=click.IntRange(min=1), default=10, show_default=True)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for router-soak.json and its page."
)
@click.option("--real-time/--ordinary", default=False, help="SCHED_FIFO for the whole run (root only).")
def soak(seconds: int, streams: int, interval_seconds: int, out: Path | None, real_time: bool) -> None:
    """Hold many streams open for minutes and look for growth, delay and leaks. Exit status 1 if something was left behind."""
    try:
        cache = work_folder()
        programs = build(cache)
        job = Soak(
            seconds, streams, interval_seconds, programs, cache, lambda text: click.echo(text, err=True), real_time
        )  # fmt: skip
        with alone(cache):
            found = job.run()
    except HarnessError as error:
        click.echo(f"soak: {error}", err=True)
        sys.exit(2)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        soak_report.write(out, found)
    click.echo(soak_report.render(found))
    sys.exit(1 if found.findings else 0)


if __name__ == "__main__":
    main()
