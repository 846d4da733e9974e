"""The router's log as it would be written to stderr, at the level that tells most."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from hlserve_router import logs

_LOGGERS = ("httpx", "httpcore", "uvicorn", "uvicorn.error")


@contextmanager
def logbook(level: str = "debug") -> Iterator[io.StringIO]:
    """Everything that is logged inside the block; what logging was set to before is set again."""
    root = logging.getLogger()
    handlers, former = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    filters = list(logging.getLogger("uvicorn.error").filters)
    switches = {
        name: getattr(logging, name) for name in ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing")
    }
    book = io.StringIO()
    logs.set_up(level, book)
    try:
        yield book
    finally:
        root.handlers[:] = handlers
        root.setLevel(former)
        for name, value in levels.items():
            logging.getLogger(name).setLevel(value)
        logging.getLogger("uvicorn.error").filters[:] = filters
        for name, switch in switches.items():
            setattr(logging, name, switch)
