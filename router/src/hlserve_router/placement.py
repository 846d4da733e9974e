"""Steps 5 and 6 for one request: takes an endpoint, and gives it back. No I/O; the caller passes the time."""

from typing import Final

from hlserve_api.routing import ClassRoute, TargetRole
from hlserve_router.exchange import Exchange
from hlserve_router.policy import Ask, Pick, pick, spill_reason
from hlserve_router.pools import Offer, Pools
from hlserve_router.sessions import Session
from hlserve_router.state import AffinityResult, NoPlace, SpillReason

# A look-up on an enum's class costs more than the comparison that it is for.
_PRIMARY: Final = TargetRole.PRIMARY
_MISS: Final = AffinityResult.MISS
MAX_ROUNDS: Final = 32
"""While others wait for KV, a session gives its place up after so many requests: what bounds their wait is sessions, not seconds."""


def place(
    pools: Pools,
    exchange: Exchange,
    route: ClassRoute,
    now: float,
    *,
    waits_long: bool,
    barred: frozenset[str] = frozenset(),
) -> NoPlace | None:
    """Reserves the endpoint that the policy picks, on the class's own pools or by its rule on the Spill ones; or says why not.

    `barred`: pools whose room is kept for others that wait.
    """
    if exchange.pinned is not None:
        return take_pinned(pools, exchange, now)
    key = exchange.affinity_key
    session = None if key is None else pools.sessions.find(key)
    ask = Ask(
        route.name, route.intent, exchange.prompt_tokens, exchange.output_tokens, key, session,
        now - exchange.submitted, exchange.avoid,
    )  # fmt: skip
    offers = pools.offers(route, exchange.model, _PRIMARY)
    if barred:
        offers = _without(offers, barred)
    found = pick(offers, ask, now) if offers or not barred else NoPlace.FULL
    if isinstance(found, Pick):
        _take(pools, exchange, found, session, now)
        return None
    reason = spill_reason(route.spill, found, waits_long=waits_long)
    if reason is None:
        return found
    others = _without(pools.spill_offers(route, exchange.model, now), barred)
    if not others:
        return found
    # A spilled request has no home there: its session's place is on the class's own pools.
    spilled = pick(
        others, Ask(route.name, route.intent, exchange.prompt_tokens, exchange.output_tokens, avoid=exchange.avoid), now
    )
    if not isinstance(spilled, Pick):
        return found
    _take(pools, exchange, spilled, None, now, reason)
    return None


def _without(offers: tuple[Offer, ...], barred: frozenset[str]) -> tuple[Offer, ...]:
    return tuple(offer for offer in offers if offer.pool.route.name not in barred)


def _take(
    pools: Pools,
    exchange: Exchange,
    found: Pick,
    session: Session | None,
    now: float,
    spill: SpillReason | None = None,
) -> None:
    endpoint, affinity = found.endpoint, found.affinity
    key = exchange.affinity_key
    work = exchange.prompt_tokens + exchange.output_tokens
    if affinity is _MISS and key is not None:
        session = pools.sessions.settle(key, endpoint, now)
    # Of a session's requests that run at the same time, one counts as its context, and the others for themselves.
    enters = session is not None and session.home is endpoint and not session.in_flight
    if enters and session is not None:
        work -= min(session.context_tokens, exchange.prompt_tokens)
    exchange.endpoint, exchange.spill, exchange.affinity, exchange.work_tokens = endpoint, spill, affinity, work
    pool = exchange.pool = pools.take(endpoint, exchange.class_name, exchange.tokens, work, now)
    if enters and session is not None:
        exchange.session = session
        pools.sessions.enter(session, pool.kv_need(exchange.prompt_tokens, exchange.output_tokens), now)
        return
    if session is not None:
        pools.sessions.touch(session, now)
    if endpoint.kv_budget is not None:
        exchange.held_tokens = pool.kv_need(exchange.prompt_tokens, exchange.output_tokens)
        endpoint.held_tokens += exchange.held_tokens


def take_pinned(pools: Pools, exchange: Exchange, now: float) -> NoPlace | None:
    """Reserves the one engine that has the stored response, if it is there."""
    pinned = exchange.pinned
    if pinned is None or pinned.removed or not pinned.reachable or pinned.pool not in pools.pools:
        return NoPlace.DOWN
    if pinned.busy(now):
        return NoPlace.BUSY
    exchange.work_tokens = exchange.tokens
    exchange.pool = pools.take(pinned, exchange.class_name, exchange.tokens, exchange.tokens, now)
    exchange.endpoint = pinned
    return None


def release(pools: Pools, exchange: Exchange, now: float) -> None:
    """Gives the endpoint back, if the request has one. Its pool stays known, for metrics and headers."""
    endpoint, pool = exchange.endpoint, exchange.pool
    if endpoint is None or pool is None:
        return
    pools.give_back(pool, endpoint, exchange.class_name, exchange.tokens, exchange.work_tokens)
    exchange.endpoint = None
    endpoint.held_tokens -= exchange.held_tokens
    exchange.held_tokens = 0
    usage = exchange.usage
    if usage.completion_tokens:
        pool.learn_reply(usage.completion_tokens)
    session = exchange.session
    if session is not None:
        exchange.session = None
        known = usage.prompt_tokens is not None
        pools.sessions.leave(
            session, (usage.prompt_tokens or 0) + (usage.completion_tokens or 0) if known else None, now
        )


def returns(pools: Pools, exchange: Exchange, *, crowded: bool) -> bool:
    """True if the request's session has a place already, so that it does not wait behind sessions that have none.

    `crowded`: sessions wait for KV. Then one that had its turn for long gives its place up, and queues as the others do.
    """
    key = exchange.affinity_key
    session = None if key is None else pools.sessions.find(key)
    if session is None or not session.active or session.in_flight:
        return False
    if crowded and session.rounds >= MAX_ROUNDS:
        pools.sessions.retire(session)
        return False
    return True
