"""THE WAY OF A REQUEST, steps 1 to 6 and 8. Step 7, the relay of bytes, belongs to a face.

Nothing here knows a socket, awaits or does I/O: a face calls `open`, `submit` and `settle`, and is called back when the
request has an endpoint (at once, or after its turn in the queue).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b, sha256
from hmac import compare_digest
from random import Random
from typing import Final, Protocol
from urllib.parse import urlsplit

from hlserve_api import headers as names
from hlserve_api.answers import Outcome, Reason
from hlserve_api.routing import (
    ClassRoute,
    FairnessBy,
    Intent,
    KeyEntry,
    OnExhausted,
    PoolRoute,
    PriorityOrder,
    TargetRole,
)
from hlserve_router.accounting import account
from hlserve_router.admission import Admission, Entry, Lane, no_place
from hlserve_router.body import engine_body, read_body
from hlserve_router.classify import Rule, advise, classify
from hlserve_router.errors import Refusal
from hlserve_router.exchange import Exchange
from hlserve_router.head import INVALID_KEY, read_head, the_key
from hlserve_router.ids import engine_id, uuid7
from hlserve_router.limits import Limits
from hlserve_router.metrics import Metrics
from hlserve_router.models import find_model
from hlserve_router.outcome import Ending, refused
from hlserve_router.policy import pick
from hlserve_router.pools import Keyrings, Pools, Snapshot
from hlserve_router.retries import RetryBudget, may_retry
from hlserve_router.state import (
    AffinityResult,
    BodyFacts,
    EngineRequest,
    Failure,
    NoPlace,
    RidTravel,
    Route,
    SpillReason,
)
from hlserve_router.stored import StoredResponses

OUTPUT_TOKENS_DEFAULT: Final = 512
OUTPUT_TOKENS_CAP: Final = 4096
"""What a reply counts as in estimates: its limit, but not the ceiling that agents send and almost no reply reaches."""
PREFIX_BYTES_MIN: Final = 256
"""A shorter prompt has no prefix worth an affinity."""


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
    _turn: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.pools = Pools(self.share)
        self.limits = Limits(self.share)
        self.admission = Admission(lambda lane: self.pools.below_share(lane.route), self.share)
        self.log = logging.getLogger("hlserve_router.request")

    def now(self) -> float:
        """Monotonic seconds."""
        return self.clocks.monotonic()

    def request_id(self) -> str:
        """A new UUIDv7."""
        return uuid7(self.clocks.wall(), self.random)

    # 1 authenticate ---------------------------------------------------------------------------------------------------

    def open(self, route: Route, headers: list[tuple[bytes, bytes]]) -> Exchange:
        """Step 1, before the body is read: the digest of the key, in the keyring in force. Raises Refusal."""
        head, credentials = read_head(route, headers, self.request_id())
        key = self.authenticate(the_key(credentials))
        return Exchange(route, head, key, engine_id(self.random), self.now())

    def authenticate(self, key: bytes) -> KeyEntry:
        """The credential of a key, if it may be used now. Raises Refusal (401, 403)."""
        digest = sha256(key).hexdigest()
        entry = self.keyrings.find(digest)
        if entry is None or not compare_digest(entry.digest, digest):
            raise Refusal(Reason.INVALID_KEY, INVALID_KEY)
        if entry.suspended:
            raise Refusal(Reason.KEY_SUSPENDED, f"The client {entry.client!r} is suspended: ask the platform team.")
        wall = self.clocks.wall()
        if entry.not_before is not None and wall < entry.not_before.timestamp():
            raise Refusal(Reason.KEY_NOT_YET_VALID, f"This key is valid from {entry.not_before.isoformat()} on.")
        if entry.not_after is not None and wall >= entry.not_after.timestamp():
            raise Refusal(Reason.KEY_EXPIRED, f"This key expired at {entry.not_after.isoformat()}: use its successor.")
        return entry

    # 2 to 6 -----------------------------------------------------------------------------------------------------------

    def submit(self, exchange: Exchange, body: bytes, waiter: Granted) -> None:
        """Steps 2 to 4; then `place` (5 and 6) runs at once or when its turn comes. Raises Refusal."""
        now = self.now()
        # 2 read the few body fields we need; the bytes stay as they are
        exchange.body = body
        exchange.facts = facts = read_body(exchange.route, body)
        # 3 classify: the key's class, which a header may only lower
        self._classify(exchange, facts)
        serving = self._model(exchange, facts)
        self._check_media(facts, serving)
        self._check_store(exchange, facts, serving)
        # 4 admit: the key's limits, then the class queue
        self._estimate(exchange, facts, serving)
        self._check_size(exchange, facts, serving)
        assert exchange.class_route is not None  # noqa: S101 - set by _classify
        route = exchange.class_route
        exchange.reservation = self.limits.reserve(exchange.key, route, exchange.tokens, now, self._wall())
        exchange.affinity_key = _affinity_key(exchange, facts) if route.intent is not Intent.INTERACTIVE else None
        self.metrics.observe("hlserve_router_overhead_seconds", (route.name,), now - exchange.arrived)
        self._enqueue(exchange, waiter, route.queue.ttl_milliseconds, serving)

    def _enqueue(
        self, exchange: Exchange, waiter: Granted, ttl_milliseconds: int, serving: tuple[PoolRoute, ...]
    ) -> None:
        assert exchange.class_route is not None  # noqa: S101 - set by _classify
        ttl = min(
            (ttl_milliseconds, *(p.queue_ttl_milliseconds for p in serving if p.queue_ttl_milliseconds is not None))
        )
        flow = exchange.key.client
        if exchange.class_route.fairness is FairnessBy.TENANT and exchange.key.tenant:
            flow = exchange.key.tenant
        now = self.now()
        exchange.submitted = now
        exchange.lane = self.admission.lane(exchange.class_route, exchange.model)
        exchange.entry = Entry(
            flow, max(1, exchange.tokens), len(exchange.body), now, now + ttl / 1000, _Turn(self, exchange, waiter)
        )
        self.admission.submit(exchange.lane, exchange.entry)

    def place(self, exchange: Exchange, lane: Lane) -> NoPlace | None:
        """Steps 5 and 6 for a request whose turn it is: reserves an endpoint, or says why there is none."""
        now = self.now()
        route = lane.route
        # 5 a frozen snapshot of the class's pools
        primary = self.pools.snapshot(route, exchange.model, TargetRole.PRIMARY, now, exchange.avoid)
        # 6 pick an endpoint; spill by the class's rule
        if exchange.pinned is not None:
            return self._take_pinned(exchange, now)
        blocked = self._take(exchange, primary, None, now)
        if blocked is None:
            return None
        spill = None
        if blocked in (NoPlace.DOWN, NoPlace.EMPTY, NoPlace.DRAINING) and route.spill.when_unavailable:
            spill = SpillReason.UNAVAILABLE
        elif lane.spilling:
            spill = SpillReason.QUEUE_WAIT
        if spill is not None:
            others = self.pools.snapshot(route, exchange.model, TargetRole.SPILL, now, exchange.avoid)
            if others.states and self._take(exchange, others, spill, now) is None:
                return None
        return blocked

    def _take(self, exchange: Exchange, snapshot: Snapshot, spill: SpillReason | None, now: float) -> NoPlace | None:
        if snapshot.verdict is not None:
            return snapshot.verdict
        assert exchange.class_route is not None  # noqa: S101 - set by _classify
        route = exchange.class_route
        sessions = self.pools.sessions
        home = sessions.home(exchange.affinity_key) if exchange.affinity_key is not None else None
        self._turn += 1
        choice = pick(
            route.intent, snapshot.views, exchange.tokens, exchange.affinity_key, home.id if home else None, self._turn
        )
        if choice is None:
            return NoPlace.FULL
        endpoint = snapshot.states[choice.index]
        exchange.pool = self.pools.take(endpoint, route.name, exchange.tokens, now)
        exchange.endpoint, exchange.spill, exchange.affinity = endpoint, spill, choice.affinity
        if exchange.affinity_key is not None and spill is None:
            if choice.affinity is AffinityResult.MISS:
                sessions.settle(exchange.affinity_key, endpoint, now)
            else:
                sessions.touch(exchange.affinity_key, now)
        return None

    def _take_pinned(self, exchange: Exchange, now: float) -> NoPlace | None:
        pinned = exchange.pinned
        if pinned is None or pinned.removed or not pinned.reachable or pinned.pool not in self.pools.pools:
            return NoPlace.DOWN
        exchange.pool = self.pools.take(pinned, exchange.class_name, exchange.tokens, now)
        exchange.endpoint = pinned
        return None

    # what a face needs for step 7 ---------------------------------------------------------------------------------------

    def engine_request(self, exchange: Exchange) -> EngineRequest:
        """The bytes for the endpoint that was picked: the allowed headers, ours, and the body with its stated spans."""
        assert exchange.pool is not None and exchange.class_route is not None  # noqa: S101, PT018 - it was placed
        pool = exchange.pool.route
        exchange.attempts += 1
        exchange.dispatched = self.now()
        headers = list(exchange.head.forwarded)
        headers.append((names.REQUEST_ID.encode(), exchange.head.request_id.encode()))
        priority = None
        rid: tuple[RidTravel, str] | None = None
        if not pool.foreign:
            if exchange.route.rid is not RidTravel.NONE:
                rid = (exchange.route.rid, exchange.rid)
            if exchange.route.generates and pool.priority_order is not PriorityOrder.NONE:
                sign = 1 if pool.priority_order is PriorityOrder.HIGHER_FIRST else -1
                priority = sign * exchange.class_route.priority
            if rid is not None and rid[0] is RidTravel.HEADER:
                headers.append((names.ENGINE_RID.encode(), exchange.rid.encode()))
                if priority is not None:
                    headers.append((names.ENGINE_PRIORITY.encode(), b"%d" % priority))
                    priority = None
        facts = exchange.facts
        named = facts.model
        body = engine_body(
            exchange.body,
            facts,
            model=pool.model if named is not None and named != pool.model else None,
            rid=rid,
            priority=priority,
            include_usage=pool.foreign and facts.stream and exchange.route.usage_strippable and not facts.wants_usage,
        )
        return EngineRequest(exchange.method, exchange.path or exchange.route.path, tuple(headers), body)

    def retry(self, exchange: Exchange, failure: Failure, waiter: Granted) -> None:
        """A try failed below HTTP before any byte went out: on to another endpoint. Raises Refusal if it may not."""
        now = self.now()
        assert exchange.endpoint is not None and exchange.class_route is not None  # noqa: S101, PT018 - it was placed
        route = exchange.class_route
        took = now - exchange.dispatched
        exchange.endpoint.failed(now)
        if failure is Failure.CONNECT:
            exchange.endpoint.reachable = False
        pool = exchange.pool_name
        exchange.avoid |= {exchange.endpoint.id}
        self._release(exchange)
        cutoff = route.timeouts.retry_cutoff_seconds
        refusal = Refusal(FAILURE_REASONS[failure], FAILURE_MESSAGES[failure], late=took > cutoff)
        if exchange.pinned is not None or not may_retry(route.intent, exchange.attempts, failure, took, cutoff):
            raise refusal
        if not self.budget.withdraw():
            raise refusal
        cause = "connect" if failure is Failure.CONNECT else "reset"
        lane = self.admission.lane(route, exchange.model)
        blocked = self.place(exchange, lane)
        if blocked in (NoPlace.EMPTY, NoPlace.DOWN, NoPlace.DRAINING):
            raise refusal
        self.metrics.count("hlserve_router_retries_total", (pool, cause))
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
        self._release(exchange)
        self._requeue(exchange, waiter)

    def _requeue(self, exchange: Exchange, waiter: Granted) -> None:
        entry, lane = exchange.entry, exchange.lane
        assert entry is not None and lane is not None  # noqa: S101, PT018 - it was queued before
        exchange.avoid = frozenset()
        entry.waiter = _Turn(self, exchange, waiter)
        if self.now() >= entry.deadline:
            raise no_place(exchange.class_name, exchange.model, NoPlace.BUSY)
        entry.blocked = NoPlace.BUSY
        self.admission.submit(lane, entry)

    def granted(self, exchange: Exchange) -> None:
        """Accounts for a placement; called each time a request gets an endpoint."""
        now = self.now()
        class_name, pool = exchange.class_name, exchange.pool_name
        if exchange.attempts == 0:
            self.budget.deposit()
            self.metrics.observe("hlserve_router_queue_wait_seconds", (class_name,), now - exchange.submitted)
            self.metrics.count("hlserve_router_affinity_total", (class_name, pool, exchange.affinity.value))
        if exchange.spill is not None:
            self.metrics.count("hlserve_router_spills_total", (class_name, pool, exchange.spill.value))

    # 8 outcome --------------------------------------------------------------------------------------------------------

    def settle(self, exchange: Exchange, ending: Ending) -> None:
        """Step 8, exactly once: gives everything back, counts the one outcome, logs it, and lets the next ones move."""
        if exchange.ending is not None:
            return
        exchange.ending = ending
        now = self.now()
        if exchange.lane is not None and exchange.entry is not None:
            self.admission.withdraw(exchange.lane, exchange.entry)
        if exchange.endpoint is not None:
            self._settle_endpoint(exchange, ending, now)
            self._release(exchange)
        if exchange.reservation is not None:
            self.limits.settle(exchange.reservation, used_tokens(exchange), now)
        account(self.metrics, exchange, ending, now)
        exchange.body = b""
        if self.log.isEnabledFor(logging.INFO):
            self.log.info("request", extra={"fields": log_fields(exchange, ending, now)})
        self.admission.pump(now)

    def reject(self, route_name: str, refusal: Refusal) -> None:
        """Counts a request that was refused before there was an exchange (no key, no such path)."""
        ending = refused(refusal.reason)
        self.metrics.count("hlserve_router_requests_total", ("", "", ending.outcome.value, refusal.reason.value))
        fields = {"route": route_name, "outcome": ending.outcome.value, "reason": refusal.reason.value}
        self.log.info("request", extra={"fields": fields})

    def _settle_endpoint(self, exchange: Exchange, ending: Ending, now: float) -> None:
        endpoint = exchange.endpoint
        if endpoint is None:
            return
        if ending.outcome is Outcome.CLIENT_GONE or ending.outcome is Outcome.ENGINE_REJECTED:
            endpoint.neutral()
        elif ending.outcome in (Outcome.ENGINE_ERROR, Outcome.TRUNCATED) or ending.reason is Reason.ENGINE_SILENT:
            endpoint.failed(now)

    def _release(self, exchange: Exchange) -> None:
        if exchange.endpoint is not None and exchange.pool is not None:
            self.pools.give_back(exchange.pool, exchange.endpoint, exchange.class_name, exchange.tokens)
            exchange.endpoint = None

    # the parts of the steps -------------------------------------------------------------------------------------------

    def _wall(self) -> datetime:
        return datetime.fromtimestamp(self.clocks.wall(), UTC)

    def _classify(self, exchange: Exchange, facts: BodyFacts) -> None:
        key = exchange.key
        demoted = (
            key.budget is not None
            and key.budget.on_exhausted is OnExhausted.DEMOTE
            and self.limits.exhausted(key, self._wall())
        )
        found = classify(key, exchange.head.asked_class, self.pools.classes, demoted=demoted)
        exchange.class_route = found.route
        if found.rule is Rule.CLAMPED:
            self.metrics.count("hlserve_router_class_clamped_total", (found.route.name,))
        looks_like = advise(facts, exchange.head.user_agent, exchange.head.session is not None)
        if looks_like is not found.route.intent:
            self.metrics.count("hlserve_router_class_advice_total", (found.route.name, looks_like.value))

    def _model(self, exchange: Exchange, facts: BodyFacts) -> tuple[PoolRoute, ...]:
        route = exchange.class_route
        assert route is not None  # noqa: S101 - set by _classify
        names_ = self.allowed_models(exchange.key, route)
        name = facts.model
        if name is None:
            models = set(names_.values())
            if len(models) != 1:
                raise Refusal(Reason.MISSING_MODEL, "Several models are served: name one in `model`.", param="model")
            name = next(iter(models))
        _, model = find_model(names_, name)
        exchange.model = model
        return self.pools.serving(route, exchange.model)

    def allowed_models(self, key: KeyEntry, route: ClassRoute) -> dict[str, str]:
        """The names that a key may use in a class, each with the model it stands for."""
        found = self.pools.models(route)
        if not key.models:
            return found
        return {name: model for name, model in found.items() if name in key.models or model in key.models}

    @staticmethod
    def _check_media(facts: BodyFacts, serving: tuple[PoolRoute, ...]) -> None:
        for ref in facts.media:
            if ref.url[:5].lower() == "data:" or _is_base64(ref.url):
                continue
            try:
                parts = urlsplit(ref.url)
                host = parts.hostname or ""
            except ValueError:
                parts, host = urlsplit(""), ""
            domains = {domain for pool in serving for domain in pool.allowed_media_domains}
            if parts.scheme.lower() not in ("http", "https") or host not in domains:
                raise Refusal(
                    Reason.MEDIA_NOT_ALLOWED,
                    f"`{ref.field}` must be a data: URL, or http(s) of a domain that the pool allows.",
                    param=ref.field,
                )

    def _check_store(self, exchange: Exchange, facts: BodyFacts, serving: tuple[PoolRoute, ...]) -> None:
        if facts.previous_response_id is None and not facts.background:
            return
        if not any(pool.response_store for pool in serving):
            raise Refusal(
                Reason.RESPONSE_STORE_OFF,
                "Stored responses are off here: send the whole conversation instead of `previous_response_id`, "
                "and no `background`.",
                param="previous_response_id" if facts.previous_response_id else "background",
            )
        if facts.previous_response_id is not None:
            exchange.pinned = self.stored.find(facts.previous_response_id, exchange.key.client)

    def _estimate(self, exchange: Exchange, facts: BodyFacts, serving: tuple[PoolRoute, ...]) -> None:
        pool = self.pools.pools[serving[0].name]
        prompt = facts.exact_prompt_tokens
        exchange.prompt_tokens = prompt if prompt is not None else int(facts.prompt_bytes / pool.bytes_per_token)
        if exchange.route.generates:
            limit = facts.output_limit_tokens
            output = OUTPUT_TOKENS_DEFAULT if limit is None else min(limit, OUTPUT_TOKENS_CAP)
            exchange.output_tokens = output * facts.choices

    @staticmethod
    def _check_size(exchange: Exchange, facts: BodyFacts, serving: tuple[PoolRoute, ...]) -> None:
        assert exchange.class_route is not None  # noqa: S101 - set by _classify
        limit = exchange.class_route.limits.max_input_tokens
        if limit is not None and exchange.prompt_tokens > limit:
            raise Refusal(
                Reason.INPUT_TOO_LARGE,
                f"The prompt has about {exchange.prompt_tokens} tokens; class {exchange.class_name!r} takes {limit}.",
            )
        contexts = [pool.context_length for pool in serving if pool.context_length is not None]
        surely = facts.exact_prompt_tokens if facts.exact_prompt_tokens is not None else facts.prompt_bytes // 64
        if contexts and surely > max(contexts):
            raise Refusal(
                Reason.INPUT_TOO_LARGE,
                f"The prompt has more tokens than the model's context of {max(contexts)}: shorten it.",
            )

    def open_stored(self, exchange: Exchange, response_id: str, waiter: Granted) -> None:
        """Steps 3 to 6 of GET and cancel of a stored response: its own engine or none. Raises Refusal."""
        exchange.class_route = classify(exchange.key, exchange.head.asked_class, self.pools.classes).route
        pools = [self.pools.pools[target.pool].route for target in exchange.class_route.targets]
        if not any(pool.response_store for pool in pools):
            raise Refusal(
                Reason.RESPONSE_STORE_OFF, "Stored responses are off here: keep the answer of POST /v1/responses."
            )
        exchange.pinned = self.stored.find(response_id, exchange.key.client)
        exchange.model = pools[0].model
        exchange.reservation = self.limits.reserve(exchange.key, exchange.class_route, 0, self.now(), self._wall())
        self._enqueue(exchange, waiter, exchange.class_route.queue.ttl_milliseconds, ())


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


FAILURE_REASONS: Final = {
    Failure.CONNECT: Reason.ENGINE_CONNECT,
    Failure.RESET: Reason.ENGINE_RESET,
    Failure.TRUNCATED: Reason.ENGINE_TRUNCATED,
    Failure.PROTOCOL: Reason.ENGINE_PROTOCOL,
}
FAILURE_MESSAGES: Final = {
    Failure.CONNECT: "The engine could not be reached. Try again.",
    Failure.RESET: "The engine broke the connection. Try again.",
    Failure.TRUNCATED: "The engine ended its answer too early: what came is not complete. Try again.",
    Failure.PROTOCOL: "The engine's answer was not valid HTTP. Try again; the platform team sees it in the log.",
}


def used_tokens(exchange: Exchange) -> int:
    """Tokens to charge: as the engine reported, else what was seen of the reply, else nothing if no engine had it."""
    usage = exchange.usage
    if usage.prompt_tokens is None and usage.completion_tokens is None:
        return exchange.prompt_tokens + exchange.events if exchange.first_event else 0
    return (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)


def log_fields(exchange: Exchange, ending: Ending, now: float) -> dict[str, object]:
    """The log line of a request: names and numbers, never keys, headers or text of the client."""
    return {
        "request_id": exchange.head.request_id,
        "rid": exchange.rid,
        "route": exchange.route.name,
        "client": exchange.key.client,
        "class": exchange.class_name,
        "pool": exchange.pool_name,
        "outcome": ending.outcome.value,
        "reason": ending.reason.value if ending.reason is not None else "",
        "status": ending.status,
        "attempts": exchange.attempts,
        "spill": exchange.spill.value if exchange.spill is not None else "",
        "affinity": exchange.affinity.value,
        "queue_ms": round((exchange.dispatched - exchange.submitted) * 1000, 1) if exchange.dispatched else None,
        "ttft_ms": round((exchange.first_event - exchange.arrived) * 1000, 1) if exchange.first_event else None,
        "e2e_ms": round((now - exchange.arrived) * 1000, 1),
        "prompt_tokens": exchange.usage.prompt_tokens,
        "completion_tokens": exchange.usage.completion_tokens,
    }


def _affinity_key(exchange: Exchange, facts: BodyFacts) -> str | None:
    """What names the request's session, best first; None if nothing does.

    One agent program may run many sub-agents under one session id: the first turn after the system prompt tells them
    apart, and stays the same from turn to turn. An explicit `x-hlserve-session` counts as it is.
    """
    client = exchange.key.client
    head = exchange.head
    if head.session is not None and head.session_explicit:
        return f"{client}\0{head.session}"
    prefix = blake2b(facts.prefix, digest_size=12).hexdigest() if len(facts.prefix) >= PREFIX_BYTES_MIN else ""
    session = head.session or facts.session
    if session is not None:
        return f"{client}\0{session}\0{prefix}"
    return f"\0{exchange.model}\0{prefix}" if prefix else None


def _is_base64(text: str) -> bool:
    """True for inline media as SGLang's own API takes it: long and without anything a path or URL needs."""
    return len(text) > 256 and ":" not in text[:64] and "." not in text[:256] and not text.startswith("/")
