"""One engine replica as the router knows it: what is in flight there, whether it works, how loaded its gauges say it is."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from hlserve_api.answers import Outcome, Reason
from hlserve_api.routing import ReplicaCaps
from hlserve_router.outcome import Ending
from hlserve_router.state import Pace
from hlserve_router.upstream import Link

FAILURES_TO_OPEN: Final = 5
"""Consecutive transport errors or 5xx answers that open the breaker."""
BUSY_SECONDS: Final = 0.25
BUSY_MAX_SECONDS: Final = 8.0
"""How long an engine that answered 429 or 503 is left alone at first, doubled while it keeps answering so."""
SHORTEST_REST_SECONDS: Final = 0.05
"""An engine that asks for less, or for a date that is over, asks for nothing: taken at its word it would be asked without a pause."""
OPEN_MAX_FACTOR: Final = 6.0
"""The longest time that a breaker stays open, over the first one."""
SLOW_START_FLOOR: Final = 0.1
ABORTED_MEMORY_SECONDS: Final = 60.0
# A look-up on an enum's class costs more than the comparison that it is for.
_OK: Final = Outcome.OK
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
    kv_tokens: int | None = None
    """Tokens that its KV cache holds."""


@dataclass(slots=True, eq=False)
class EndpointState:
    """Mutable state of one endpoint; owned by `Pools`, written on the event loop only."""

    id: str
    url: str
    pool: str
    link: Link
    added_at: float
    seasoned: bool
    """True once it needs no slow start: it is of its pool's first table, or its slow start is over."""
    label: str = ""
    """Its name in metrics and reports: a pod's name, else its id."""
    pace: Pace = field(default_factory=Pace)
    in_flight: int = 0
    in_flight_tokens: int = 0
    work_tokens: int = 0
    """Tokens that it has yet to compute for what is in flight: prompts without their cached prefix, and replies."""
    held_tokens: int = 0
    """KV that its active sessions, and requests without a session, count for."""
    caps: ReplicaCaps | None = None
    """What it may have in flight, where that is not what its pool's newest revision may have; None: the pool's caps."""
    kv_budget: int | None = None
    """Bound on `held_tokens`; None: none."""
    elsewhere: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Of the four above (requests, tokens, work, held): what the pod's other workers have there, as last read."""
    sessions: int = 0
    turn: int = 0
    """Number of the last placement there: of equals, the one that waited longest is next."""
    reachable: bool = True
    failures: int = 0
    broken_answers: int = 0
    """In a row, of those that had begun: an engine that always answers and never finishes works no better than a dead one."""
    open_until: float = 0.0
    open_seconds: float = 0.0
    opened: bool = False
    probing: bool = False
    busy_until: float = 0.0
    busy_seconds: float = BUSY_SECONDS
    backpressured: bool = False
    """True from a 429 or 503 until the engine takes a request again; meanwhile it gets one at a time."""
    draining: bool = False
    ready: bool = True
    """False while the cluster says that its pod is not ready."""
    removed: bool = False
    gauges: EngineGauges | None = None
    last_byte_at: float = 0.0
    aborted: dict[str, float] = field(default_factory=dict)
    """Router ids of requests given up while the engine had them, with the time, oldest first; forgotten after a minute."""

    @property
    def own_in_flight(self) -> int:
        """Requests of this worker alone."""
        return self.in_flight - self.elsewhere[0]

    def breaker(self, now: float) -> BreakerState:
        """The breaker's state at `now`."""
        if not self.opened:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self.open_until else BreakerState.HALF_OPEN

    def usable(self, now: float) -> bool:
        """True if the endpoint may get a new request."""
        if self.draining or not self.ready or not self.reachable or now < self.busy_until:
            return False
        if self.opened:
            return now >= self.open_until and not self.probing
        return not (self.probing and self.backpressured)

    def busy(self, now: float) -> bool:
        """True while the engine asked to be left alone (429 or 503)."""
        return now < self.busy_until or (self.backpressured and self.probing)

    def begin(self, tokens: int, work_tokens: int, now: float) -> None:
        """A request goes there."""
        self.in_flight += 1
        self.in_flight_tokens += tokens
        self.work_tokens += work_tokens
        if self.backpressured or (self.opened and now >= self.open_until):
            self.probing = True

    def end(self, tokens: int, work_tokens: int) -> None:
        """That request is no longer there."""
        self.in_flight -= 1
        self.in_flight_tokens -= tokens
        self.work_tokens -= work_tokens

    def answered(self, now: float) -> None:
        """It began to answer with a status below 500 that is no 429: it works and takes requests."""
        self.failures = 0
        self.opened = self.probing = self.backpressured = False
        self.open_seconds = self.pace.breaker_open_seconds
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
            self.open_seconds = min(self.open_seconds * 2, OPEN_MAX_FACTOR * self.pace.breaker_open_seconds)
        elif max(self.failures, self.broken_answers) >= FAILURES_TO_OPEN and not self.opened:
            self.open_seconds = self.pace.breaker_open_seconds
        else:
            return
        self.opened = True
        self.open_until = now + self.open_seconds

    def learn(self, ending: Ending, now: float) -> None:
        """What the end of a request there says of it."""
        if ending.outcome is _OK:
            self.broken_answers = 0
        elif ending.outcome in (Outcome.CLIENT_GONE, Outcome.ENGINE_REJECTED):
            self.neutral()
        elif ending.outcome in (Outcome.ENGINE_ERROR, Outcome.TRUNCATED) or ending.reason is Reason.ENGINE_SILENT:
            self.broken_answers += 1
            self.failed(now)

    def revive(self) -> None:
        """A probe got through: what kept the endpoint out for being unreachable is over."""
        if not self.reachable:
            self.reachable = True
            self.failures = self.broken_answers = 0
            self.opened = self.probing = False

    def hold_off(self, now: float, seconds: float | None) -> None:
        """The engine answered 429 or 503, with this `Retry-After` if any. This is backpressure, not a failure.

        The rest doubles from one try to the next, not with every request of a burst that was on its way already.
        """
        if seconds is not None and seconds >= SHORTEST_REST_SECONDS:
            self.busy_until = max(self.busy_until, now + min(seconds, 60.0))
        elif now >= self.busy_until:
            self.busy_until = now + self.busy_seconds
            self.busy_seconds = min(self.busy_seconds * 2, BUSY_MAX_SECONDS)
        self.backpressured = True
        self.probing = False

    def foreign_requests(self, now: float) -> int:
        """Requests of other routers that its gauges tell of, if these are fresh."""
        gauges = self.gauges
        if gauges is None or now - gauges.at > self.pace.gauge_max_age_seconds:
            return 0
        return max(0, gauges.running + gauges.queued - self.in_flight)

    def ramp(self, now: float) -> float:
        """Slow start: the share of its fair load that a young endpoint should take, up to 1."""
        if self.seasoned:
            return 1.0
        grown = (now - self.added_at) / self.pace.slow_start_seconds if self.pace.slow_start_seconds > 0 else 1.0
        if grown >= 1.0:
            self.seasoned = True
            return 1.0
        return max(SLOW_START_FLOOR, grown)

    def last_resort(self, now: float) -> bool:
        """True if it may be tried where every other one is out: only its breaker stands in the way."""
        return self.ready and self.reachable and not self.draining and not self.busy(now)
