"""Several engine requests that one HTTP request asks for: `n` choices, a batch of prompts, or both.

As in SGLang, with several choices each prompt is first read by a request of its own that makes no token, so that the choices
find it in the prefix cache. Choices are numbered prompt by prompt.
"""

from collections.abc import Callable, Sequence

from hlserve_capacity.engine.types import FinishReason
from hlserve_sim.driver import Driver
from hlserve_sim.errors import refusal
from hlserve_sim.live import Live


class Bundle:
    """The choices of one HTTP request under one id. `readers` make no token and come first."""

    def __init__(self, rid: str, readers: Sequence[Live], choices: Sequence[Live], driver: Driver) -> None:
        self.rid = rid
        self.choices = tuple(choices)
        self._readers = tuple(readers)
        self._driver = driver
        self._submitted = False
        self._aborted = False

    @property
    def rids(self) -> tuple[str, ...]:
        """Its own id and those of its engine requests."""
        return (self.rid, *(live.rid for live in (*self._readers, *self.choices)))

    @property
    def done(self) -> bool:
        """Whether nothing more will come from any choice."""
        return all(live.done for live in self.choices)

    @property
    def client_gone(self) -> bool:
        """Whether nobody reads the answer any more."""
        return any(live.client_gone for live in self.choices)

    async def start(self) -> None:
        """Read the prompts if there are several choices, then hand all choices to the engine. Raises ApiError if refused."""
        for live in self._readers:
            self._driver.submit(live)
        for live in self._readers:
            await live.completed()
            if live.refused is not None:
                raise refusal(live.refused)
        if self._aborted or self.client_gone:
            return
        self._submitted = True
        for live in self.choices:
            self._driver.submit(live)

    def abort(self) -> bool:
        """End all that has not ended. False: nothing was left to end."""
        left = not self.done
        self._aborted = True
        for live in (*self._readers, *self.choices):
            self._driver.abort(live.rid)
        if not self._submitted:
            self._each(_give_up)
        return left

    def lose_client(self) -> None:
        """Nobody reads the answer any more."""
        for live in self._readers:
            live.lose_client()
        self._each(Live.lose_client)

    def _each(self, act: Callable[[Live], None]) -> None:
        for live in self.choices:
            act(live)


def _give_up(live: Live) -> None:
    """End a choice that the engine never saw."""
    live.ended = FinishReason.ABORT
    live.wake()
