"""What is measured. Every case is a closed loop of keep-alive connections; streams are written by the engine on its own clock."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

ENDLESS: Final = 100_000
"""Chunks of a stream that outlives its case."""


class Load(StrEnum):
    """What the clients ask for."""

    REPLY = "reply"
    """One JSON reply of about 1 KB."""
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load."""

    name: str
    load: Load
    connections: int
    warm_seconds: float
    seconds: float
    body_bytes: int = 1024
    chunks: int = 200
    chunks_spread: int = 0
    """A stream has so many chunks more or less."""
    gap_microseconds: int = 0
    repeats: int = 1
    """Fresh sets of connections."""

    @property
    def endless(self) -> bool:
        """The streams do not end by themselves: CPU is read over a steady part, and the clients leave in mid-stream."""
        return self.chunks >= ENDLESS


def _paced(connections: int, gap_milliseconds: int, warm_seconds: float, seconds: float) -> Case:
    return Case(
        f"stream-{connections}", Load.STREAM, connections, warm_seconds, seconds, chunks=ENDLESS,
        gap_microseconds=gap_milliseconds * 1000,
    )  # fmt: skip


CASES: Final = (
    _paced(1000, 50, 1.5, 1.3),
    Case("reply-1", Load.REPLY, 1, 0.2, 0.8),
    Case("reply-64", Load.REPLY, 64, 0.3, 1.5),
    Case("reply-256", Load.REPLY, 256, 0.3, 0.7),
    Case("ttft", Load.STREAM, 8, 0.3, 1.5, chunks=10, gap_microseconds=10_000),
    _paced(64, 20, 0.4, 1.3),
    # Longer than the others, since it tells the p99 of delays: a few stalls of the machine must not decide that.
    _paced(256, 20, 0.6, 6.0),
    Case("body-1m", Load.REPLY, 4, 0.2, 1.0, body_bytes=1024 * 1024),
    Case("spread", Load.REPLY, 64, 0.1, 0.4, repeats=4),
)
"""In the order of a round: memory for 1,000 streams comes first, before other cases have grown the process."""

BY_NAME: Final = {case.name: case for case in CASES}
LEFT_IN: Final = "stream-256"
"""The case after which it is looked whether the engine still works for clients that are gone."""
ORDINARY: Final = frozenset(case.name for case in CASES) - {"spread"}
"""The cases of a candidate that does not say otherwise."""
