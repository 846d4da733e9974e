"""One engine replica as the router knows it: what is in flight there, whether it works, how loaded its gauges say it is."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from hlserve_api.answers import Outcome, Reason
from hlserve_router.outcome import Ending
from hlserve_router.state import EndpointView
from hlserve_router.upstream import Link

FAILURES_TO_OPEN: Final = 5
"""Consecutive transport errors or 5xx answers that open the breaker."""
BUSY_SECONDS: Final = 0.25
BUSY_MAX_SECONDS: Final = 8.0
"""How long an engine that answered 429 or 503 is left alone at first, doubled while it keeps answering so."""
OPEN_SECONDS: Final = 10.0
OPEN_MAX_SECONDS: Final = 60.0
GAUGE_MAX_AGE_SECONDS: Final = 5.0
SLOW_START_SECONDS: Final = 20.0
SLOW_START_FLOOR: Final = 0.1
ABORTED_MEMORY_SECONDS: Final = 60.0
TOKENS_PER_FOREIGN_REQUEST: Final = 2048
"""What a request of another router counts as, of which only the engine's gauges know."""


class BreakerState(StrEnum):
    """States of an endpoint's circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """What an engine says of itself. `at`: monotonic seconds of the scrape."""

    running: int
    queued: int
    token_usage: float
    at: float


@dataclass(slots=True, eq=False)
class EndpointState:
    """Mutable state of one endpoint; owned by `Pools`, written on the event loop only."""

    id: str
    url: str
    pool: str
    link: Link
    added_at: float
    seasoned: bool
    """True for endpoints of a pool's first table: they need no slow start."""
    in_flight: int = 0
    in_flight_tokens: int = 0
    sessions: int = 0
    reachable: bool = True
    failures: int = 0
    open_until: float = 0.0
    open_seconds: float = OPEN_SECONDS
    opened: bool = False
    probing: bool = False
    busy_until: float = 0.0
    busy_seconds: float = BUSY_SECONDS
    backpressured: bool = False
    """True from a 429 or 503 until the engine takes a request again; meanwhile it gets one at a time."""
    draining: bool = False
    removed: bool = False
    gauges: EngineGauges | None = None
    last_byte_at: float = 0.0
    aborted: dict[str, float] = field(default_factory=dict)
    """Router ids of requests given up while the engine had them, with the time, oldest first; forgotten after a minute."""

    def breaker(self, now: float) -> BreakerState:
        """The breaker's state at `now`."""
        if not self.opened:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self.open_until else BreakerState.HALF_OPEN

    def usable(self, now: float) -> bool:
        """True if the endpoint may get a new request."""
        if self.draining or not self.reachable or now < self.busy_until:
            return False
        state = self.breaker(now)
        if state is BreakerState.OPEN:
            return False
        return not (self.probing and (self.backpressured or state is BreakerState.HALF_OPEN))

    def busy(self, now: float) -> bool:
        """True while the engine asked to be left alone (429 or 503)."""
        return now < self.busy_until or (self.backpressured and self.probing)

    def begin(self, tokens: int, now: float) -> None:
        """A request goes there."""
        self.in_flight += 1
        self.in_flight_tokens += tokens
        if self.backpressured or self.breaker(now) is BreakerState.HALF_OPEN:
            self.probing = True

    def end(self, tokens: int) -> None:
        """That request is no longer there."""
        self.in_flight -= 1
        self.in_flight_tokens -= tokens

    def answered(self, now: float) -> None:
        """It began to answer with a status below 500 that is no 429: it works and takes requests."""
        self.failures = 0
        self.opened = self.probing = self.backpressured = False
        self.open_seconds = OPEN_SECONDS
        self.busy_seconds = BUSY_SECONDS
        self.last_byte_at = now

    def gave_up(self, rid: str, now: float) -> None:
        """The router dropped a request that the engine was working on."""
        self.aborted[rid] = now
        self.forget_aborted(now)

    def forget_aborted(self, now: float) -> None:
        """Forgets what was given up more than a minute ago."""
        while self.aborted:
            oldest = next(iter(self.aborted))
            if now - self.aborted[oldest] <= ABORTED_MEMORY_SECONDS:
                return
            del self.aborted[oldest]

    def neutral(self) -> None:
        """A request ended that says nothing about the endpoint's health: a client error (4xx), a client that left."""
        self.probing = False

    def failed(self, now: float) -> None:
        """A transport error or a 5xx other than 503."""
        self.failures += 1
        was_probe = self.probing and self.opened
        self.probing = False
        if was_probe:
            self.open_seconds = min(self.open_seconds * 2, OPEN_MAX_SECONDS)
        if was_probe or (self.failures >= FAILURES_TO_OPEN and not self.opened):
            self.opened = True
            self.open_until = now + self.open_seconds

    def learn(self, ending: Ending, now: float) -> None:
        """What the end of a request there says of it."""
        if ending.outcome in (Outcome.CLIENT_GONE, Outcome.ENGINE_REJECTED):
            self.neutral()
        elif ending.outcome in (Outcome.ENGINE_ERROR, Outcome.TRUNCATED) or ending.reason is Reason.ENGINE_SILENT:
            self.failed(now)

    def revive(self) -> None:
        """A probe got through: what kept the endpoint out for being unreachable is over."""
        if not self.reachable:
            self.reachable = True
            self.failures = 0
            self.opened = self.probing = False

    def hold_off(self, now: float, seconds: float | None) -> None:
        """The engine answered 429 or 503, with this `Retry-After` if any. This is backpressure, not a failure.

        The rest doubles from one try to the next, not with every request of a burst that was on its way already.
        """
        if seconds is not None:
            self.busy_until = max(self.busy_until, now + min(seconds, 60.0))
        elif now >= self.busy_until:
            self.busy_until = now + self.busy_seconds
            self.busy_seconds = min(self.busy_seconds * 2, BUSY_MAX_SECONDS)
        self.backpressured = True
        self.probing = False

    def view(
        self, now: float, *, weight: int, max_in_flight: int | None, max_tokens: int | None, panic: bool = False
    ) -> EndpointView:
        """The frozen snapshot that the choice sees. `panic`: eligible although its breaker is open."""
        load = float(self.in_flight_tokens)
        gauges = self.gauges
        if gauges is not None and now - gauges.at <= GAUGE_MAX_AGE_SECONDS:
            others = gauges.running + gauges.queued - self.in_flight
            if others > 0:
                load += others * TOKENS_PER_FOREIGN_REQUEST
        ramp = 1.0
        if not self.seasoned:
            ramp = min(1.0, max(SLOW_START_FLOOR, (now - self.added_at) / SLOW_START_SECONDS))
        usable = self.usable(now) or (panic and self.reachable and not self.draining and not self.busy(now))
        return EndpointView(
            self.id, self.pool, weight, self.in_flight, load, max_in_flight, self.in_flight_tokens, max_tokens, usable,
            ramp, self.sessions, self.reachable and not self.draining and self.busy(now),
        )  # fmt: skip
