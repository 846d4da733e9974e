"""Numbers as text, the same on the terminal and in the page."""

from collections.abc import Mapping

from hlserve_bench.report.build import NO_POOL
from hlserve_bench.report.model import Percentiles

MISSING = "–"


def milliseconds(value: float) -> str:
    """Milliseconds with three significant digits, as seconds from 1 s up."""
    if value >= 100_000:
        return f"{value / 1000:.0f} s"
    if value >= 10_000:
        return f"{value / 1000:.1f} s"
    if value >= 1000:
        return f"{value / 1000:.2f} s"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"


def latency(values: Percentiles | None) -> str:
    """p50 / p95 / p99; with "≥" where unfinished requests make them lower bounds."""
    if values is None:
        return MISSING
    sign = "≥ " if values.lower_bounds else ""
    return sign + " / ".join(milliseconds(value) for value in (values.p50, values.p95, values.p99))


def rate(value: float | None) -> str:
    """A rate with as many digits as it deserves."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def count(values: Mapping[str, int]) -> str:
    """`name count, name count`. The pool `none` is said in words: its requests had no answer when the run ended."""
    return ", ".join(f"{'no pool yet' if name == NO_POOL else name} {number:,}" for name, number in values.items())
