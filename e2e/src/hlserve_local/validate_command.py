"""`hlserve validate`: check manifests without starting anything."""

import json
from pathlib import Path
from typing import Any

import click

from hlserve_local.manifests import FolderMissingError
from hlserve_local.problems import Problem, Severity
from hlserve_local.validation import Validation, outlives_process
from hlserve_local.validation import validate as validate_folder
from hlserve_router.limit_store import MEMORY

EXIT_PROBLEMS = 1
STORES = ("valkey://", "valkeys://", "unix://", "sqlite:")


@click.command()
@click.option(
    "-f", "folder", required=True, type=click.Path(path_type=Path), help="Folder with manifests, or one manifest file."
)
@click.option(
    "--limits-store",
    metavar="STORE",
    help="Store that the routers will use, as for `up`: sqlite:PATH, valkey://HOST:PORT/DB or memory (no budgets). Default: a file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.pass_context
def validate(context: click.Context, folder: Path, limits_store: str | None, as_json: bool) -> None:
    """Check the manifests of a folder as the API server and the operator would.

    Exit status: 0 usable (perhaps with warnings), 1 at least one error, 2 wrong usage.
    """
    if limits_store is not None and limits_store != MEMORY and not limits_store.startswith(STORES):
        raise click.UsageError(
            f"--limits-store {limits_store}: write memory, valkey://HOST:PORT/DB, valkeys:// for TLS, unix://PATH, or sqlite:PATH."
        )
    try:
        result = validate_folder(folder, durable_store=outlives_process(limits_store))
    except FolderMissingError as failure:
        raise click.UsageError(str(failure)) from None
    if as_json:
        click.echo(json.dumps(as_document(result), indent=2))
    else:
        for problem in result.problems:
            click.echo(str(problem))
        click.echo(summary(result))
    if not result.usable:
        context.exit(EXIT_PROBLEMS)


def summary(result: Validation) -> str:
    """The last line: how many objects, errors and warnings."""
    errors = len(result.problems) - len(result.warnings)
    objects = result.objects
    read = (
        f"{len(objects.pools)} ServingPool, {len(objects.classes)} WorkloadClass, {len(objects.keys)} ClientKey, "
        f"{len(objects.secrets)} Secret"
    )
    if not result.problems:
        return f"{read}: all good."
    return f"{read}: {_count(errors, 'error')}, {_count(len(result.warnings), 'warning')}."


def as_document(result: Validation) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "ok": result.usable,
        "errors": [_entry(problem) for problem in result.problems if problem.severity is Severity.ERROR],
        "warnings": [_entry(problem) for problem in result.warnings],
    }


def _entry(problem: Problem) -> dict[str, Any]:
    place = problem.place
    return {
        "file": place.file,
        "document": place.document,
        "kind": place.kind,
        "name": place.name,
        "path": problem.path,
        "message": problem.message,
    }


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
