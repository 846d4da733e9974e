"""One request on its way through the engine, as the server sees it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from hlserve_capacity.engine.types import EngineRequest, FinishReason, Refused
from hlserve_sim.replies import Reply


@dataclass(slots=True, eq=False)
class Live:
    """A request and how far it is. Times are engine microseconds."""

    rid: str
    prompt: Sequence[int]
    reply: Reply
    priority: int
    streamed: bool
    digest: int = 0
    """What the reply follows from."""
    arrived_us: int = 0
    first_token_us: int | None = None
    last_token_us: int = 0
    finished_us: int | None = None
    made: int = 0
    """Tokens made so far."""
    cached_tokens: int = 0
    retractions: int = 0
    prefill_started_us: int | None = None
    ended: FinishReason | None = None
    refused: Refused | None = None
    client_gone: bool = False
    _waiters: list[asyncio.Future[None]] = field(default_factory=list, repr=False)

    def engine_request(self) -> EngineRequest:
        """The same request in the engine's terms."""
        return EngineRequest(
            rid=self.rid,
            prompt=self.prompt,
            output_tokens=len(self.reply.token_ids),
            priority=self.priority,
            reply=self.reply.token_ids,
        )

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt)

    @property
    def done(self) -> bool:
        """Nothing more will come."""
        return self.ended is not None or self.refused is not None

    @property
    def finish(self) -> str:
        """The finish reason that a client sees, once ended."""
        return "abort" if self.ended is FinishReason.ABORT else self.reply.finish

    def wake(self) -> None:
        """Tell the waiting tasks that something changed."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def lose_client(self) -> None:
        """Nobody reads the answer any more."""
        self.client_gone = True
        self.wake()

    async def changed(self, seen: int) -> None:
        """Wait until more than `seen` tokens are made, the request is done, or the client is gone."""
        while self.made <= seen and not self.done and not self.client_gone:
            await self._wait()

    async def completed(self) -> None:
        """Wait until the request is done or the client is gone."""
        while not self.done and not self.client_gone:
            await self._wait()

    async def lost(self) -> None:
        """Wait until the client is gone."""
        while not self.client_gone:
            await self._wait()

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)
