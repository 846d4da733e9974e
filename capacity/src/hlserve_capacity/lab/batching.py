"""How an engine fills its slots: static, continuous, or continuous with a prefill budget."""

from dataclasses import dataclass


def _check_slots(max_batch: int) -> None:
    if max_batch < 1:
        raise ValueError(f"max_batch is {max_batch}, an engine needs at least one slot")


@dataclass(frozen=True, slots=True)
class Static:
    """A batch is formed from whatever waits, up to `max_batch`; every slot is held, and paid for, until the longest ends."""

    max_batch: int

    def __post_init__(self) -> None:
        _check_slots(self.max_batch)


@dataclass(frozen=True, slots=True)
class Continuous:
    """Freed slots are refilled before the next step; a prompt is prefilled whole in its first step."""

    max_batch: int

    def __post_init__(self) -> None:
        _check_slots(self.max_batch)


@dataclass(frozen=True, slots=True)
class Chunked:
    """Continuous, with at most `budget_tokens` prompt tokens a step, given to prompts in order of admission."""

    max_batch: int
    budget_tokens: int

    def __post_init__(self) -> None:
        _check_slots(self.max_batch)
        if self.budget_tokens < 1:
            raise ValueError(f"budget_tokens is {self.budget_tokens}, prefill needs at least one token a step")


Batching = Static | Continuous | Chunked
