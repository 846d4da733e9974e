"""Azure LLM inference traces of 2023: `TIMESTAMP,ContextTokens,GeneratedTokens`.

Patel et al., "Splitwise", ISCA 2024; data © Microsoft, CC-BY 4.0.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hlserve_bench.traces.reading import BrokenLineError, OnBrokenLine, Trace, in_time_order, read_rows, whole_number

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


@dataclass(frozen=True, slots=True)
class AzureRequest:
    """One request. `at_seconds` is Unix time; lengths are tokens."""

    at_seconds: float
    input_tokens: int
    output_tokens: int


def load_azure(path: Path, on_broken_line: OnBrokenLine = OnBrokenLine.FAIL) -> Trace[AzureRequest]:
    """Load a code or conversation trace, plain or gzip. Raises TraceError with one sentence on what to do."""
    trace = read_rows(path, _parse, on_broken_line, header=HEADER)
    in_time_order(trace.rows, lambda row: row.at_seconds, path)
    return trace


def _parse(line: str) -> AzureRequest:
    fields = line.split(",")
    if len(fields) != 3:
        raise BrokenLineError(f"{len(fields)} fields where {HEADER} has 3")
    # The files carry seven decimals; datetime reads six.
    stamp = fields[0][:26]
    try:
        at = datetime.fromisoformat(stamp).replace(tzinfo=UTC)
    except ValueError as error:
        raise BrokenLineError(f'TIMESTAMP is "{stamp}", not like 2023-11-16 18:17:03.9799600') from error
    return AzureRequest(
        at_seconds=at.timestamp(),
        input_tokens=whole_number(fields[1], "ContextTokens", at_least=1),
        output_tokens=whole_number(fields[2], "GeneratedTokens", at_least=1),
    )
