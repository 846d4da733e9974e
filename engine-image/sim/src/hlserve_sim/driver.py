"""Runs the pure engine in real time: plans a step, sleeps to its absolute end, delivers its tokens.

The engine's clock never drifts: a step begins exactly where the former ended. When the process wakes up late it catches
up step by step, and requests that arrived meanwhile enter at the time they are stamped with, not earlier. So what the
engine decides follows from the stamps alone, and pure code that is given them decides the same.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from hlserve_capacity.engine.types import (
    Engine,
    EngineGauges,
    EngineTotals,
    Finished,
    FinishReason,
    Refused,
    Retracted,
    Step,
    Token,
)
from hlserve_sim.clock import Clock
from hlserve_sim.live import Live

CATCH_UP_STEPS = 32
"""Steps in a row before other tasks get a turn."""
TIMER_GRANULARITY_SECONDS = 0.001
"""What the event loop's timers resolve. Delays are rounded up, else the loop would spin through the last fraction."""


class Stage(StrEnum):
    """What the running step does."""

    IDLE = "idle"
    FILL = "fill"
    """Prefill alone."""
    MIXED = "mixed"
    """Decoding with prompt tokens."""
    DECODE = "decode"
    """Decoding alone."""


class Observer(Protocol):
    """What is told about requests: the metrics."""

    def first_token(self, live: Live) -> None: ...
    def next_token(self, live: Live, gap_us: int) -> None: ...
    def stepped(self, duration_us: int) -> None: ...
    def ended_one(self, live: Live) -> None: ...


class DuplicateRequestError(ValueError):
    """A request id that is in use."""


@dataclass(slots=True)
class Lateness:
    """How long after their due time steps were ended, in engine microseconds: what a busy machine adds to every token."""

    steps: int = 0
    total_us: int = 0
    max_us: int = 0

    def add(self, late_us: int) -> None:
        """One step ended so late."""
        self.steps += 1
        self.total_us += late_us
        self.max_us = max(self.max_us, late_us)


class Driver:
    """The engine's real-time loop, on the running event loop's timers."""

    def __init__(
        self, engine: Engine, clock: Clock, observer: Observer, on_failure: Callable[[BaseException], None]
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._observer = observer
        self._on_failure = on_failure
        self._live: dict[str, Live] = {}
        self._inbox: deque[Live] = deque()
        self._step: Step | None = None
        self._engine_us = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ticking = False
        self._idle_waiters: list[asyncio.Future[None]] = []
        self.lateness = Lateness()

    @property
    def clock(self) -> Clock:
        """The engine's clock."""
        return self._clock

    @property
    def engine_us(self) -> int:
        """Where the engine is: the end of the last step it finished, or later if it idles."""
        return self._engine_us

    @property
    def totals(self) -> EngineTotals:
        """The engine's counters."""
        return self._engine.totals

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._live)

    @property
    def stage(self) -> Stage:
        """What the engine does now."""
        if self._step is None:
            return Stage.IDLE
        if not self._step.chunks:
            return Stage.DECODE
        return Stage.MIXED if self._step.decode_sequences else Stage.FILL

    def gauges(self) -> EngineGauges:
        """The engine's state; what has arrived and the engine has not looked at yet waits too."""
        gauges = self._engine.gauges()
        return replace(gauges, queued=gauges.queued + len(self._inbox)) if self._inbox else gauges

    def find(self, rid: str) -> Live | None:
        """A request that has not ended."""
        return self._live.get(rid)

    def rids(self) -> tuple[str, ...]:
        """Ids of all requests that have not ended."""
        return tuple(self._live)

    def submit(self, live: Live) -> None:
        """Hand a request to the engine, stamped now. Raises DuplicateRequestError. A refusal shows in `live.refused`."""
        if live.rid in self._live:
            raise DuplicateRequestError(f"Duplicate request ID detected: {live.rid}")
        live.arrived_us = self._clock.now_us()
        self._live[live.rid] = live
        self._inbox.append(live)
        if self._step is None or live.arrived_us < _end_us(self._step):
            self._take_inbox(live.arrived_us)
        self._tick_soon()

    def abort(self, rid: str) -> bool:
        """End a request by its exact id; its slot is free when the running step ends. False: no such request."""
        live = self._live.get(rid)
        if live is None:
            return False
        if live in self._inbox:
            self._inbox.remove(live)
            self._end(live, FinishReason.ABORT, self._clock.now_us())
            return True
        known = self._engine.abort(rid, max(self._engine_us, min(self._clock.now_us(), self._horizon_us())))
        if known and self._step is None:
            self._end(live, FinishReason.ABORT, self._clock.now_us())
        self._tick_soon()
        return known

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False if requests are in flight."""
        return not self._live and self._engine.flush_cache()

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        while self._live:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def close(self) -> None:
        """Stop the loop; what is in flight stays where it is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _horizon_us(self) -> int:
        return self._clock.now_us() if self._step is None else _end_us(self._step)

    def _tick_soon(self) -> None:
        if self._step is None and not self._ticking:
            self._schedule(0.0)

    def _schedule(self, delay_seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        rounded = math.ceil(delay_seconds / TIMER_GRANULARITY_SECONDS) * TIMER_GRANULARITY_SECONDS
        self._timer = asyncio.get_running_loop().call_later(rounded, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._ticking = True
        try:
            delay = self._advance()
        except Exception as error:  # the boundary: a broken engine must end the process, not stall it
            self._on_failure(error)
            return
        finally:
            self._ticking = False
        if delay is not None:
            self._schedule(delay)

    def _advance(self) -> float | None:
        """Do all that is due. The wall seconds until the next thing, or None if only a request changes anything."""
        for _ in range(CATCH_UP_STEPS):
            now_us = self._clock.now_us()
            if self._step is not None:
                end_us = _end_us(self._step)
                if end_us > now_us:
                    return self._clock.wall_seconds(end_us - now_us)
                self.lateness.add(now_us - end_us)
                self._finish_step(end_us)
            if not self._begin_step(now_us):
                wakeup_us = self._engine.next_wakeup_us(self._engine_us)
                if wakeup_us is None:
                    return None
                return self._clock.wall_seconds(max(0, wakeup_us - now_us))
        return 0.0

    def _begin_step(self, now_us: int) -> bool:
        """Start the next step where the last one ended, or at the next arrival if nothing could run till then."""
        while True:
            self._take_inbox(self._engine_us)
            self._step = self._engine.begin_step(self._engine_us)
            if self._step is not None:
                for rid, _, _ in self._step.chunks:
                    if (live := self._live.get(rid)) is not None and live.prefill_started_us is None:
                        live.prefill_started_us = self._step.start_us
                return True
            due = [self._inbox[0].arrived_us] if self._inbox else []
            wakeup_us = self._engine.next_wakeup_us(self._engine_us)
            if wakeup_us is not None and self._engine_us < wakeup_us <= now_us:
                due.append(wakeup_us)
            if not due:
                return False
            self._engine_us = max(self._engine_us, min(due))

    def _take_inbox(self, until_us: int) -> None:
        """Submit what arrived by `until_us`, in order of arrival."""
        while self._inbox and self._inbox[0].arrived_us <= until_us:
            live = self._inbox.popleft()
            if self._step is None:
                self._engine_us = max(self._engine_us, live.arrived_us)
            answer = self._engine.submit(live.engine_request(), live.arrived_us)
            if isinstance(answer, Refused):
                live.refused = answer
                self._forget(live)

    def _finish_step(self, end_us: int) -> None:
        step = self._step
        events = self._engine.end_step(end_us)
        self._step = None
        if step is not None:
            self._observer.stepped(step.duration_us)
        self._engine_us = end_us
        for event in events:
            live = self._live.get(event.rid)
            if live is None:
                continue
            if isinstance(event, Token):
                self._token(live, event, end_us)
            elif isinstance(event, Finished):
                self._end(live, event.reason, end_us)
            elif isinstance(event, Retracted):
                live.retractions += 1

    def _token(self, live: Live, event: Token, now_us: int) -> None:
        live.made = event.index + 1
        if live.first_token_us is None:
            live.first_token_us = now_us
            live.cached_tokens = event.cached_tokens
            live.last_token_us = now_us
            self._observer.first_token(live)
        else:
            gap_us = now_us - live.last_token_us
            live.last_token_us = now_us
            self._observer.next_token(live, gap_us)
        live.wake()

    def _end(self, live: Live, reason: FinishReason, now_us: int) -> None:
        live.ended = reason
        live.finished_us = now_us
        self._observer.ended_one(live)
        self._forget(live)

    def _forget(self, live: Live) -> None:
        del self._live[live.rid]
        live.wake()
        if not self._live:
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


def _end_us(step: Step) -> int:
    return step.start_us + step.duration_us
