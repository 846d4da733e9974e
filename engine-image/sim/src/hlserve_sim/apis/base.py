"""What the endpoint needs of a generation API."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from hlserve_sim.errors import ApiError
from hlserve_sim.fields import Fields
from hlserve_sim.live import Live
from hlserve_sim.orders import Order, Reader
from hlserve_sim.replies import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What answers need to know of the server."""

    served_model_name: str
    context_length: int
    cache_report: bool


class Stream(ABC):
    """The wording of one stream. Each method gives bytes of whole events; none may be called after `closing` or `failed`."""

    def opening(self) -> bytes:
        """What is sent with the headers, before the first token."""
        return b""

    @abstractmethod
    def tokens(self, start: int, stop: int) -> bytes:
        """The events of tokens `start` … `stop` - 1."""

    @abstractmethod
    def closing(self) -> bytes:
        """The end, once the request is done."""

    @abstractmethod
    def failed(self, error: ApiError) -> bytes:
        """An error event and what follows it. May come first."""


class Api(ABC):
    """One generation API."""

    holds_status: bool = True
    """Whether the status of a stream waits for the first token (SGLang's chat and completions), so that refusals come early."""
    header_overrides: bool = False
    """Whether `x-override-rid` and `x-override-priority` count here."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @abstractmethod
    def read(self, fields: Fields, reader: Reader) -> Order:
        """The order a body holds. Raises ApiError."""

    @abstractmethod
    def whole(self, order: Order, live: Live, created: int) -> object:
        """The answer that is not streamed, as JSON builtins."""

    @abstractmethod
    def stream(self, order: Order, live: Live, created: int) -> Stream:
        """The wording of this request's stream."""

    def finished(self, order: Order, live: Live, created: int) -> None:  # noqa: B027 - most APIs keep nothing
        """The answer is complete and about to be sent in full."""

    @abstractmethod
    def error(self, error: ApiError) -> Mapping[str, object]:
        """The body of an error answer."""

    @abstractmethod
    def error_stream(self, error: ApiError, model: str) -> bytes:
        """The whole body of a stream that is an error from its first event on."""


def reasoning_tokens(live: Live) -> int:
    """Tokens of reasoning among those made, its end mark included."""
    thinking = live.reply.count(Kind.REASONING, live.made)
    return thinking + live.reply.count(Kind.SILENT, live.made) if thinking else 0


def matched_stop(live: Live) -> str | None:
    """The stop string that ended the reply."""
    return live.reply.matched_stop if live.finish == "stop" else None
