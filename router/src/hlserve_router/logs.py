"""The router's logs: what of the libraries' is kept, and how a line is written; the form is `hlserve_api.logs`.

What clients and engines sent is in no log, at no level.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, TextIO

import msgspec

from hlserve_api.logs import JsonFormatter, send

_OURS: Final = "hlserve_router"
_NOT_KEPT: Final = ("httpx", "httpcore")
"""Their debug lines are headers and bodies."""


def on_loop_error(_: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    """What an event loop calls for a fault that nobody caught. Its own text would show what the callback was given."""
    error = context.get("exception")
    fault = error if isinstance(error, BaseException) else None
    logging.getLogger(_OURS).error(
        "event loop fault", exc_info=fault, extra={"fields": {"error": type(error).__name__}}
    )


class _CutIsMeant(logging.Filter):
    """A reply that the router cuts on purpose is counted as its outcome; the server's complaint about it adds nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "without completing response" not in str(record.msg)


def set_up(level: str, stream: TextIO | None = None) -> None:
    """Sends all logs to `stream` (default: stderr) as JSON."""
    send(level, JsonFormatter(_OURS, _line), _NOT_KEPT, stream)
    # What our lines do not show need not be found out: each costs as much as the rest of a line.
    logging._srcfile = None  # noqa: SLF001 - the switch that the documentation of logging names
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.getLogger("uvicorn.error").addFilter(_CutIsMeant())
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _line(fields: dict[str, Any]) -> str:
    return msgspec.json.encode(fields).decode()
