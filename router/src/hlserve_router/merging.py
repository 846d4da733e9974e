"""One metrics page, and one document, out of those of several workers. Pure."""

import re
from typing import Any, Final

SAME_EVERYWHERE: Final = frozenset(
    {
        "hlserve_router_endpoint_up", "hlserve_router_endpoint_breaker", "hlserve_router_table_info", "hlserve_router_keys",
        "hlserve_router_table_applied_timestamp_seconds", "hlserve_router_pool_endpoints", "hlserve_router_zombie_requests",
        "hlserve_router_source_age_seconds", "hlserve_router_limits_routers",
    }
)  # fmt: skip
"""Gauges that every worker sees alike: the largest is shown. Everything else is summed."""
WORST: Final = frozenset({"hlserve_router_limits_store_up"})
"""Gauges of which the smallest is shown: one worker that has a problem is a problem."""
SUMMED_KEYS: Final = frozenset(
    {"inFlight", "inFlightTokens", "sessions", "queued", "queuedBytes", "inFlightByClass", "draining", "backlogTokens"}
)
AGREED_KEYS: Final = frozenset({"generations"})
"""What counts only if every worker has the same: one that lags behind might still take a key that another one refuses."""
SHARED_KEYS: Final = frozenset({"draining"})
"""Maps of which only the keys count that every worker has: an endpoint drains once all of them know it."""


def samples(page: str) -> dict[str, float]:
    """Series of a metrics page: name with labels -> value."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            found[series] = float(value)
    return found


def is_counter(series: str) -> bool:
    """True for series that only rise."""
    name = series.partition("{")[0]
    return name.endswith(("_total", "_bucket", "_count", "_sum"))


def added(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """The counters of two processes together."""
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}


def risen(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """The counters of one process by two scrapes, whichever was answered first: counters only rise."""
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in {**one, **other}}


def merge_pages(pages: list[str], former: list[dict[str, float]]) -> str:
    """One page out of the workers' pages and the counters of processes that are gone. Help and order as in the pages."""
    heads: dict[str, list[str]] = {}
    values: dict[str, dict[str, float]] = {}
    for page in pages:
        family = ""
        for line in page.splitlines():
            if line.startswith("# HELP "):
                family = line.split(" ", 3)[2]
                heads.setdefault(family, [])
            if line.startswith("#"):
                if line not in heads[family]:
                    heads[family].append(line)
                continue
            series, _, text = line.rpartition(" ")
            _add(values.setdefault(family, {}), family, series, float(text))
    for counters in former:
        for series, value in counters.items():
            name = series.partition("{")[0]
            family = name if name in heads else re.sub(r"_(bucket|count|sum)$", "", name)
            _add(values.setdefault(family, {}), family, series, value)
    lines: list[str] = []
    for family, head in heads.items():
        lines += head
        lines += [f"{series} {value!r}" for series, value in values.get(family, {}).items()]
    return "\n".join(lines) + "\n"


def _add(series_of: dict[str, float], family: str, series: str, value: float) -> None:
    if family in WORST:
        series_of[series] = min(series_of.get(series, value), value)
    elif family in SAME_EVERYWHERE:
        series_of[series] = max(series_of.get(series, value), value)
    else:
        series_of[series] = series_of.get(series, 0.0) + value


def merge(one: Any, other: Any, *, summed: bool = False) -> Any:
    """One document out of two workers': what each has by itself is summed, what all see alike is the first one's."""
    if isinstance(one, dict) and isinstance(other, dict):
        merged = {key: _merge_key(key, one[key], other[key], summed=summed) for key in one if key in other}
        return {**one, **other, **merged}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [merge(mine, theirs, summed=summed) for mine, theirs in zip(one, other, strict=True)]
    number = isinstance(one, int | float) and isinstance(other, int | float) and not isinstance(one, bool)
    if summed and number:
        return one + other
    if one is None or (number and not summed and other > one):
        return other
    return one


def _merge_key(key: str, one: Any, other: Any, *, summed: bool) -> Any:
    if key in AGREED_KEYS:
        return agreed(one, other)
    if key in SHARED_KEYS and isinstance(one, dict) and isinstance(other, dict):
        return {name: merge(one[name], other[name], summed=True) for name in one if name in other}
    return merge(one, other, summed=summed or key in SUMMED_KEYS)


def agreed(one: Any, other: Any) -> Any:
    """What two workers say alike; None in the place of what they do not."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: agreed(one.get(name), other.get(name)) for name in [*one, *(n for n in other if n not in one)]}
    return one if one == other else None
