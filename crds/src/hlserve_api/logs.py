"""The form of our processes' logs: one JSON object a line, with time, level, logger, message and the fields of `extra={"fields": …}`.

Prompts, keys and objects of the cluster are in no log, at no level. An exception's message may quote them, so a traceback names
types and places only; a library's message may, so of those only the text is kept that stands in the library's own code.
"""

import logging
import sys
import traceback
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, TextIO


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON. `ours`: the package whose messages may be filled in; `encode`: a line's fields as text."""

    def __init__(self, ours: str, encode: Callable[[dict[str, Any]], str]) -> None:
        super().__init__()
        self._ours = ours
        self._encode = encode

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage() if record.name.startswith(self._ours) else str(record.msg),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            line["traceback"] = places(record.exc_info[1])
        return self._encode(line)


def places(error: BaseException) -> list[str]:
    """An exception and those that led to it: types, and the lines of code that they passed through."""
    lines: list[str] = []
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        lines.append(f"{type(cause).__module__}.{type(cause).__qualname__}")
        frames = traceback.extract_tb(cause.__traceback__)
        lines += [f"  {frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        cause = cause.__cause__ or cause.__context__
    return lines


def send(level: str, formatter: logging.Formatter, not_kept: Iterable[str], stream: TextIO | None = None) -> None:
    """Sends all logs to `stream` (default: stderr). `not_kept`: loggers of which only warnings and errors are kept."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in not_kept:
        logging.getLogger(name).setLevel(logging.WARNING)
