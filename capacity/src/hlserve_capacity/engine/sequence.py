"""One request inside the engine."""

from dataclasses import dataclass
from enum import IntEnum

from hlserve_capacity.engine.radix import Node
from hlserve_capacity.engine.types import EngineRequest


class Phase(IntEnum):
    """Where a request is. IntEnum: compared several times a step."""

    WAITING = 0
    PREFILLING = 1
    DECODING = 2
    GONE = 3


@dataclass(slots=True, eq=False)
class Hold:
    """KV that is kept for a session between two of its rounds, or until its admitted request starts."""

    node: Node
    required: bytes
    """The part of the former prompt that a continuation must begin with."""
    tokens: int
    expires_us: int
    claimed: bool = False
    """A waiting request has taken it over: it does not expire."""


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable state of one request. Tokens unless said; `order` is the submission rank."""

    request: EngineRequest
    key: bytes
    order: int
    arrived_us: int
    prompt_tokens: int
    phase: Phase = Phase.WAITING
    made: int = 0
    """Reply tokens made before the present prefill (more than none only after a retraction)."""
    node: Node | None = None
    shared: int = 0
    """Leading tokens that live in the tree, under `node`."""
    resident: int = 0
    """KV tokens present, while waiting or prefilling."""
    target: int = 0
    """KV tokens after the prefill."""
    finish_iteration: int = 0
    """Decode iteration that makes the last token."""
    cached_tokens: int = 0
    matched: int = 0
    matched_version: int = -1
    overtaken: int = 0
    hold: Hold | None = None
    admitted: bool = False
    """Its session is inside the KV admission bound."""
    footprint: int = 0
    """KV tokens that its session counts for in that bound."""
    aborted: bool = False
    started: bool = False

    @property
    def output_tokens(self) -> int:
        return self.request.output_tokens

    @property
    def todo(self) -> int:
        """Prompt tokens still to compute."""
        return self.target - self.resident
