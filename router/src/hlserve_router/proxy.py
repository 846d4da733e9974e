"""THE WAY OF A REQUEST, steps 1 to 6 and 8. Step 7, the relay of bytes, belongs to a face.

Nothing here knows a socket, awaits or does I/O: a face calls `open`, `submit` and `settle`, and is called back when the
request has an endpoint (at once, or after its turn in the queue). What each step decides stands in the module that it calls.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final, Protocol

from hlserve_api.answers import Reason
from hlserve_api.routing import ClassRoute, Intent, KeyEntry
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
from hlserve_router.advice import Advisor
from hlserve_router.affinity import affinity_key
from hlserve_router.body import read_body
from hlserve_router.cells import Shared
from hlserve_router.checks import check_media, check_size, check_store
from hlserve_router.classify import advise
from hlserve_router.dispatch import engine_request
from hlserve_router.errors import Refusal
from hlserve_router.estimate import output_tokens, prompt_tokens
from hlserve_router.exchange import Exchange, known
from hlserve_router.head import read_head, the_key
from hlserve_router.ids import Ids
from hlserve_router.keys import Keyrings, find_key
from hlserve_router.limits import Limits
from hlserve_router.metrics import Metrics
from hlserve_router.models import allowed_models
from hlserve_router.outcome import Ending
from hlserve_router.placement import place, release, returns
from hlserve_router.plans import Plan, Plans
from hlserve_router.pools import Pools
from hlserve_router.retries import RetryBudget, failed, may_retry
from hlserve_router.sharing import PodLoads, PodQueues
from hlserve_router.state import EngineRequest, Failure, NoPlace, Pace, Route
from hlserve_router.stored import StoredResponses

# A look-up on an enum's class costs more than the comparison that it is for.
_INTERACTIVE: Final = Intent.INTERACTIVE
KEY_USE_SECONDS: Final = 86_400.0
"""How long it is known when a key was used; the operator asks every few seconds."""


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
    shared: Shared | None = None
    """What the pod's workers tell each other; None: this process is the only one."""
    pace: Pace = field(default_factory=Pace)
    pools: Pools = field(init=False)
    keyrings: Keyrings = field(init=False, default_factory=Keyrings)
    limits: Limits = field(init=False)
    admission: Admission = field(init=False)
    metrics: Metrics = field(init=False, default_factory=Metrics)
    plans: Plans = field(init=False)
    ids: Ids = field(init=False)
    advisor: Advisor = field(init=False)
    stored: StoredResponses = field(init=False, default_factory=StoredResponses)
    pod: PodLoads | None = field(init=False, default=None)
    queues: PodQueues | None = field(init=False, default=None)
    budget: RetryBudget = field(init=False, default_factory=RetryBudget)
    keys_used: dict[str, float] = field(init=False, default_factory=dict)
    """When each client last showed a valid key, by ClientKey."""
    log: logging.Logger = field(init=False)

    def __post_init__(self) -> None:
        self.pools = Pools(self.pace)
        self.limits = Limits()
        if self.shared is not None:
            self.pod, self.queues = PodLoads(self.shared, self.pools), PodQueues(self.shared)
        self.admission = Admission(lambda lane: self.pools.below_share(lane.route), self.queues)
        self.plans = Plans(self.keyrings, self.pools, self.admission, self.metrics)
        self.ids = Ids(self.random)
        self.advisor = Advisor(self.metrics)
        self.log = logging.getLogger("hlserve_router.request")

    # the way ----------------------------------------------------------------------------------------------------------

    def open(self, route: Route, headers: list[tuple[bytes, bytes]]) -> Exchange:
        """Step 1, before the body is read. Raises Refusal."""
        # 1 authenticate: the digest of the key, in the keyring in force
        wall = self.clocks.wall()
        head, credentials = read_head(route, headers, self.ids.request_id(wall))
        key = find_key(self.keyrings, the_key(credentials), wall)
        now = self.keys_used[key.client] = self.now()
        return Exchange(route, head, key, self.ids.engine_id(), now)

    def submit(self, exchange: Exchange, body: bytes, waiter: Granted) -> None:
        """Steps 2 to 4; then `place` (5 and 6) runs at once or when its turn comes. Raises Refusal."""
        now, key, route = self.now(), exchange.key, exchange.route
        # 2 read the few body fields we need; the bytes stay as they are
        exchange.body = body
        exchange.facts = facts = read_body(route, body)
        # 3 classify: the key's class, which a header may only lower; then the class's pools that serve the model
        demoted = key.budget is not None and self.limits.demoted(key, self.clocks.wall())
        plan = self.plans.find(key, exchange.head.asked_class, facts.model, demoted=demoted)
        self._follow(exchange, plan)
        check_media(facts, plan.serving)
        check_store(facts, plan.serving)
        if facts.previous_response_id is not None:
            exchange.pinned = self.stored.find(facts.previous_response_id, key.client)
        # 4 admit: the key's limits, then the class queue
        exchange.prompt_tokens = prompt = prompt_tokens(facts, plan.sizes.bytes_per_token)
        exchange.output_tokens = output = output_tokens(facts, route)
        exchange.tokens = prompt + output
        check_size(plan.bounds, prompt, facts, route)
        if not self._reserve(exchange, plan, now):
            self._wait(exchange, partial(self.submit, exchange, body, waiter), waiter)
            return
        if plan.has_affinity:
            exchange.affinity_key = affinity_key(key.client, exchange.head, plan.model, facts)
        self.advisor.asked(exchange, plan.intent, now)
        plan.meters.overhead.observe(now - exchange.arrived)
        self._enqueue(exchange, plan, waiter, now)

    def place(self, exchange: Exchange, lane: Lane, now: float) -> NoPlace | None:
        """Steps 5 and 6 for a request whose turn it is: reserves an endpoint, or says why there is none."""
        # 5 the class's pools as they are now
        # 6 pick an endpoint, by affinity or load; spill by the class's rule
        pod = self.pod
        if pod is None:
            return place(self.pools, exchange, lane.route, now, waits_long=lane.spilling, barred=lane.barred)
        pod.refresh(lane.pools)
        blocked = place(self.pools, exchange, lane.route, now, waits_long=lane.spilling, barred=lane.barred)
        if blocked is None:
            pod.publish(known(exchange.endpoint), exchange.class_name)
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
            self._release(exchange, now)
        if exchange.reservation is not None:
            self.limits.settle(exchange.reservation, used_tokens(exchange), now)
        if exchange.trail is not None:
            exchange.trail.ended = now
        account(self.metrics, exchange, ending, now)
        exchange.forget_body()
        if self.log.isEnabledFor(logging.INFO):
            self.log.info("request", extra={"fields": log_fields(exchange, ending, now)})
        if self.admission.waiting:
            self.admission.pump(now, exchange.pool_name or None)

    def lately_used(self) -> dict[str, float]:
        """When each client last showed a valid key. What is older than a day is forgotten, or clients that are gone would pile up."""
        oldest = self.now() - KEY_USE_SECONDS
        for client in [client for client, used in self.keys_used.items() if used < oldest]:
            del self.keys_used[client]
        return self.keys_used

    # side ways --------------------------------------------------------------------------------------------------------

    def open_stored(self, exchange: Exchange, response_id: str, waiter: Granted) -> None:
        """Steps 3 and 4 of GET and cancel of a stored response: its own engine or none. Raises Refusal."""
        now = self.now()
        plan = self.plans.stored(exchange.key, exchange.head.asked_class)
        self._follow(exchange, plan)
        exchange.pinned = self.stored.find(response_id, exchange.key.client)
        if not self._reserve(exchange, plan, now):
            self._wait(exchange, partial(self.open_stored, exchange, response_id, waiter), waiter)
            return
        self._enqueue(exchange, plan, waiter, now)

    def retry(self, exchange: Exchange, failure: Failure, waiter: Granted) -> None:
        """A try failed below HTTP before any byte went out: on to another endpoint. Raises Refusal if it may not."""
        now = self.now()
        endpoint, plan = known(exchange.endpoint), known(exchange.plan)
        endpoint.failed(now)
        if failure is Failure.CONNECT:
            endpoint.reachable = False
        self._release(exchange, now)
        exchange.avoid |= {endpoint.id}
        took, cutoff = now - exchange.dispatched, plan.route.timeouts.retry_cutoff_seconds
        refusal = failed(failure, late=took > cutoff)
        again = exchange.pinned is None and may_retry(plan.route.intent, exchange.attempts, failure, took, cutoff)
        if not again or not self.budget.withdraw():
            raise refusal
        pool = exchange.pool_name
        blocked = self.place(exchange, plan.lane, now)
        if blocked in (NoPlace.EMPTY, NoPlace.DOWN, NoPlace.DRAINING):
            raise refusal
        self.metrics.count("hlserve_router_retries_total", (pool, "connect" if failure is Failure.CONNECT else "reset"))
        if blocked is None:
            self.granted(exchange, now)
            waiter.granted()
            return
        self._requeue(exchange, plan, waiter, now)

    def busy(self, exchange: Exchange, retry_after_seconds: float | None, waiter: Granted) -> None:
        """An engine answered 429 or 503: it is left alone for a while and the request waits for its turn again."""
        now = self.now()
        known(exchange.endpoint).hold_off(now, retry_after_seconds)
        self.metrics.count("hlserve_router_retries_total", (exchange.pool_name, "busy"))
        self._release(exchange, now)
        self._requeue(exchange, known(exchange.plan), waiter, now)

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
        return self.ids.request_id(self.clocks.wall())

    def authenticate(self, key: bytes) -> KeyEntry:
        """The credential of a key, if it may be used now. Raises Refusal (401, 403)."""
        return find_key(self.keyrings, key, self.clocks.wall())

    def allowed_models(self, key: KeyEntry, route: ClassRoute) -> Mapping[str, str]:
        """The names that a key may use in a class, each with the model it stands for."""
        return allowed_models(key, self.pools.models(route))

    def granted(self, exchange: Exchange, now: float) -> None:
        """Accounts for a placement; called each time a request gets an endpoint."""
        if exchange.attempts == 0:
            self.budget.deposit()
        plan = known(exchange.plan)
        exchange.pool_plan = pool = self.plans.pool(plan, known(exchange.endpoint).pool)
        account_placement(self.metrics, exchange, plan.meters, pool.meters, now)

    def engine_request(self, exchange: Exchange) -> EngineRequest:
        """The bytes for the endpoint that was picked. Begins a try."""
        exchange.attempts += 1
        exchange.dispatched = self.now()
        return engine_request(exchange, known(exchange.pool_plan))

    def _release(self, exchange: Exchange, now: float) -> None:
        endpoint = exchange.endpoint
        release(self.pools, exchange, now)
        if self.pod is not None and endpoint is not None:
            self.pod.publish(endpoint, exchange.class_name)
            self.pod.freed()

    # the parts of the steps -------------------------------------------------------------------------------------------

    def _follow(self, exchange: Exchange, plan: Plan) -> None:
        if exchange.plan is plan:
            return  # it comes back from a wait for its client's lease
        exchange.plan = plan
        exchange.class_route = plan.route
        exchange.class_name = plan.name
        exchange.model = plan.model
        head = exchange.head
        of_people = plan.intent is _INTERACTIVE
        account_class(
            self.metrics, plan.found, advise(head.user_agent, head.session is not None) if of_people else None
        )

    def _reserve(self, exchange: Exchange, plan: Plan, now: float) -> bool:
        """False if the client's lease of its limits is used up."""
        caps = plan.caps
        wall = self.clocks.wall() if caps.budget is not None else 0.0
        exchange.reservation = self.limits.admit(exchange.key, caps, exchange.tokens, now, wall)
        return exchange.reservation is not None

    def _wait(self, exchange: Exchange, step: Callable[[], None], waiter: Granted) -> None:
        """Takes the step again once the store of limits has answered, or is known to be away. Nothing is held meanwhile."""

        def again() -> None:
            if exchange.ending is not None:
                return  # the client is gone
            try:
                step()
            except Refusal as refusal:
                waiter.refused(refusal)
            except Exception:  # the boundary of a request: others wait for the same answer
                self.log.exception("request failed", extra={"fields": {"rid": exchange.rid}})
                self.metrics.count("hlserve_router_internal_errors_total")
                waiter.refused(Refusal(Reason.INTERNAL_ERROR, "The router failed; this is logged. Try again."))

        self.metrics.count("hlserve_router_limits_waits_total", (exchange.class_name,))
        self.limits.wait(exchange.key, again)

    def _enqueue(self, exchange: Exchange, plan: Plan, waiter: Granted, now: float) -> None:
        exchange.submitted = now
        exchange.lane = lane = plan.lane
        if not self.admission.contended(lane) and self.place(exchange, lane, now) is None:
            self.granted(exchange, now)
            waiter.granted()
            return
        exchange.entry = entry = self._entry(exchange, plan, waiter)
        self.admission.submit(lane, entry)

    def _requeue(self, exchange: Exchange, plan: Plan, waiter: Granted, now: float) -> None:
        exchange.avoid = frozenset()
        exchange.entry = entry = self._entry(exchange, plan, waiter)
        if now >= entry.deadline:
            entry.waiter = None
            refusal = no_place(exchange.class_name, exchange.model, NoPlace.BUSY)
            refusal.retry_after_seconds = self.pools.rest_seconds(plan.route, exchange.model, now)
            raise refusal
        entry.blocked = NoPlace.BUSY
        self.admission.submit(plan.lane, entry)

    def _entry(self, exchange: Exchange, plan: Plan, waiter: Granted) -> Entry:
        """The request's place in its lane: counted from when it was first queued."""
        at = exchange.submitted
        returning = returns(self.pools, exchange, crowded=plan.lane.crowded)
        turn = _Turn(self, exchange, waiter)
        return Entry(plan.flow, max(1, exchange.tokens), len(exchange.body), at, at + plan.ttl_seconds, turn, returning)


@dataclass(slots=True, eq=False)
class _Turn:
    """Couples a queue entry to its request and its face."""

    proxy: Proxy
    exchange: Exchange
    waiter: Granted

    def place(self, lane: Lane) -> NoPlace | None:
        return self.proxy.place(self.exchange, lane, self.proxy.now())

    def granted(self) -> None:
        self.proxy.granted(self.exchange, self.proxy.now())
        self.waiter.granted()

    def refused(self, refusal: Refusal) -> None:
        proxy, exchange = self.proxy, self.exchange
        if refusal.reason is Reason.ENGINE_BUSY:  # its client should not be back before the engines are
            route = known(exchange.class_route)
            refusal.retry_after_seconds = proxy.pools.rest_seconds(route, exchange.model, proxy.now())
        self.waiter.refused(refusal)
