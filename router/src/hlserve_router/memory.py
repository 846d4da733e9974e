"""How this process gets its memory: large buffers are kept for the next request instead of being handed back to the kernel.

glibc gives large buffers a mapping of their own, or cuts the heap, as soon as they are free. The next large bodies pay for every page anew,
which is most of what a request of 1 MiB costs.
"""

import ctypes
from typing import Final

MMAP_THRESHOLD_BYTES: Final = 32 * 1024 * 1024
"""Buffers below it come from the heap. The largest value that glibc takes on 64-bit machines."""
KEPT_BYTES: Final = 64 * 1024 * 1024
"""Free memory at the top of the heap that is kept: it bounds what the process holds on to after a burst of large bodies."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_large_buffers() -> bool:
    """Sets both for the whole process. False where the C library has no such knobs (musl, macOS): then nothing changes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
