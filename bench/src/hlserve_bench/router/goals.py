"""What the router must reach, as data, and whether a run reached it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hlserve_bench.router.figures import ByRound, Estimate, Figures, estimate, inverse, lowest, ratio

OURS: Final = ("hlserve", "hlserve-compiled")
"""The same program from its source and compiled. A goal is asked of both."""
RUST: Final = ("sglang-router", "smg", "vllm-router")
CONTROL: Final = "control"


class Verdict(StrEnum):
    """How a goal stands."""

    MET = "met"
    MISSED = "missed"
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on one figure."""

    ours: str
    figure: str
    against: str
    bound: float
    at_least: bool
    measured: Callable[[Figures], Estimate | None]
    unit: str = "×"

    @property
    def wanted(self) -> str:
        """The bound in words."""
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}{'' if self.unit == '×' else ' '}{self.unit}"

    def verdict(self, found: Estimate | None) -> Verdict:
        """By the median over the rounds."""
        if found is None:
            return Verdict.UNKNOWN
        return (
            Verdict.MET
            if (found.median >= self.bound if self.at_least else found.median <= self.bound)
            else Verdict.MISSED
        )


Reading = Callable[[Figures, str], ByRound]


def _value(case: str, name: str) -> Reading:
    return lambda figures, candidate: figures.values(candidate, case, name)


def _work_per_cpu(case: str, name: str) -> Reading:
    return lambda figures, candidate: inverse(figures.values(candidate, case, name))


def _added(case: str, name: str) -> Reading:
    return lambda figures, candidate: figures.added(candidate, case, name)


def _compare(ours: str, figure: str, reading: Reading, other: str, bound: float, *, at_least: bool = True) -> Goal:
    return Goal(ours, figure, other, bound, at_least, lambda found: ratio(reading(found, ours), reading(found, other)))


_REQUESTS = _value("reply-64", "finished_per_second")
_CHUNKS = _work_per_cpu("stream-256", "cpu_us_per_chunk")
_DELAY = _value("stream-256", "delay_p99_us")

_BODIES = _value("body-1m", "finished_per_second")


def _of_build(ours: str) -> tuple[Goal, ...]:
    return (
        _compare(ours, "requests/s, 64 connections", _REQUESTS, "sglang-router", 2.0),
        _compare(ours, "requests/s, 64 connections", _REQUESTS, "envoy", 1.0),
        _compare(ours, "requests/s, 64 connections", _REQUESTS, CONTROL, 0.9),
        _compare(ours, "chunks per CPU second, 256 streams × 20 ms", _CHUNKS, "sglang-router", 1.0),
        _compare(ours, "chunks per CPU second, 256 streams × 20 ms", _CHUNKS, "envoy", 1.05),
        _compare(ours, "chunks per CPU second, 256 streams × 20 ms", _CHUNKS, CONTROL, 0.95),
        _compare(ours, "added TTFT, median", _added("ttft", "ttft_p50_us"), "envoy", 0.8, at_least=False),
        Goal(
            ours, "p99 chunk delay, 256 streams × 20 ms", "the best Rust router", 1.1, False,
            lambda found: ratio(_DELAY(found, ours), lowest([_DELAY(found, name) for name in RUST])),
        ),
        Goal(
            ours, "memory for each of 1,000 open streams, fresh process", "", 15, False,
            lambda found: estimate(found.values(ours, "stream-1000", "kib_per_stream")), unit="KiB",
        ),
        _compare(ours, "requests/s with 1 MiB bodies, 4 connections", _BODIES, "sglang-router", 3.0),
    )  # fmt: skip


GOALS: Final = (
    *(goal for ours in OURS for goal in _of_build(ours)),
    _compare(
        "hlserve-2", "CPU per request with two workers", _value("reply-64", "cpu_us_per_request"), "hlserve-1-free", 1.05,
        at_least=False,
    ),
    Goal(
        "hlserve-2", "share of 64 connections on the fuller of two workers, worst of all", "", 60, False,
        lambda found: _worst_share(found), unit="%",
    ),
    _compare("hlserve-asgi", "requests/s, 64 connections", _REQUESTS, "sglang-router", 1.3),
)  # fmt: skip


def _worst_share(figures: Figures) -> Estimate | None:
    """The worst of all rounds counts, as an unlucky spread is what the bound is about."""
    shares = figures.values("hlserve-2", "spread", "largest_share")
    if not shares:
        return None
    worst = 100 * max(shares.values())
    return Estimate(worst, 100 * min(shares.values()), worst, len(shares))
