"""The values that pass between the steps of a request. Frozen; nothing here does I/O or reads a clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple


class Shape(StrEnum):
    """Whose error and event format a route speaks."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


class RidTravel(StrEnum):
    """How the router's own request id reaches the engine (SGLang 0.5.23)."""

    HEADER = "header"
    BODY_RID = "rid"
    BODY_REQUEST_ID = "request_id"
    NONE = "none"


class Finish(StrEnum):
    """What the last event of a complete stream looks like."""

    DONE = "done"
    MESSAGE_STOP = "message_stop"
    RESPONSE_TERMINAL = "response_terminal"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Route:
    """One relayed path."""

    name: str
    path: str
    shape: Shape
    rid: RidTravel
    finish: Finish
    prompt_fields: tuple[str, ...] = ()
    output_limit_fields: tuple[str, ...] = ()
    usage_strippable: bool = False
    model_optional: bool = False
    generates: bool = True


ROUTES: Final[Mapping[str, Route]] = {
    route.path: route
    for route in (
        Route(
            "chat", "/v1/chat/completions", Shape.OPENAI, RidTravel.HEADER, Finish.DONE,
            ("messages",), ("max_tokens", "max_completion_tokens"), usage_strippable=True,
        ),
        Route(
            "completions", "/v1/completions", Shape.OPENAI, RidTravel.BODY_RID, Finish.DONE,
            ("prompt",), ("max_tokens",), usage_strippable=True,
        ),
        Route(
            "embeddings", "/v1/embeddings", Shape.OPENAI, RidTravel.BODY_RID, Finish.NONE, ("input",), generates=False,
        ),
        Route(
            "responses", "/v1/responses", Shape.RESPONSES, RidTravel.BODY_REQUEST_ID, Finish.RESPONSE_TERMINAL,
            ("input",), ("max_output_tokens",),
        ),
        Route(
            "messages", "/v1/messages", Shape.ANTHROPIC, RidTravel.HEADER, Finish.MESSAGE_STOP,
            ("messages",), ("max_tokens",),
        ),
        Route(
            "count_tokens", "/v1/messages/count_tokens", Shape.ANTHROPIC, RidTravel.NONE, Finish.NONE,
            ("messages",), generates=False,
        ),
        Route(
            "tokenize", "/tokenize", Shape.OPENAI, RidTravel.NONE, Finish.NONE,
            ("prompt",), model_optional=True, generates=False,
        ),
        Route(
            "generate", "/generate", Shape.OPENAI, RidTravel.HEADER, Finish.DONE,
            ("text", "input_ids"), (), model_optional=True,
        ),
    )
}  # fmt: skip
"""The POST routes, by path."""

STORED_RESPONSE: Final = Route("stored_response", "/v1/responses", Shape.RESPONSES, RidTravel.NONE, Finish.NONE)
"""GET of a stored response and its cancel: no body, an engine that is already known."""


@dataclass(frozen=True, slots=True)
class MediaRef:
    """A media reference of a request body: its URL or path as the client wrote it."""

    field: str
    url: str


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """The few things that the router needs to know of a request body. Sizes in tokens are estimates unless said."""

    model: str | None
    stream: bool = False
    wants_usage: bool = False
    prompt_bytes: int = 0
    exact_prompt_tokens: int | None = None
    output_limit_tokens: int | None = None
    choices: int = 1
    session: str | None = None
    prefix: bytes = b""
    previous_response_id: str | None = None
    background: bool = False
    media: tuple[MediaRef, ...] = ()
    has_tools: bool = False
    model_span: tuple[int, int] | None = None


class EndpointView(NamedTuple):
    """One endpoint at one moment, as the choice sees it. Tokens are the router's own estimate of work in flight."""

    id: str
    pool: str
    weight: int
    in_flight: int
    load_tokens: float
    max_in_flight: int | None
    in_flight_tokens: int
    max_in_flight_tokens: int | None
    usable: bool
    ramp: float
    """Slow start: 0 < ramp <= 1, the share of its fair load that a young endpoint should take."""
    sessions: int
    busy: bool = False
    """True while it is only left alone for a moment (429, 503): its sessions come back to it."""


class AffinityResult(StrEnum):
    """What became of a request's wish for a certain endpoint."""

    NONE = "none"
    MISS = "miss"
    HIT = "hit"
    ESCAPED = "escaped"


class NoPlace(StrEnum):
    """Why no endpoint could take a request now."""

    FULL = "full"
    BUSY = "busy"
    DOWN = "down"
    EMPTY = "empty"
    DRAINING = "draining"


class SpillReason(StrEnum):
    """Why a class used a Spill target."""

    QUEUE_WAIT = "queue_wait"
    UNAVAILABLE = "unavailable"


class Failure(StrEnum):
    """How an upstream call failed below HTTP."""

    CONNECT = "connect"
    RESET = "reset"
    TRUNCATED = "truncated"
    PROTOCOL = "protocol"


@dataclass(slots=True)
class Usage:
    """Tokens of one request as the engine reported them; None: not reported."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What is written to an engine's socket: head fields, then the body's pieces in order."""

    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: tuple[bytes | memoryview, ...] = field(default=())

    @property
    def body_bytes(self) -> int:
        """Length of the body in bytes."""
        return sum(len(piece) for piece in self.body)
