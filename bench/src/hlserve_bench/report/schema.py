"""Writes the published JSON schema of `report.json`: `python -m hlserve_bench.report.schema [--check] [--out FILE]`."""

import json
from pathlib import Path

import click

from hlserve_bench.report.model import Report

DEFAULT_PATH = Path("docs/reference/schemas/report.schema.json")


def render() -> str:
    """The schema as the file's text."""
    schema = Report.model_json_schema(mode="serialization")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "HlServe report"
    return json.dumps(schema, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; fail if the file is not what would be written.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=DEFAULT_PATH,
    show_default=True,
    help="The schema file.",
)
def main(check: bool, out: Path) -> None:
    """Generate the JSON schema of report.json."""
    text = render()
    if not check:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    elif not out.is_file() or out.read_text(encoding="utf-8") != text:
        raise click.ClickException(
            f"{out} is not the schema of the code; run: python -m hlserve_bench.report.schema --out {out}"
        )


if __name__ == "__main__":
    main()
