"""Closed sets that sizing and derivation answer with."""

from dataclasses import dataclass
from enum import StrEnum


class SloReason(StrEnum):
    """Whether a replica can meet its pool's SLO; the reasons of the condition SLOAttainable."""

    ATTAINABLE = "Attainable"
    TTFT_INFEASIBLE = "TTFTInfeasible"
    TPOT_INFEASIBLE = "TPOTInfeasible"
    UNKNOWN = "Unknown"


class PrefillStyle(StrEnum):
    """How prompts join running requests."""

    CHUNKS = "chunks"
    """In chunks that ride along with decode steps."""
    WHOLE_PROMPTS = "whole_prompts"
    """Each prompt in one step of its own length."""


class BatchLimit(StrEnum):
    """What keeps the batch from being larger."""

    TPOT = "tpot"
    """The step would be longer than the TPOT (or ITL) target allows."""
    TTFT = "ttft"
    """A P95 prompt would not be prefilled in time beside a larger batch."""
    PREFILL = "prefill"
    """The chunk that TPOT leaves would not carry a larger batch's prompts."""
    KV_POOL = "kv_pool"
    """More long requests would not fit into memory."""
    ENGINE = "engine"
    """The engine's own largest batch, or a given one."""


class CapacityLimit(StrEnum):
    """What keeps a replica from taking a higher rate."""

    DECODE = "decode"
    """Its slots are busy all the time."""
    TTFT_QUEUE = "ttft_queue"
    """Waiting for a slot would break the latency targets before all slots are busy."""


class InfeasibleReason(StrEnum):
    """Why no number of replicas helps."""

    TPOT = "tpot"
    TTFT = "ttft"
    KV_POOL = "kv_pool"
    WEIGHTS = "weights"


@dataclass(frozen=True, slots=True)
class Infeasible:
    """The targets cannot be met; a result of its own, not an error and not a tax of 100 %."""

    reason: InfeasibleReason
    floor: float
    """The best that is possible: milliseconds for latencies, KV tokens for memory."""
    message: str
    """One sentence that says what to do."""
