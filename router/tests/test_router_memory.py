"""Large buffers are kept for the next request."""

import subprocess
import sys

_COUNT_FAULTS = """
import resource
from hlserve_router.memory import keep_large_buffers
if {kept}:
    assert keep_large_buffers()
def several():
    [bytes(1024 * 1024) for _ in range(8)]
several()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(30):
    several()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(*, kept: bool) -> int:
    done = subprocess.run([sys.executable, "-c", _COUNT_FAULTS.format(kept=kept)], capture_output=True, check=True)
    return int(done.stdout)


def test_large_bodies_at_once_pay_for_their_pages_once() -> None:
    """Each buffer of 1 MiB takes 256 new pages from the kernel otherwise, as often as all of them were free at once."""
    assert 3 * _faults(kept=True) < _faults(kept=False)
