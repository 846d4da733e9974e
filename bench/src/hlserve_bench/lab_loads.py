"""What the words of `hlserve lab` mean: lengths, bursts, schedulers, and the loads they make."""

import math
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from hlserve_capacity.lab import golden
from hlserve_capacity.lab.arrivals import ClosedLoop
from hlserve_capacity.lab.batching import Batching, Chunked, Continuous, Static
from hlserve_capacity.lab.records import LabRun
from hlserve_capacity.lab.scheduler import run_closed_loop, run_open_loop
from hlserve_capacity.lab.workload import (
    Burst,
    LengthDraw,
    constant,
    exponential,
    lognormal,
    open_loop,
    uniform,
)
from hlserve_capacity.linear import LinearCost
from hlserve_capacity.units import US_PER_SECOND


class Scheduler(StrEnum):
    """The lab's three ways to fill slots."""

    STATIC = "static"
    CONTINUOUS = "continuous"
    CHUNKED = "chunked"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoad:
    """Poisson arrivals."""

    rate_per_second: float
    seconds: float
    prompts: LengthDraw
    outputs: LengthDraw
    burst: Burst | None
    drain: bool

    @property
    def label(self) -> str:
        return f"{self.rate_per_second:g} rps"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoad:
    """Clients that wait for their reply."""

    clients: int
    seconds: float
    prompts: LengthDraw
    outputs: LengthDraw
    think_ms: float

    @property
    def label(self) -> str:
        return f"N={self.clients}"


@dataclass(frozen=True, slots=True)
class GoldenLoad:
    """A load without random numbers."""

    run: golden.GoldenRun

    @property
    def label(self) -> str:
        return self.run.value


Load = OpenLoad | ClosedLoad | GoldenLoad


def play(load: Load, batching: Batching, cost: LinearCost, seed: int) -> LabRun:
    """Run one load with one seed."""
    match load:
        case GoldenLoad(run):
            return run_open_loop(golden.requests(run), batching, cost)
        case ClosedLoad():
            loop = ClosedLoop(
                Random(seed),
                clients=load.clients,
                prompts=load.prompts,
                outputs=load.outputs,
                think_us=round(load.think_ms * 1000),
            )
            return run_closed_loop(loop, batching, cost, horizon_us=round(load.seconds * US_PER_SECOND))
        case OpenLoad():
            requests = open_loop(
                Random(seed),
                rate_per_second=load.rate_per_second,
                seconds=load.seconds,
                prompts=load.prompts,
                outputs=load.outputs,
                burst=load.burst,
            )
            horizon_us = None if load.drain else round(load.seconds * US_PER_SECOND)
            return run_open_loop(requests, batching, cost, horizon_us=horizon_us)


def batching_of(scheduler: Scheduler, max_batch: int, budget_tokens: int) -> Batching:
    """The batching that a scheduler's name and the numbers beside it mean."""
    match scheduler:
        case Scheduler.STATIC:
            return Static(max_batch)
        case Scheduler.CONTINUOUS:
            return Continuous(max_batch)
        case Scheduler.CHUNKED:
            return Chunked(max_batch, budget_tokens)


def parse_length(text: str) -> LengthDraw:
    """`200`, `50-350`, `exp:200` or `lognormal:150,1500` (median, p99). Raises ValueError in one sentence."""
    kind, _, rest = text.partition(":")
    try:
        match kind, rest:
            case "exp", _:
                return exponential(_tokens(rest))
            case "lognormal", _:
                median, p99 = rest.split(",")
                return lognormal(_tokens(median), _tokens(p99))
            case _, "" if "-" in kind:
                low, high = kind.split("-")
                return _uniform(_whole(low), _whole(high))
            case _, "":
                return _constant(_whole(kind))
    except ValueError as error:
        raise ValueError(f"{text!r} is no length: {error}") from error
    raise ValueError(f"{text!r} is no length: write 200, 50-350, exp:200 or lognormal:150,1500 (median, p99)")


def _tokens(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is no number of tokens")
    return number


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("write 200, 50-350, exp:200 or lognormal:150,1500 (median, p99)") from None


def _constant(tokens: int) -> LengthDraw:
    if tokens < 0:
        raise ValueError("a length cannot be negative")
    return constant(tokens)


def _uniform(low: int, high: int) -> LengthDraw:
    if low < 0:
        raise ValueError("a length cannot be negative")
    return uniform(low, high)


def parse_burst(text: str) -> Burst:
    """`20,30,2.5`: from second 20 to 30, 2.5 times as many arrivals. Raises ValueError in one sentence."""
    parts = text.split(",")
    if len(parts) != 3:
        raise ValueError(f"{text!r} is no burst: write START,END,FACTOR, such as 20,30,2.5")
    try:
        start, end, factor = (float(part) for part in parts)
        if not all(map(math.isfinite, (start, end, factor))):
            raise ValueError("its numbers must be finite")
        return Burst(start, end, factor)
    except ValueError as error:
        raise ValueError(f"{text!r} is no burst: {error}") from error
