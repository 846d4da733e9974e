"""Helpers for tests of engines: a simple cost and a driver that runs an engine to its end. Pure, like the engine."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hlserve_capacity.engine.scheduler import Scheduler
from hlserve_capacity.engine.types import Accepted, EngineRequest, Finished, FinishReason, Refused, Step, Token


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """step = base + row·decode rows + context·K + token·prefill tokens, in microseconds."""

    pool_tokens: int = 10_000
    base_us: float = 8_000
    row_us: float = 300
    context_us: float = 0.0
    token_us: float = 4

    def step_us(self, decode_sequences: int, decode_context_tokens: int, chunks: Sequence[tuple[int, int]]) -> float:
        prefill = sum(new for new, _ in chunks)
        return (
            self.base_us
            + self.row_us * decode_sequences
            + self.context_us * decode_context_tokens
            + self.token_us * prefill
        )


@dataclass(slots=True)
class Served:
    """What one request got."""

    token_us: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    end: FinishReason | None = None
    end_us: int | None = None
    refused: Refused | None = None


@dataclass(slots=True)
class EngineDriver:
    """Runs an engine in virtual time and keeps what each request got."""

    engine: Scheduler
    now_us: int = 0
    served: dict[str, Served] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def submit(self, *requests: EngineRequest) -> None:
        """Submit now."""
        for request in requests:
            answer = self.engine.submit(request, self.now_us)
            self.served[request.rid] = Served(refused=None if isinstance(answer, Accepted) else answer)

    def step(self) -> bool:
        """One iteration, or a jump to the next wake-up. False: the engine has nothing to do."""
        step = self.engine.begin_step(self.now_us)
        if step is None:
            wakeup_us = self.engine.next_wakeup_us(self.now_us)
            if wakeup_us is None:
                return False
            self.now_us = max(wakeup_us, self.now_us + 1)
            return True
        self.finish_step(step)
        return True

    def finish_step(self, step: Step) -> None:
        """Let a begun step end and take its events."""
        self.steps.append(step)
        self.now_us = step.start_us + step.duration_us
        for event in self.engine.end_step(self.now_us):
            served = self.served[event.rid]
            if isinstance(event, Token):
                served.token_us.append(self.now_us)
                served.indices.append(event.index)
                if event.index == 0:
                    served.cached_tokens = event.cached_tokens
            elif isinstance(event, Finished):
                served.end, served.end_us = event.reason, self.now_us

    def run(self, *requests: EngineRequest, steps: int = 1_000_000) -> dict[str, Served]:
        """Submit and go on until nothing is left. Raises RuntimeError if that takes more than `steps`."""
        self.submit(*requests)
        for _ in range(steps):
            if not self.step():
                return self.served
        raise RuntimeError(f"the engine still works after {steps} steps")

    def run_steps(self, count: int) -> None:
        """At most `count` iterations."""
        for _ in range(count):
            if not self.step():
                return


def first_tokens(served: dict[str, Served]) -> list[str]:
    """Request ids in the order of their first tokens."""
    started = {rid: item.token_us[0] for rid, item in served.items() if item.token_us}
    return sorted(started, key=lambda rid: (started[rid], rid))


def words(text: str) -> list[int]:
    """A prompt written as letters: one token each."""
    return [ord(letter) for letter in text]


def repeat(token: int, tokens: int) -> list[int]:
    """A prompt of one token id: shares a prefix only with its like."""
    return [token] * tokens


def total_tokens(served: Iterable[Served]) -> int:
    """Reply tokens of all requests."""
    return sum(len(item.token_us) for item in served)
