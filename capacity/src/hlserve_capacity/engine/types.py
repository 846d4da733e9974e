"""The values that go into and come out of the simulated engine. Time is integer microseconds on one monotonic clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Chunk(Protocol):
    """A piece of one prompt in one iteration."""

    @property
    def new_tokens(self) -> int: ...
    @property
    def prefix_tokens(self) -> int: ...


class StepCost(Protocol):
    """What one iteration costs. `hlserve_capacity.roofline` and the lab's linear model both provide it."""

    @property
    def pool_tokens(self) -> int:
        """KV tokens that fit on one replica."""
        ...

    def step_us(self, decode_sequences: int, decode_context_tokens: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Microseconds of one iteration: `chunks` are (new tokens, tokens already in KV before them)."""
        ...


class SchedulePolicy(StrEnum):
    """Order of the waiting queue (SGLang's names)."""

    FCFS = "fcfs"
    LPM = "lpm"


class RejectReason(StrEnum):
    """Why the engine refused a request at submission."""

    QUEUE_FULL = "queue_full"
    TOO_LONG = "too_long"
    DRAINING = "draining"


class FinishReason(StrEnum):
    """How a request that was accepted ended."""

    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Flags of one engine replica, in SGLang's terms.

    `chunked_prefill_size` None: no chunking bound (-1), and as in SGLang no mixing either. `throughput_mode` is the scheduling
    part of HlServe's human-less mode: whole prompts, `max_prefill_tokens` a step, mixed with decoding. Its other parts are flags
    of their own, so that each can be measured alone: `kv_aware_admission` keeps the active sessions inside `admission_fraction`
    of the pool, `two_stage` stops prefill above its watermark, `schedule_policy` LPM.
    """

    pool_tokens: int
    context_length: int = 131_072
    max_running_requests: int = 64
    max_queued_requests: int | None = None
    chunked_prefill_size: int | None = 8192
    max_prefill_tokens: int = 16_384
    mixed_chunk: bool = False
    schedule_policy: SchedulePolicy = SchedulePolicy.FCFS
    priority_scheduling: bool = False
    low_priority_values_first: bool = False
    priority_retraction: bool = False
    """Retract the least urgent request first (SGLang: `--retraction-policy priority`), else the one with the shortest reply so far."""
    throughput_mode: bool = False
    kv_aware_admission: bool = False
    admission_fraction: float = 0.9
    session_idle_us: int = 5_000_000
    two_stage: bool = False
    naive_two_stage: bool = False
    two_stage_enter: float = 0.9
    two_stage_leave: float = 0.8
    reserve_output: bool = True
    """Reserve the whole reply's KV at admission. False: admit by SGLang's ratio of new tokens, and retract when the pool is full."""
    new_token_ratio: float = 0.7
    lpm_max_waiting: int | None = None
    """Above this many waiting requests LPM falls back to FCFS (SGLang: 128); None: never."""
    max_age_us: int | None = None
    """LPM's age bound: a request that waited longer goes first; None: none."""
    lpm_max_overtakes: int | None = None
    """LPM's bound in requests: one that was overtaken by as many goes first; None: none."""
    session_overlap_fraction: float = 0.9
    """A prompt continues a session if it begins with at least this share of the former prompt."""
    chunk_boundary_us: float = 0.0
    """δ: extra host time per chunk boundary."""
    disable_radix_cache: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One request. `prompt` holds token ids; `output_tokens` is how many tokens the reply will have (forced)."""

    rid: str
    prompt: Sequence[int]
    output_tokens: int
    priority: int = 0
    reply: Sequence[int] | None = None
    """Token ids of the reply, so that it can be a prefix of a later prompt; None: the reply's KV is not reusable."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is in the engine."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The request was not taken."""

    reason: RejectReason
    message: str


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration as planned: it starts now and ends `duration_us` later."""

    start_us: int
    duration_us: int
    decode_sequences: int
    decode_context_tokens: int
    chunks: tuple[tuple[str, int, int], ...]
    """(rid, new tokens, prefix tokens) of each prefill piece."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a reply was made, at the end of the step. `index` counts from 0; `cached_tokens` is set on index 0."""

    rid: str
    index: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The request left the engine."""

    rid: str
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Retracted:
    """The request lost its KV and went back to the queue; its tokens so far stay delivered."""

    rid: str


EngineEvent = Token | Finished | Retracted


@dataclass(slots=True)
class EngineTotals:
    """Counters since start. Tokens unless said."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0
    finished: int = 0
    aborted: int = 0
    retractions: int = 0
    steps: int = 0
    mixed_steps: int = 0
    prefill_steps: int = 0
    decode_steps: int = 0
    stage_flips: int = 0
    busy_us: int = 0
    cost_us: dict[str, float] = field(default_factory=dict)
    """Busy time by kind of step (decode, prefill, mixed), and chunk_boundary: the part of it that δ took."""


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """State between two steps."""

    running: int
    queued: int
    kv_used_tokens: int
    """KV of running requests (resident)."""
    kv_cached_tokens: int
    """KV that no running request holds and eviction may take."""
    token_usage: float
    pending_prefill_tokens: int
    held_sessions: int


class Engine(Protocol):
    """The simulated scheduler as its drivers use it. Implemented by `hlserve_capacity.engine.scheduler.Scheduler`.

    Driver loop: `submit`/`abort` at any time between steps; `begin_step` plans an iteration (None: nothing to do); when
    `step.duration_us` have passed, `end_step` delivers its events. A request submitted while a step runs waits for the next.
    """

    def submit(self, request: EngineRequest, now_us: int) -> Accepted | Refused: ...
    def abort(self, rid: str, now_us: int) -> bool:
        """Remove a request by its exact id. False: not here.

        Between steps it is gone at once and no event follows. During a step it leaves, and frees its KV, at the step's end:
        `end_step` then delivers `Finished(rid, ABORT)` and none of its tokens.
        """
        ...

    def begin_step(self, now_us: int) -> Step | None: ...
    def end_step(self, now_us: int) -> list[EngineEvent]: ...
    def next_wakeup_us(self, now_us: int) -> int | None:
        """When `begin_step` may succeed although nothing happens before (an idle session's hold expires); None: never."""
        ...

    def flush_cache(self) -> bool: ...
    def gauges(self) -> EngineGauges: ...
    @property
    def totals(self) -> EngineTotals: ...
