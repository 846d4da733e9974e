"""Nearest-rank percentiles: an observed value, never an interpolation."""

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

Number = TypeVar("Number", int, float)


def _check(percent: float) -> None:
    if not 0 < percent <= 100:
        raise ValueError(f"percentile {percent} is not in (0, 100]")


def nearest_rank(values: Iterable[Number], percent: float) -> Number | None:
    """The ⌈percent/100 · n⌉-th smallest of n values; None if there is none.

    Raises ValueError for a percentile outside (0, 100].
    """
    _check(percent)
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(percent * len(ordered) / 100) - 1)]


def nearest_rank_weighted(counts: Mapping[int, int], percent: float) -> int | None:
    """The same over a histogram of exact values (value to how often it occurred)."""
    _check(percent)
    total = sum(counts.values())
    if total <= 0:
        return None
    rank = max(1, math.ceil(percent * total / 100))
    for value in sorted(counts):
        rank -= counts[value]
        if rank <= 0:
            return value
    raise AssertionError("unreachable: ranks end at the total")
