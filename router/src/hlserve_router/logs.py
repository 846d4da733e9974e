"""Logs as one JSON object a line: time, level, message and the fields that a call passes as `extra={"fields": …}`."""

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class _CutIsMeant(logging.Filter):
    """A reply that the router cuts on purpose is counted as its outcome; the server's complaint about it adds nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "without completing response" not in str(record.msg)


def set_up(level: str) -> None:
    """Sends all logs to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    # What our lines do not show need not be found out: each costs as much as the rest of a line.
    logging._srcfile = None  # noqa: SLF001 - the switch that the documentation of logging names
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_CutIsMeant())
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)
