"""Rows to figures: medians over rounds with their range; ratios are taken within each round, then their median."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hlserve_bench.router.candidates import DIRECT
from hlserve_bench.router.rows import Row

ByRound = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Median of the rounds, and the lowest and the highest of them."""

    median: float
    low: float
    high: float
    rounds: int


def estimate(values: ByRound) -> Estimate | None:
    """None if nothing was measured."""
    found = list(values.values())
    return Estimate(median(found), min(found), max(found), len(found)) if found else None


def ratio(ours: ByRound, theirs: ByRound) -> Estimate | None:
    """Ours over theirs, round by round: neighbours on the machine disturb both alike."""
    return estimate({number: ours[number] / theirs[number] for number in ours if theirs.get(number)})


def inverse(values: ByRound) -> ByRound:
    """One over each: work done for a unit of time, out of time for a unit of work."""
    return {number: 1 / value for number, value in values.items() if value}


def lowest(many: Sequence[ByRound]) -> ByRound:
    """In each round the lowest of several candidates."""
    rounds = {number for values in many for number in values}
    return {number: min(values[number] for values in many if number in values) for number in rounds}


class Figures:
    """All rows of a run, by candidate, case and value."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._found: dict[tuple[str, str, str], dict[int, float]] = {}
        for row in rows:
            for name, value in row.values.items():
                self._found.setdefault((row.candidate, row.case, name), {})[row.round] = value
        self.candidates = tuple(dict.fromkeys(row.candidate for row in rows))
        self.rounds = len({row.round for row in rows})
        self.failures = tuple(row for row in rows if row.failure is not None)

    def values(self, candidate: str, case: str, name: str) -> ByRound:
        """By round; empty if it was not measured."""
        return self._found.get((candidate, case, name), {})

    def added(self, candidate: str, case: str, name: str) -> ByRound:
        """What the candidate adds to the same figure without any proxy, in each round; never below zero."""
        floor = self.values(DIRECT, case, name)
        found = self.values(candidate, case, name)
        return {number: max(0.0, value - floor[number]) for number, value in found.items() if number in floor}

    def errors(self, candidate: str) -> float:
        """Broken and refused requests over all cases."""
        return sum(
            sum(values.values())
            for (who, _, name), values in self._found.items()
            if who == candidate and name == "errors"
        )
