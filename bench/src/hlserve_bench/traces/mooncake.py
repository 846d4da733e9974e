"""Mooncake traces: one JSON object a line with arrival, lengths and one hash id per 512-token block of the prompt.

Qin et al., "Mooncake", FAST 2025; Apache-2.0.
"""

from dataclasses import dataclass
from pathlib import Path

from hlserve_bench.traces.reading import (
    BrokenLineError,
    OnBrokenLine,
    Trace,
    in_time_order,
    parse_json_object,
    read_rows,
    whole_number,
)

BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class MooncakeRequest:
    """One request. Equal leading `block_ids` mean an equal, reusable prefix of that many blocks."""

    at_seconds: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]


def load_mooncake(path: Path, on_broken_line: OnBrokenLine = OnBrokenLine.FAIL) -> Trace[MooncakeRequest]:
    """Load a Mooncake trace, plain or gzip. Raises TraceError with one sentence on what to do."""
    trace = read_rows(path, _parse, on_broken_line)
    in_time_order(trace.rows, lambda row: row.at_seconds, path)
    return trace


def _parse(line: str) -> MooncakeRequest:
    row = parse_json_object(line)
    missing = [name for name in ("timestamp", "input_length", "output_length", "hash_ids") if name not in row]
    if missing:
        raise BrokenLineError(f"the field {missing[0]} is missing")
    hash_ids = row["hash_ids"]
    if not isinstance(hash_ids, list):
        raise BrokenLineError("hash_ids is not a list")
    input_tokens = whole_number(row["input_length"], "input_length", at_least=1)
    blocks = -(-input_tokens // BLOCK_TOKENS)
    if len(hash_ids) != blocks:
        raise BrokenLineError(
            f"{len(hash_ids)} hash_ids where {input_tokens} tokens make {blocks} blocks of {BLOCK_TOKENS}"
        )
    return MooncakeRequest(
        at_seconds=whole_number(row["timestamp"], "timestamp", at_least=0) / 1000,
        input_tokens=input_tokens,
        output_tokens=whole_number(row["output_length"], "output_length", at_least=1),
        block_ids=tuple(whole_number(value, "a hash id", at_least=0) for value in hash_ids),
    )
