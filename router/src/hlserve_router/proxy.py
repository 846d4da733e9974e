"""THE WAY OF A REQUEST, steps 1 to 6 and 8. Step 7, the relay of bytes, belongs to a face.

Nothing here knows a socket, awaits or does I/O: a face calls `open`, `submit` and `settle`, and is called back when the
request has an endpoint (at once, or after its turn in the queue). What each step decides stands in the module that it calls.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Protocol

from hlserve_api.routing import ClassRoute, Intent, KeyEntry, PoolRoute, TargetRole
from hlserve_router.accounting import (
    account,
    account_class,
    account_placement,
    account_refusal,
    log_fields,
    refusal_fields,
    used_tokens,
)
from hlserve_router.admission import Admission, Entry, Lane, no_place
from hlserve_router.affinity import affinity_key
from hlserve_router.body import read_body
from hlserve_router.checks import check_media, check_size, check_store, require_store
from hlserve_router.classify import advise, classify
from hlserve_router.dispatch import engine_request
from hlserve_router.errors import Refusal
from hlserve_router.estimate import flow_of, output_tokens, prompt_tokens, queue_ttl_seconds
from hlserve_router.exchange import Exchange
from hlserve_router.head import read_head, the_key
from hlserve_router.ids import engine_id, uuid7
from hlserve_router.keys import find_key
from hlserve_router.limits import Limits
from hlserve_router.metrics import Metrics
from hlserve_router.models import allowed_models, choose_model
from hlserve_router.outcome import Ending
from hlserve_router.placement import release, take, take_pinned
from hlserve_router.policy import spill_reason
from hlserve_router.pools import Keyrings, Pools
from hlserve_router.retries import RetryBudget, failed, may_retry
from hlserve_router.state import EngineRequest, Failure, NoPlace, Route
from hlserve_router.stored import StoredResponses


class Granted(Protocol):
    """The face's side of a request: told when there is an endpoint, or that there will be none."""

    def granted(self) -> None:
        """`exchange.endpoint` is set and reserved: dispatch."""

    def refused(self, refusal: Refusal) -> None:
        """Answer this."""


@dataclass(slots=True)
class Clocks:
    """Where time comes from. Monotonic seconds for waiting, Unix seconds for validity."""

    monotonic: Callable[[], float]
    wall: Callable[[], float]


@dataclass(slots=True, eq=False)
class Proxy:
    """The pipeline and the state it works on. One per process."""

    clocks: Clocks
    random: Random
    share: float = 1.0
    """This process's part of every limit and capacity (1 / workers)."""
    pools: Pools = field(init=False)
    keyrings: Keyrings = field(init=False, default_factory=Keyrings)
    limits: Limits = field(init=False)
    admission: Admission = field(init=False)
    metrics: Metrics = field(init=False, default_factory=Metrics)
    stored: StoredResponses = field(init=False, default_factory=StoredResponses)
    budget: RetryBudget = field(init=False, default_factory=RetryBudget)
    log: logging.Logger = field(init=False)

    def __post_init__(self) -> None:
        self.pools = Pools(self.share)
        self.limits = Limits(self.share)
        self.admission = Admission(lambda lane: self.pools.below_share(lane.route), self.share)
        self.log = logging.getLogger("hlserve_router.request")

    # the way ----------------------------------------------------------------------------------------------------------

    def open(self, route: Route, headers: list[tuple[bytes, bytes]]) -> Exchange:
        """Step 1, before the body is read. Raises Refusal."""
        # 1 authenticate: the digest of the key, in the keyring in force
        head, credentials = read_head(route, headers, self.request_id())
        key = self.authenticate(the_key(credentials))
        return Exchange(route, head, key, engine_id(self.random), self.now())

    def submit(self, exchange: Exchange, body: bytes, waiter: Granted) -> None:
        """Steps 2 to 4; then `place` (5 and 6) runs at once or when its turn comes. Raises Refusal."""
        now = self.now()
        # 2 read the few body fields we need; the bytes stay as they are
        exchange.body = body
        exchange.facts = facts = read_body(exchange.route, body)
        # 3 classify: the key's class, which a header may only lower; then the class's pools that serve the model
        exchange.class_route = route = self._classify(exchange)
        exchange.model = choose_model(self.allowed_models(exchange.key, route), facts.model)
        serving = self.pools.serving(route, exchange.model)
        check_media(facts, serving)
        check_store(facts, serving)
        if facts.previous_response_id is not None:
            exchange.pinned = self.stored.find(facts.previous_response_id, exchange.key.client)
        # 4 admit: the key's limits, then the class queue
        exchange.prompt_tokens = prompt_tokens(facts, self.pools.pools[serving[0].name].bytes_per_token)
        exchange.output_tokens = output_tokens(facts, exchange.route)
        check_size(exchange.prompt_tokens, facts, route, serving)
        exchange.reservation = self.limits.reserve(exchange.key, route, exchange.tokens, now, self._wall())
        if route.intent is not Intent.INTERACTIVE:
            exchange.affinity_key = affinity_key(exchange.key.client, exchange.head, exchange.model, facts)
        self.metrics.observe("hlserve_router_overhead_seconds", (route.name,), now - exchange.arrived)
        self._enqueue(exchange, route, serving, waiter)

    def place(self, exchange: Exchange, lane: Lane) -> NoPlace | None:
        """Steps 5 and 6 for a request whose turn it is: reserves an endpoint, or says why there is none."""
        now = self.now()
        route = lane.route
        # 5 a frozen snapshot of the class's pools
        primary = self.pools.snapshot(route, exchange.model, TargetRole.PRIMARY, now, exchange.avoid)
        # 6 pick an endpoint; spill by the class's rule
        if exchange.pinned is not None:
            return take_pinned(self.pools, exchange, now)
        blocked = take(self.pools, exchange, route, primary, None, now)
        if blocked is None:
            return None
        spill = spill_reason(route.spill, blocked, waits_long=lane.spilling)
        if spill is not None:
            others = self.pools.snapshot(route, exchange.model, TargetRole.SPILL, now, exchange.avoid)
            if others.states and take(self.pools, exchange, route, others, spill, now) is None:
                return None
        return blocked

    # 7 relay the bytes: `relay.Relay`

    def settle(self, exchange: Exchange, ending: Ending) -> None:
        """Step 8, exactly once: gives everything back, counts the one outcome, logs it, and lets the next ones move."""
        if exchange.ending is not None:
            return
        now = self.now()
        # 8 exactly one outcome, as metric label and log field
        exchange.ending = ending
        if exchange.lane is not None and exchange.entry is not None:
            self.admission.withdraw(exchange.lane, exchange.entry)
        if exchange.endpoint is not None:
            exchange.endpoint.learn(ending, now)
            release(self.pools, exchange)
        if exchange.reservation is not None:
            self.limits.settle(exchange.reservation, used_tokens(exchange), now)
        account(self.metrics, exchange, ending, now)
        exchange.body = b""
        if self.log.isEnabledFor(logging.INFO):
            self.log.info("request", extra={"fields": log_fields(exchange, ending, now)})
        self.admission.pump(now)

    # side ways --------------------------------------------------------------------------------------------------------

    def open_stored(self, exchange: Exchange, response_id: str, waiter: Granted) -> None:
        """Steps 3 and 4 of GET and cancel of a stored response: its own engine or none. Raises Refusal."""
        route = classify(exchange.key, exchange.head.asked_class, self.pools.classes).route
        exchange.class_route = route
        pools = [self.pools.pools[target.pool].route for target in route.targets]
        require_store(pools)
        exchange.pinned = self.stored.find(response_id, exchange.key.client)
        exchange.model = pools[0].model
        exchange.reservation = self.limits.reserve(exchange.key, route, 0, self.now(), self._wall())
        self._enqueue(exchange, route, (), waiter)

    def retry(self, exchange: Exchange, failure: Failure, waiter: Granted) -> None:
        """A try failed below HTTP before any byte went out: on to another endpoint. Raises Refusal if it may not."""
        now = self.now()
        endpoint, route = exchange.endpoint, exchange.class_route
        assert endpoint is not None and route is not None  # noqa: S101, PT018 - it was placed
        endpoint.failed(now)
        if failure is Failure.CONNECT:
            endpoint.reachable = False
        release(self.pools, exchange)
        exchange.avoid |= {endpoint.id}
        took, cutoff = now - exchange.dispatched, route.timeouts.retry_cutoff_seconds
        refusal = failed(failure, late=took > cutoff)
        again = exchange.pinned is None and may_retry(route.intent, exchange.attempts, failure, took, cutoff)
        if not again or not self.budget.withdraw():
            raise refusal
        pool = exchange.pool_name
        blocked = self.place(exchange, self.admission.lane(route, exchange.model))
        if blocked in (NoPlace.EMPTY, NoPlace.DOWN, NoPlace.DRAINING):
            raise refusal
        self.metrics.count("hlserve_router_retries_total", (pool, "connect" if failure is Failure.CONNECT else "reset"))
        if blocked is None:
            self.granted(exchange)
            waiter.granted()
            return
        self._requeue(exchange, waiter)

    def busy(self, exchange: Exchange, retry_after_seconds: float | None, waiter: Granted) -> None:
        """An engine answered 429 or 503: it is left alone for a while and the request waits for its turn again."""
        assert exchange.endpoint is not None  # noqa: S101 - it was placed
        exchange.endpoint.hold_off(self.now(), retry_after_seconds)
        self.metrics.count("hlserve_router_retries_total", (exchange.pool_name, "busy"))
        release(self.pools, exchange)
        self._requeue(exchange, waiter)

    def reject(self, route_name: str, refusal: Refusal) -> None:
        """Counts and logs a request that was refused before there was an exchange (no key, no such path)."""
        account_refusal(self.metrics, refusal)
        self.log.info("request", extra={"fields": refusal_fields(route_name, refusal)})

    # what the steps and the faces share -------------------------------------------------------------------------------

    def now(self) -> float:
        """Monotonic seconds."""
        return self.clocks.monotonic()

    def request_id(self) -> str:
        """A new UUIDv7."""
        return uuid7(self.clocks.wall(), self.random)

    def authenticate(self, key: bytes) -> KeyEntry:
        """The credential of a key, if it may be used now. Raises Refusal (401, 403)."""
        return find_key(self.keyrings, key, self.clocks.wall())

    def allowed_models(self, key: KeyEntry, route: ClassRoute) -> Mapping[str, str]:
        """The names that a key may use in a class, each with the model it stands for."""
        return allowed_models(key, self.pools.models(route))

    def granted(self, exchange: Exchange) -> None:
        """Accounts for a placement; called each time a request gets an endpoint."""
        if exchange.attempts == 0:
            self.budget.deposit()
        account_placement(self.metrics, exchange, self.now())

    def engine_request(self, exchange: Exchange) -> EngineRequest:
        """The bytes for the endpoint that was picked. Begins a try."""
        assert exchange.pool is not None and exchange.class_route is not None  # noqa: S101, PT018 - it was placed
        exchange.attempts += 1
        exchange.dispatched = self.now()
        return engine_request(exchange, exchange.pool.route, exchange.class_route)

    # the parts of the steps -------------------------------------------------------------------------------------------

    def _wall(self) -> datetime:
        return datetime.fromtimestamp(self.clocks.wall(), UTC)

    def _classify(self, exchange: Exchange) -> ClassRoute:
        key, head = exchange.key, exchange.head
        demoted = self.limits.demoted(key, self._wall())
        found = classify(key, head.asked_class, self.pools.classes, demoted=demoted)
        account_class(self.metrics, found, advise(exchange.facts, head.user_agent, head.session is not None))
        return found.route

    def _enqueue(self, exchange: Exchange, route: ClassRoute, serving: Sequence[PoolRoute], waiter: Granted) -> None:
        now = self.now()
        exchange.submitted = now
        exchange.lane = self.admission.lane(route, exchange.model)
        exchange.entry = Entry(
            flow_of(exchange.key, route),
            max(1, exchange.tokens),
            len(exchange.body),
            now,
            now + queue_ttl_seconds(route, serving),
            _Turn(self, exchange, waiter),
        )
        self.admission.submit(exchange.lane, exchange.entry)

    def _requeue(self, exchange: Exchange, waiter: Granted) -> None:
        entry, lane = exchange.entry, exchange.lane
        assert entry is not None and lane is not None  # noqa: S101, PT018 - it was queued before
        exchange.avoid = frozenset()
        entry.waiter = _Turn(self, exchange, waiter)
        if self.now() >= entry.deadline:
            raise no_place(exchange.class_name, exchange.model, NoPlace.BUSY)
        entry.blocked = NoPlace.BUSY
        self.admission.submit(lane, entry)


@dataclass(slots=True, eq=False)
class _Turn:
    """Couples a queue entry to its request and its face."""

    proxy: Proxy
    exchange: Exchange
    waiter: Granted

    def place(self, lane: Lane) -> NoPlace | None:
        return self.proxy.place(self.exchange, lane)

    def granted(self) -> None:
        self.proxy.granted(self.exchange)
        self.waiter.granted()

    def refused(self, refusal: Refusal) -> None:
        self.waiter.refused(refusal)
