"""Runs without random numbers, whose results any implementation must reproduce (see the tests for the values)."""

from enum import StrEnum

from hlserve_capacity.lab.workload import LabRequest
from hlserve_capacity.units import US_PER_SECOND

GOLDEN_MAX_BATCH = 16


class GoldenRun(StrEnum):
    """The four golden loads; all run with at most sixteen slots."""

    EQUAL_LENGTHS = "g0"
    """64 equal requests at once: equal lengths flatter static batching."""
    MIXED_LENGTHS = "g1"
    """64 requests at once with replies of 25 to 400 tokens."""
    STEADY_ARRIVALS = "g2"
    """240 requests, one every 250 ms, with the same replies."""
    LONG_PROMPT = "g3"
    """8 decoding sequences, joined at one second by a prompt of 20,000 tokens."""


def mixed_output_tokens(index: int) -> int:
    """Replies of 25 to 400 tokens in a fixed shuffle of sixteen."""
    return 25 * (1 + (7 * index) % 16)


def requests(run: GoldenRun) -> list[LabRequest]:
    """The load of a golden run."""
    match run:
        case GoldenRun.EQUAL_LENGTHS:
            return [LabRequest(0, 200, 128)] * 64
        case GoldenRun.MIXED_LENGTHS:
            return [LabRequest(0, 200, mixed_output_tokens(index)) for index in range(64)]
        case GoldenRun.STEADY_ARRIVALS:
            return [LabRequest(250_000 * index, 200, mixed_output_tokens(index)) for index in range(240)]
        case GoldenRun.LONG_PROMPT:
            return [LabRequest(0, 0, 400)] * 8 + [LabRequest(US_PER_SECOND, 20_000, 10)]
