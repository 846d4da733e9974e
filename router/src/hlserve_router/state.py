"""The values that pass between the steps of a request. Nothing here does I/O or reads a clock.

Those that are made for every request write their `__init__` out: the one of a dataclass is slower, most of all when the
module is compiled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec


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
    has_turns: bool = False
    """The prompt is a list of turns."""
    model_optional: bool = False
    generates: bool = True


ROUTES: Final[Mapping[str, Route]] = {
    route.path: route
    for route in (
        Route(
            "chat", "/v1/chat/completions", Shape.OPENAI, RidTravel.HEADER, Finish.DONE,
            ("messages",), ("max_tokens", "max_completion_tokens"), usage_strippable=True, has_turns=True,
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
            ("input",), ("max_output_tokens",), has_turns=True,
        ),
        Route(
            "messages", "/v1/messages", Shape.ANTHROPIC, RidTravel.HEADER, Finish.MESSAGE_STOP,
            ("messages",), ("max_tokens",), has_turns=True,
        ),
        Route(
            "count_tokens", "/v1/messages/count_tokens", Shape.ANTHROPIC, RidTravel.NONE, Finish.NONE,
            ("messages",), has_turns=True, generates=False,
        ),
        Route(
            "tokenize", "/tokenize", Shape.OPENAI, RidTravel.NONE, Finish.NONE,
            ("prompt",), model_optional=True, generates=False,
        ),
        Route(
            "generate", "/generate", Shape.OPENAI, RidTravel.HEADER, Finish.DONE,
            ("text", "input_ids"), ("sampling_params.max_new_tokens",), model_optional=True,
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


@dataclass(slots=True, eq=False, init=False)
class BodyFacts:
    """The few things that the router needs to know of a request body. Sizes in tokens are estimates unless said."""

    model: str | None
    stream: bool
    wants_usage: bool
    prompt_bytes: int
    exact_prompt_tokens: int | None
    output_limit_tokens: int | None
    choices: int
    session: str | None
    previous_response_id: str | None
    background: bool
    media: tuple[MediaRef, ...]
    has_tools: bool
    prompt: msgspec.Raw | None
    """The prompt as it lies in the body; goes when the body goes."""
    has_turns: bool
    """The prompt is a list of turns, with system messages first."""

    def __init__(
        self,
        model: str | None,
        stream: bool = False,
        wants_usage: bool = False,
        prompt_bytes: int = 0,
        exact_prompt_tokens: int | None = None,
        output_limit_tokens: int | None = None,
        choices: int = 1,
        session: str | None = None,
        previous_response_id: str | None = None,
        background: bool = False,
        media: tuple[MediaRef, ...] = (),
        has_tools: bool = False,
        prompt: msgspec.Raw | None = None,
        has_turns: bool = False,
    ) -> None:
        self.model = model
        self.stream = stream
        self.wants_usage = wants_usage
        self.prompt_bytes = prompt_bytes
        self.exact_prompt_tokens = exact_prompt_tokens
        self.output_limit_tokens = output_limit_tokens
        self.choices = choices
        self.session = session
        self.previous_response_id = previous_response_id
        self.background = background
        self.media = media
        self.has_tools = has_tools
        self.prompt = prompt
        self.has_turns = has_turns


@dataclass(frozen=True, slots=True)
class Pace:
    """The time constants of choice and admission, in seconds."""

    slow_start_seconds: float = 20.0
    """Over this long a new endpoint grows into its full share."""
    breaker_open_seconds: float = 10.0
    """How long a breaker stays open at first; doubled with each failed probe, up to six times this."""
    gauge_max_age_seconds: float = 5.0
    """Older news of an engine is not believed."""
    session_idle_seconds: float = 5.0
    """A session without a request for so long no longer counts for its context; 0: sessions are not admitted, only requests."""
    affinity_wait_seconds: float = 3.0
    """Longest wait of an Agent request for the endpoint that has its prefix; Batch waits five times as long."""


class AffinityResult(StrEnum):
    """What became of a request's wish for a certain endpoint."""

    NONE = "none"
    MISS = "miss"
    HIT = "hit"
    ESCAPED = "escaped"


class NoPlace(StrEnum):
    """Why no endpoint could take a request now."""

    FULL = "full"
    TIGHT = "tight"
    """An endpoint has a free slot, but not for this one: too many tokens, or its session's place is taken."""
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


@dataclass(slots=True, init=False)
class Usage:
    """Tokens of one request as the engine reported them; None: not reported."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None

    def __init__(self) -> None:
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = None


@dataclass(slots=True, eq=False, init=False)
class EngineRequest:
    """What is written to an engine's socket: head fields, then the body's pieces in order."""

    method: str
    path: str
    headers: Sequence[tuple[bytes, bytes]]
    body: tuple[bytes | memoryview, ...]

    def __init__(
        self,
        method: str,
        path: str,
        headers: Sequence[tuple[bytes, bytes]],
        body: tuple[bytes | memoryview, ...] = (),
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body

    @property
    def body_bytes(self) -> int:
        """Length of the body in bytes."""
        return sum(len(piece) for piece in self.body)


EMPTY_REQUEST: Final = EngineRequest("", "", ())
"""In place of one that was sent."""
