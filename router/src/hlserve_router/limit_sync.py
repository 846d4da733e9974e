"""Keeps a process's limits and their store in step: one message after the other, and a stated rule while the store is away."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Final

from hlserve_router.limit_book import Ask
from hlserve_router.limit_store import LimitStore, StoreError
from hlserve_router.limits import MAX_ASKS, Limits
from hlserve_router.metrics import Metrics

FLUSH_SECONDS: Final = 0.05
"""How often corrections are told, and leases that are not used given back."""
BEAT_SECONDS: Final = 5.0
"""How often a process without news says that it is there."""
FIRST_SECONDS: Final = 5.0
"""Until then a store that has not answered yet is not called away: both sides still start, and their event loops are busy with it."""
OUTER: Final = 1.2
"""Over the time limit: a store that watches it by itself, and leaves its connection in order, comes first."""
RULE_AWAY: Final = "each router keeps to its part of every limit: the limit over the routers that were last known"
_log = logging.getLogger("hlserve_router.limits")


def new_holder() -> str:
    """A name for this process in the store."""
    return token_hex(8)


@dataclass(eq=False)
class LimitSync:
    """The conversation with the store. `settings`: see `limits_store_timeout_seconds` and `limits_store_retry_seconds`."""

    limits: Limits
    store: LimitStore
    holder: str
    metrics: Metrics
    address: str
    timeout_seconds: float
    retry_seconds: float
    monotonic: Callable[[], float] = time.monotonic
    problem: str = ""
    """Why the store is away; empty while it is there."""
    away_since: float = 0.0
    """Unix seconds."""
    _poked: asyncio.Event = field(default_factory=asyncio.Event)
    _began: float = float("-inf")
    _said: float = float("-inf")
    _swept: float = float("-inf")

    def __post_init__(self) -> None:
        self.limits.poke = self._poked.set

    async def run(self) -> None:
        """Talks for ever."""
        task = asyncio.current_task()
        self._began = self.monotonic()
        while task is None or not task.cancelling():  # the client library may keep a cancellation for itself
            self._poked.clear()
            now = self.monotonic()
            if now - self._swept >= FLUSH_SECONDS:  # it looks at every client that has something, a poke is about one
                self._swept = now
                self.limits.sweep(now)
            talked = False
            asks = self.limits.asks(now)
            if asks or self.limits.away or now - self._said > BEAT_SECONDS:
                talked = await self._talk(asks)
            if talked and (self._poked.is_set() or len(asks) >= MAX_ASKS):
                continue
            await self._pause(self.retry_seconds if self.limits.away else FLUSH_SECONDS)

    async def close(self) -> None:
        """Gives back what is not used, tells what is not told, and ends."""
        self.limits.leave()
        try:
            while asks := self.limits.asks(self.monotonic()):
                if not await self._talk(asks):
                    break
        finally:
            await self.store.close()

    def status(self) -> dict[str, Any]:
        """For readiness and reports."""
        body: dict[str, Any] = {"address": self.address, "status": "ok", "routers": self.limits.members}
        if self.problem:
            body |= {"status": "away", "why": self.problem, "since": self.away_since, "rule": RULE_AWAY}
        return body

    async def _talk(self, asks: list[Ask]) -> bool:
        sent = self.monotonic()
        try:
            async with asyncio.timeout(self.timeout_seconds * OUTER):
                if self.limits.away:  # it may have lost its data: then every ask must say what there was
                    hello = await self.store.exchange(self.holder, [])
                    self._back()
                    self.limits.heard(hello.members, hello.epoch, sent)
                    asks = self.limits.asks(sent)
                reply = await self.store.exchange(self.holder, asks)
        except TimeoutError:
            if self._said == float("-inf") and sent - self._began < FIRST_SECONDS:
                self.limits.lost()  # nobody waits for it, that is all
            else:
                self._away(f"the limits store did not answer within {self.timeout_seconds:g} s")
            return False
        except StoreError as error:
            self._away(str(error))
            return False
        except Exception as error:  # whatever it is, nobody waits for an answer that never comes
            self._away(f"asking the limits store failed: {type(error).__name__}")
            raise
        self._said = sent
        self.metrics.observe("hlserve_router_limits_store_seconds", (), self.monotonic() - sent)
        if reply.members != self.limits.members:
            _log.info("limits shared", extra={"fields": {"store": self.address, "routers": reply.members}})
        self.limits.answered(asks, reply.answers, reply.members, reply.epoch, sent)
        return True

    def _back(self) -> None:
        if not self.problem:
            return
        fields = {"store": self.address, "away_seconds": round(time.time() - self.away_since, 1)}
        _log.warning("limits store is back", extra={"fields": fields})
        self.problem = ""

    def _away(self, why: str) -> None:
        self.metrics.count("hlserve_router_limits_store_errors_total")
        if not self.problem:
            self.away_since = time.time()
            fields = {"store": self.address, "why": why, "rule": RULE_AWAY, "routers": self.limits.members}
            _log.warning("limits store is away", extra={"fields": fields})
        self.problem = why
        self.limits.lost()

    async def _pause(self, seconds: float) -> None:
        if self.limits.away:
            await asyncio.sleep(seconds)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._poked.wait()
        except TimeoutError:
            return
