"""When prefill may run beside decode: mix while there is room, drain above a watermark, mix again below a lower one.

Stage MIXED fills iterations with prefill beside decode. Above `enter_usage` with more pending prompt tokens than eviction
could free, every further prefill would soon force a retraction: stage DRAIN then runs decode alone until usage falls below
`leave_usage`. The gap between the two is hysteresis; without it the stage flips each pass. Usage excludes what eviction may
take, else a warm prefix cache reads as full for ever.

Draining never starts while a chunked prompt is half done (it holds a row) or nothing runs (nothing would ever leave), and it
ends after `maximum_drain_iterations`, so that long replies cannot starve the queue.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never


class Stage(StrEnum):
    """What the next iteration may hold."""

    MIXED = "mixed"
    DRAIN = "drain"


class Reason(StrEnum):
    """Why the stage is what it is; a value for logs and metric labels."""

    ROOM = "room"
    EVICTION_SUFFICES = "eviction_suffices"
    HALF_DONE_PROMPT = "half_done_prompt"
    NOTHING_RUNS = "nothing_runs"
    NOTHING_WAITS = "nothing_waits"
    POOL_FULL = "pool_full"
    STILL_FULL = "still_full"
    DRAINED = "drained"
    STARVATION_BOUND = "starvation_bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoStageSettings:
    """Watermarks as fractions of the KV pool. Raises ValueError if they leave no hysteresis."""

    enter_usage: float = 0.90
    leave_usage: float = 0.80
    maximum_drain_iterations: int = 2000

    def __post_init__(self) -> None:
        if not 0 < self.leave_usage < self.enter_usage <= 1:
            raise ValueError(
                "The watermarks must satisfy 0 < leave_usage < enter_usage <= 1; "
                f"they are {self.leave_usage:g} and {self.enter_usage:g}."
            )
        if self.maximum_drain_iterations < 1:
            raise ValueError(f"maximum_drain_iterations must be at least 1, and is {self.maximum_drain_iterations}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """What the scheduler knows before an iteration. Equal on every rank, hence so is the decision."""

    total_tokens: int
    available_tokens: int
    """Free without eviction."""
    evictable_tokens: int
    """Cached and held by no running request."""
    pending_tokens: int
    """Uncached prompt tokens that wait."""
    running_requests: int
    half_done_prompt: bool = False

    @property
    def usage(self) -> float:
        """Share of the pool that running requests hold."""
        return 1 - (self.available_tokens + self.evictable_tokens) / self.total_tokens


@dataclass(frozen=True, slots=True)
class StageState:
    """The stage, why, and for how many iterations draining has lasted (0 when mixing)."""

    stage: Stage = Stage.MIXED
    reason: Reason = Reason.ROOM
    drain_iterations: int = 0


def next_stage(state: StageState, pool: PoolState, settings: TwoStageSettings) -> StageState:
    """The stage of the next iteration. Pure; call once per iteration."""
    blocked = _never_drain(pool)
    if blocked is not None:
        return StageState(Stage.MIXED, blocked)
    match state.stage:
        case Stage.MIXED:
            return _while_mixing(pool, settings)
        case Stage.DRAIN:
            return _while_draining(state, pool, settings)
        case _ as unreachable:
            assert_never(unreachable)


def _never_drain(pool: PoolState) -> Reason | None:
    if pool.half_done_prompt:
        return Reason.HALF_DONE_PROMPT
    if pool.running_requests == 0:
        return Reason.NOTHING_RUNS
    if pool.pending_tokens == 0:
        return Reason.NOTHING_WAITS
    return None


def _while_mixing(pool: PoolState, settings: TwoStageSettings) -> StageState:
    if pool.usage <= settings.enter_usage:
        return StageState(Stage.MIXED, Reason.ROOM)
    if pool.pending_tokens <= pool.evictable_tokens:
        return StageState(Stage.MIXED, Reason.EVICTION_SUFFICES)
    return StageState(Stage.DRAIN, Reason.POOL_FULL, 1)


def _while_draining(state: StageState, pool: PoolState, settings: TwoStageSettings) -> StageState:
    if pool.usage < settings.leave_usage:
        return StageState(Stage.MIXED, Reason.DRAINED)
    if state.drain_iterations >= settings.maximum_drain_iterations:
        return StageState(Stage.MIXED, Reason.STARVATION_BOUND)
    return StageState(Stage.DRAIN, Reason.STILL_FULL, state.drain_iterations + 1)
