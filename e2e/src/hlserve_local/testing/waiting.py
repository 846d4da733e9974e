"""Waiting for what another process does, with a deadline."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

POLL_SECONDS: Final = 0.05


def is_gone(pid: int) -> bool:
    """Whether a process ended (a zombie that nobody reaped yet did too)."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


async def eventually(condition: Callable[[], Awaitable[bool] | bool], what: str, timeout_seconds: float = 15.0) -> None:
    """Wait until `condition` holds. Raises TimeoutError that says what was waited for."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    while True:
        result = condition()
        if await result if isinstance(result, Awaitable) else result:
            return
        if loop.time() > deadline:
            raise TimeoutError(f"after {timeout_seconds:g} s still waiting: {what}")
        await asyncio.sleep(POLL_SECONDS)
