"""Loads for the lab: requests with arrival times and lengths, drawn from a generator that the caller passes in."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from hlserve_capacity.units import US_PER_SECOND


class RandomSource(Protocol):
    """The part of `random.Random` that loads draw from; passing one in keeps this package free of hidden randomness."""

    def expovariate(self, lambd: float, /) -> float: ...
    def lognormvariate(self, mu: float, sigma: float, /) -> float: ...
    def randint(self, a: int, b: int, /) -> int: ...


LengthDraw = Callable[[RandomSource], int]
"""Draws one length in tokens, at least 1 for outputs."""


@dataclass(frozen=True, slots=True)
class LabRequest:
    """One request: when it arrives, how long its prompt is, how many tokens its reply has."""

    arrival_us: int
    prompt_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        if self.arrival_us < 0 or self.prompt_tokens < 0:
            raise ValueError(f"{self}: arrival and prompt cannot be negative")
        if self.output_tokens < 1:
            raise ValueError(f"{self}: a reply has at least one token")


@dataclass(frozen=True, slots=True)
class Burst:
    """Arrivals run `factor` times faster from `start_seconds` until `end_seconds`."""

    start_seconds: float
    end_seconds: float
    factor: float

    def __post_init__(self) -> None:
        if not 0 <= self.start_seconds < self.end_seconds or self.factor <= 0:
            raise ValueError("a burst needs 0 <= start < end and a factor above 0")


def constant(tokens: int) -> LengthDraw:
    """Always the same length; draws nothing."""

    def draw(_: RandomSource) -> int:
        return tokens

    return draw


def uniform(low: int, high: int) -> LengthDraw:
    """Any length from `low` to `high`, both included."""
    if low > high:
        raise ValueError(f"uniform lengths need low <= high, not {low} > {high}")

    def draw(random: RandomSource) -> int:
        return random.randint(low, high)

    return draw


def exponential(mean_tokens: float) -> LengthDraw:
    """Exponential, rounded up to whole tokens (so the mean of whole tokens is about half a token higher)."""
    if mean_tokens <= 0:
        raise ValueError(f"the mean length is {mean_tokens}, it must be above 0")

    def draw(random: RandomSource) -> int:
        return max(1, math.ceil(random.expovariate(1 / mean_tokens)))

    return draw


def lognormal(median_tokens: float, p99_tokens: float) -> LengthDraw:
    """Lognormal through two quantiles: σ = ln(p99/median) / 2.3263, mean = median · exp(σ²/2)."""
    if not 0 < median_tokens < p99_tokens:
        raise ValueError(f"a long tail needs 0 < median < p99, not {median_tokens} and {p99_tokens}")
    mu, sigma = math.log(median_tokens), lognormal_sigma(median_tokens, p99_tokens)

    def draw(random: RandomSource) -> int:
        return max(1, round(random.lognormvariate(mu, sigma)))

    return draw


def empirical(observed_tokens: Sequence[int]) -> LengthDraw:
    """Any of the observed lengths, each as likely as the others."""
    if not observed_tokens:
        raise ValueError("an empirical length needs at least one observation")
    values = tuple(observed_tokens)

    def draw(random: RandomSource) -> int:
        return values[random.randint(0, len(values) - 1)]

    return draw


def lognormal_sigma(median_tokens: float, p99_tokens: float) -> float:
    """σ of the lognormal with this median and 99th percentile."""
    return math.log(p99_tokens / median_tokens) / _Z99


_Z99 = 2.3263478740408408


def open_loop(
    random: RandomSource,
    *,
    rate_per_second: float,
    seconds: float,
    prompts: LengthDraw,
    outputs: LengthDraw,
    burst: Burst | None = None,
) -> list[LabRequest]:
    """Poisson arrivals over `seconds`; for each request the gap, the reply and the prompt are drawn, in this order."""
    return list(_poisson(random, rate_per_second, seconds, prompts, outputs, burst))


def _poisson(
    random: RandomSource,
    rate_per_second: float,
    seconds: float,
    prompts: LengthDraw,
    outputs: LengthDraw,
    burst: Burst | None,
) -> Iterator[LabRequest]:
    if rate_per_second <= 0:
        raise ValueError(f"the arrival rate is {rate_per_second} per second, it must be above 0")
    now = 0.0
    while True:
        inside = burst is not None and burst.start_seconds <= now < burst.end_seconds
        now += random.expovariate(rate_per_second * (burst.factor if burst and inside else 1.0))
        if now >= seconds:
            return
        output_tokens = outputs(random)
        yield LabRequest(round(now * US_PER_SECOND), prompts(random), output_tokens)
