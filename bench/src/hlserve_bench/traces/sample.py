"""Makes the demo's trace sample: `python -m hlserve_bench.traces.sample --traces DIR [--check]`.

The sample is a cut, nothing else: every n-th row of the Azure conversation trace, and the first rounds of every n-th agent session.
Scaling happens at replay, so the sample is checkable against its source line by line.
"""

import gzip
import json
from pathlib import Path

import click

from hlserve_bench.traces.agentic import load_agentic
from hlserve_bench.traces.azure import load_azure
from hlserve_bench.traces.reading import TraceError
from hlserve_bench.traces.replay import ReplayRules

CHAT_FILE = "azure2023_conv_sample.csv"
AGENT_FILE = "agentic_coding_sample.jsonl"
CHAT_SOURCE = "azure2023_conv.csv.gz"
AGENT_SOURCE = "agentic_coding_sessions.jsonl.gz"
CHAT_ROWS = 3000
AGENT_SESSIONS = 300
MIN_ROUNDS = 6
"""Shorter sessions hold no multi-round load worth replaying."""

DATA = Path(__file__).resolve().parent.parent / "data"


@click.command()
@click.option(
    "--traces", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the full traces."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=DATA, help="Where the sample goes.")
@click.option("--check", is_flag=True, help="Write nothing; fail if the files differ from what would be written.")
def main(traces: Path, out: Path, check: bool) -> None:
    """Cut the demo's trace sample from the full public traces."""
    try:
        files = {
            CHAT_FILE: chat_sample(traces / CHAT_SOURCE, CHAT_ROWS),
            AGENT_FILE: agent_sample(traces / AGENT_SOURCE, AGENT_SESSIONS, ReplayRules().max_rounds),
        }
    except TraceError as error:
        raise click.ClickException(str(error)) from error
    for name, text in files.items():
        target = out / name
        if check:
            if not target.is_file() or target.read_text(encoding="utf-8") != text:
                raise click.ClickException(f"{target} is not the sample of {traces}; run this command without --check.")
        else:
            target.write_text(text, encoding="utf-8")
            click.echo(f"{target}: {len(text.encode()):,} bytes, {text.count(chr(10)):,} lines")


def chat_sample(source: Path, rows: int) -> str:
    """The header and every n-th line of the trace, `rows` in all, unchanged: lengths drift over the hour, so a head would not do."""
    load_azure(source)
    lines = gzip.decompress(source.read_bytes()).decode("utf-8").splitlines()
    header, data = lines[0], lines[1:]
    if len(data) < rows:
        raise TraceError(f"{source}: {len(data)} requests, {rows} are needed.")
    return "\n".join([header, *(data[index * len(data) // rows] for index in range(rows))]) + "\n"


def agent_sample(source: Path, sessions: int, max_rounds: int) -> str:
    """Every n-th session with enough rounds, cut to its first `max_rounds`."""
    load_agentic(source)
    lines = gzip.decompress(source.read_bytes()).decode("utf-8").splitlines()
    usable = [row for row in (json.loads(line) for line in lines) if len(row["rows"]) >= MIN_ROUNDS]
    if len(usable) < sessions:
        raise TraceError(f"{source}: {len(usable)} sessions of at least {MIN_ROUNDS} rounds, {sessions} are needed.")
    kept = [usable[index * len(usable) // sessions] for index in range(sessions)]
    return "".join(json.dumps({**row, "rows": row["rows"][:max_rounds]}, separators=(",", ":")) + "\n" for row in kept)


if __name__ == "__main__":
    main()
