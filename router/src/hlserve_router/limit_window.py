"""A sum over the last minute. Pure; callers pass the time."""

from typing import Final

STEPS: Final = 61
"""One-second steps that count: the last 60 s touch 61 of them."""


class SlidingMinute:
    """A sum over the last 60 s in one-second steps: in no 60 s more than the limit, also not around a step's edge."""

    __slots__ = ("_newest", "_sums", "total")

    def __init__(self) -> None:
        self._sums = [0] * STEPS
        self._newest = 0
        self.total = 0

    def advance(self, now: float) -> None:
        """Forgets what is older. `now`: monotonic seconds."""
        second = int(now)
        gap = second - self._newest
        if gap <= 0:
            return
        if gap >= STEPS:
            self._sums = [0] * STEPS
            self.total = 0
        else:
            for step in range(self._newest + 1, second + 1):
                slot = step % STEPS
                self.total -= self._sums[slot]
                self._sums[slot] = 0
        self._newest = second

    def add(self, now: float, amount: int, at: float | None = None) -> None:
        """Adds `amount` (may be negative) to the step of `at`, or of now if `at` is unset or forgotten."""
        self.advance(now)
        second = self._newest
        if at is not None and second - int(at) < STEPS:
            second = int(at)
        self._sums[second % STEPS] += amount
        self.total += amount

    def seconds_until(self, room: int, limit: int, now: float) -> float:
        """Seconds until `room` fits under `limit`; 61 if it never does."""
        total = self.total
        for step in range(self._newest - STEPS + 1, self._newest + 1):
            total -= self._sums[step % STEPS]
            if total + room <= limit:
                return max(0.0, step + STEPS - now)
        return float(STEPS)
