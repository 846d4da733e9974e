"""A process that outlives a killed parent just long enough to end the parent's children.

`python -m hlserve_local.guard DIR` reads lines `+PID` and `-PID` from standard input. When the input ends, which also happens
when the parent was killed with SIGKILL, it ends the process group of each PID that is left, and removes DIR.

Standard library only: it must start fast and depend on nothing that the parent's death could break.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from typing import Final

GRACE_SECONDS: Final = 2.0


def end_groups(pids: Iterable[int], grace_seconds: float = GRACE_SECONDS) -> None:
    """SIGTERM each process group, then SIGKILL those that are left after `grace_seconds`."""
    left = {pid for pid in pids if _signal_group(pid, signal.SIGTERM)}
    deadline = time.monotonic() + grace_seconds
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = {pid for pid in left if _signal_group(pid, 0)}
    for pid in left:
        _signal_group(pid, signal.SIGKILL)


def _signal_group(pid: int, number: int) -> bool:
    """Whether the group of `pid` still existed."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main(directory: str) -> None:
    """Wait for the end of standard input, then clean up."""
    pids: set[int] = set()
    for line in sys.stdin:
        with contextlib.suppress(ValueError):
            pid = int(line[1:])
            if line.startswith("+"):
                pids.add(pid)
            else:
                pids.discard(pid)
    end_groups(pids)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
