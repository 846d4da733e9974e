"""Trace files line by line, and what happens when a line is broken.

A broken line is an error that names the file, the line, what is wrong and what to do. Under `OnBrokenLine.SKIP` it is left out and
counted instead, so that a report can say how many rows its figures do not rest on.
"""

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Generic, TypeVar

Row = TypeVar("Row")


class TraceError(Exception):
    """A trace that cannot be used. The text is one sentence for the user."""


class OnBrokenLine(StrEnum):
    """What a line that does not parse does to the load."""

    FAIL = "fail"
    SKIP = "skip"


class BrokenLineError(Exception):
    """Raised by a row parser: what is wrong with this line, without file or line number."""


@dataclass(frozen=True, slots=True)
class Trace(Generic[Row]):
    """The rows of one file, in file order. `skipped` counts broken lines that were left out."""

    path: Path
    rows: tuple[Row, ...]
    skipped: int


def read_rows(
    path: Path, parse: Callable[[str], Row], on_broken_line: OnBrokenLine, *, header: str | None = None
) -> Trace[Row]:
    """Parse each non-empty line of `path` (gzip by its name). `header` is the exact first line that a CSV must have.

    Raises TraceError for an unreadable file, a wrong header, a file without rows, and, under FAIL, the first broken line.
    """
    rows: list[Row] = []
    skipped = 0
    for number, line in _numbered_lines(path):
        if header is not None and number == 1:
            if line.strip().lstrip("\ufeff") != header:
                raise TraceError(
                    f'{path}: line 1: the header is "{_shorten(line)}" but must be "{header}"; '
                    "check that the file is of the format you named."
                )
            continue
        if not line.strip():
            continue
        try:
            rows.append(parse(line))
        except BrokenLineError as broken:
            if on_broken_line is OnBrokenLine.SKIP:
                skipped += 1
                continue
            raise TraceError(f"{path}: line {number}: {broken}; correct or remove the line.") from broken
    if not rows:
        what = "no usable row" if skipped else "no rows"
        raise TraceError(f"{path}: {what}; give a trace with at least one request.")
    return Trace(path, tuple(rows), skipped)


def parse_json_object(line: str) -> dict[str, object]:
    """One JSON object, or BrokenLineError."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise BrokenLineError(f"not JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(value, dict):
        raise BrokenLineError(f"a JSON {type(value).__name__}, not an object")
    return value


def whole_number(value: object, name: str, *, at_least: int) -> int:
    """`value` as an int of at least `at_least`, or BrokenLineError that names the field."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError as error:
            raise BrokenLineError(f'{name} is "{_shorten(str(value))}", not a whole number') from error
    if isinstance(value, bool) or not isinstance(value, int):
        raise BrokenLineError(f"{name} is {_shorten(json.dumps(value))}, not a whole number")
    if value < at_least:
        raise BrokenLineError(f"{name} is {value} but must be at least {at_least}")
    return value


def seconds(value: object, name: str) -> float:
    """`value` as a finite duration of at least 0 s, or BrokenLineError that names the field."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BrokenLineError(f"{name} is {_shorten(json.dumps(value))}, not a number of seconds")
    if not 0 <= value < float("inf"):
        raise BrokenLineError(f"{name} is {value} but must be a finite number of at least 0")
    return float(value)


def in_time_order(rows: Iterable[Row], at: Callable[[Row], float], path: Path) -> None:
    """Raise TraceError where a row is earlier than the one before it: replaying it would need a negative wait."""
    previous: float | None = None
    for position, row in enumerate(rows, start=1):
        now = at(row)
        if previous is not None and now < previous:
            raise TraceError(f"{path}: request {position} is earlier than the one before it; sort the file by time.")
        previous = now


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as raw:
            stream = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            with io.TextIOWrapper(io.BufferedReader(stream), encoding="utf-8") as text:
                yield from enumerate((line.rstrip("\r\n") for line in text), start=1)
    except FileNotFoundError as error:
        raise TraceError(f"{path}: no such file; give the path of a trace.") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 text; a compressed trace must be gzip and end in .gz.") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{path}: the gzip data is cut off or damaged; fetch the file again.") from error
    except OSError as error:
        raise TraceError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and its permissions."
        ) from error


def _shorten(text: str, limit: int = 60) -> str:
    """At most `limit` characters: an error line quotes the input, it does not repeat it."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
