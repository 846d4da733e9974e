"""Nearest-rank percentiles."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_capacity.percentiles import nearest_rank, nearest_rank_weighted


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([15, 20, 35, 40, 50], 30, 20),
        ([15, 20, 35, 40, 50], 40, 20),
        ([15, 20, 35, 40, 50], 50, 35),
        ([15, 20, 35, 40, 50], 100, 50),
        ([7], 1, 7),
        (list(range(1, 21)), 95, 19),
        (list(range(1, 101)), 7, 7),
        ([], 50, None),
    ],
    ids=["30th of five", "40th is a whole rank", "median", "maximum", "one value", "19th of 20", "7th of 100", "none"],
)
def test_nearest_rank_takes_an_observed_value(values: list[int], percent: float, expected: int | None) -> None:
    assert nearest_rank(values, percent) == expected


@given(values=st.lists(st.integers(0, 50), min_size=1), percent=st.integers(1, 100))
def test_weighted_and_plain_agree_with_the_definition(values: list[int], percent: int) -> None:
    rank = math.ceil(percent * len(values) / 100)
    expected = sorted(values)[rank - 1]
    assert nearest_rank(values, percent) == expected
    assert nearest_rank_weighted(Counter(values), percent) == expected


def test_an_empty_histogram_has_no_percentile() -> None:
    assert nearest_rank_weighted({}, 50) is None


@pytest.mark.parametrize("percent", [0, -1, 100.1])
def test_percentiles_outside_the_range_are_refused(percent: float) -> None:
    with pytest.raises(ValueError, match=r"not in \(0, 100\]"):
        nearest_rank([1], percent)
