"""The operator's logs: what of the libraries' is kept, and how a line is written; the form is `hlserve_api.logs`."""

import json
from typing import Any, Final, TextIO

from hlserve_api.logs import JsonFormatter, send

_OURS: Final = "hlserve_operator"
_NOT_KEPT: Final = ("httpx", "httpcore", "kubernetes", "aiohttp", "kopf.objects", "asyncio")
"""Their lower levels show headers, bodies or objects."""


def set_up(level: str, stream: TextIO | None = None) -> None:
    """Sends all logs to `stream` (default: stderr) as JSON."""
    send(level, JsonFormatter(_OURS, _line), _NOT_KEPT, stream)


def _line(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False, default=str)
