"""Where the lab's requests come from: a fixed schedule (open loop) or clients that wait for their reply (closed loop)."""

import heapq
from collections.abc import Sequence
from typing import Protocol

from hlserve_capacity.lab.workload import LabRequest, LengthDraw, RandomSource


class Arrivals(Protocol):
    """A source of requests in order of arrival."""

    def next_arrival_us(self) -> int | None:
        """When the next request comes; None: none is due until one finishes, if ever."""
        ...

    def take(self) -> LabRequest:
        """Remove and return the next request."""
        ...

    def finished(self, now_us: int) -> None:
        """A reply ended: a closed-loop client may send again."""
        ...

    def untaken(self) -> int:
        """Scheduled requests that were never taken; they count as missed."""
        ...


class OpenLoop:
    """A schedule fixed before the run: arrivals do not wait for replies."""

    __slots__ = ("_index", "_requests")

    def __init__(self, requests: Sequence[LabRequest]) -> None:
        self._requests = sorted(requests, key=lambda request: request.arrival_us)
        self._index = 0

    def next_arrival_us(self) -> int | None:
        if self._index == len(self._requests):
            return None
        return self._requests[self._index].arrival_us

    def take(self) -> LabRequest:
        request = self._requests[self._index]
        self._index += 1
        return request

    def finished(self, now_us: int) -> None:
        """Nothing to do: nobody waits."""

    def untaken(self) -> int:
        return len(self._requests) - self._index


class ClosedLoop:
    """`clients` that each send, wait for the whole reply, think, and send again."""

    __slots__ = ("_due_us", "_outputs", "_prompts", "_random", "_think_us")

    def __init__(
        self, random: RandomSource, *, clients: int, prompts: LengthDraw, outputs: LengthDraw, think_us: int = 0
    ) -> None:
        if clients < 1:
            raise ValueError(f"a closed loop needs at least one client, not {clients}")
        self._random, self._prompts, self._outputs, self._think_us = random, prompts, outputs, think_us
        self._due_us = [0] * clients

    def next_arrival_us(self) -> int | None:
        return self._due_us[0] if self._due_us else None

    def take(self) -> LabRequest:
        due_us = heapq.heappop(self._due_us)
        output_tokens = self._outputs(self._random)
        return LabRequest(due_us, self._prompts(self._random), output_tokens)

    def finished(self, now_us: int) -> None:
        heapq.heappush(self._due_us, now_us + self._think_us)

    def untaken(self) -> int:
        return 0
