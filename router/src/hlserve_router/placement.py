"""Step 6: takes an endpoint of a snapshot for a request, and gives it back. No I/O; the caller passes the time."""

from hlserve_api.routing import ClassRoute
from hlserve_router.exchange import Exchange
from hlserve_router.policy import pick
from hlserve_router.pools import Pools, Snapshot
from hlserve_router.state import NoPlace, SpillReason


def take(
    pools: Pools, exchange: Exchange, route: ClassRoute, snapshot: Snapshot, spill: SpillReason | None, now: float
) -> NoPlace | None:
    """Reserves the endpoint that the policy picks, and keeps the session's home; or says why there is none."""
    if snapshot.verdict is not None:
        return snapshot.verdict
    session, sessions = exchange.affinity_key, pools.sessions
    home = sessions.home(session) if session is not None else None
    turn = pools.next_turn()
    choice = pick(route.intent, snapshot.views, exchange.tokens, session, home.id if home else None, turn)
    if choice is None:
        return NoPlace.FULL
    endpoint = snapshot.states[choice.index]
    exchange.pool = pools.take(endpoint, route.name, exchange.tokens, now)
    exchange.endpoint, exchange.spill, exchange.affinity = endpoint, spill, choice.affinity
    if session is not None and spill is None:
        sessions.used(session, endpoint, choice.affinity, now)
    return None


def take_pinned(pools: Pools, exchange: Exchange, now: float) -> NoPlace | None:
    """Reserves the one engine that has the stored response, if it is there."""
    pinned = exchange.pinned
    if pinned is None or pinned.removed or not pinned.reachable or pinned.pool not in pools.pools:
        return NoPlace.DOWN
    exchange.pool = pools.take(pinned, exchange.class_name, exchange.tokens, now)
    exchange.endpoint = pinned
    return None


def release(pools: Pools, exchange: Exchange) -> None:
    """Gives the endpoint back, if the request has one. Its pool stays known, for metrics and headers."""
    if exchange.endpoint is not None and exchange.pool is not None:
        pools.give_back(exchange.pool, exchange.endpoint, exchange.class_name, exchange.tokens)
        exchange.endpoint = None
