"""APIs whose answers may hold several choices."""

from abc import abstractmethod
from collections.abc import Sequence

from hlserve_sim.apis.base import Api, Stream, reasoning_tokens
from hlserve_sim.live import Live
from hlserve_sim.orders import Order


class ChoiceStream(Stream):
    """The wording of one choice of a stream. `ending` ends the choice, `closing` the stream of a single one."""

    def __init__(self, api: "ChoicesApi", order: Order, live: Live, created: int) -> None:
        self._api, self._order, self._live, self._created = api, order, live, created

    @abstractmethod
    def ending(self) -> bytes:
        """The end of this choice, once its request is done."""

    def closing(self) -> bytes:
        return self.ending() + self._api.trailer(self._order, [self._live], self._created)


class ChoicesApi(Api):
    """An API with `n`, with prompt batches, or with both. `lives` are the choices, prompt by prompt."""

    @abstractmethod
    def whole_of(self, order: Order, lives: Sequence[Live], created: int) -> object:
        """The answer that is not streamed, as JSON builtins."""

    @abstractmethod
    def choice_stream(self, order: Order, live: Live, created: int, index: int) -> ChoiceStream:
        """The wording of one choice's part of the stream."""

    @abstractmethod
    def trailer(self, order: Order, lives: Sequence[Live], created: int) -> bytes:
        """What follows the last choice's end."""

    def whole(self, order: Order, live: Live, created: int) -> object:
        return self.whole_of(order, [live], created)

    def stream(self, order: Order, live: Live, created: int) -> Stream:
        return self.choice_stream(order, live, created, 0)


def usage(order: Order, lives: Sequence[Live], cache_report: bool) -> dict[str, object]:
    """OpenAI usage as SGLang gives it: a prompt counts once for all its choices; cached tokens only with a cache report."""
    prompts = lives[:: order.choices]
    prompt_tokens = sum(live.prompt_tokens for live in prompts)
    made = sum(live.made for live in lives)
    cached = {"cached_tokens": sum(live.cached_tokens for live in prompts)} if cache_report else None
    thinking = sum(map(reasoning_tokens, lives))
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + made,
        "completion_tokens": made,
        "prompt_tokens_details": cached,
        "reasoning_tokens": thinking,
        "completion_tokens_details": {"reasoning_tokens": thinking} if thinking else None,
    }
