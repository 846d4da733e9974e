"""What is written to an engine: the allowed headers, ours, and the client's body with its stated spans. Pure."""

from hlserve_api import headers as names
from hlserve_api.routing import ClassRoute, PoolRoute, PriorityOrder
from hlserve_router.body import engine_body
from hlserve_router.exchange import Exchange
from hlserve_router.state import EngineRequest, RidTravel


def engine_request(exchange: Exchange, pool: PoolRoute, route: ClassRoute) -> EngineRequest:
    """The request for an engine of `pool`. A foreign engine gets no id and no priority: it would not know them."""
    headers = list(exchange.head.forwarded)
    headers.append((names.REQUEST_ID.encode(), exchange.head.request_id.encode()))
    rid: tuple[RidTravel, str] | None = None
    if not pool.foreign and exchange.route.rid is not RidTravel.NONE:
        rid = (exchange.route.rid, exchange.rid)
    priority = _priority(exchange, pool, route)
    if rid is not None and rid[0] is RidTravel.HEADER:
        headers.append((names.ENGINE_RID.encode(), exchange.rid.encode()))
        if priority is not None:
            headers.append((names.ENGINE_PRIORITY.encode(), b"%d" % priority))
            priority = None
    facts = exchange.facts
    body = engine_body(
        exchange.body,
        facts,
        model=pool.model if facts.model is not None and facts.model != pool.model else None,
        rid=rid,
        priority=priority,
        include_usage=pool.foreign and facts.stream and exchange.route.usage_strippable and not facts.wants_usage,
    )
    return EngineRequest(exchange.method, exchange.path or exchange.route.path, tuple(headers), body)


def _priority(exchange: Exchange, pool: PoolRoute, route: ClassRoute) -> int | None:
    """The class's priority as the engine counts it."""
    if pool.foreign or not exchange.route.generates or pool.priority_order is PriorityOrder.NONE:
        return None
    return route.priority if pool.priority_order is PriorityOrder.HIGHER_FIRST else -route.priority


def abort_request(rid: str) -> EngineRequest:
    """Tells an engine of ours to drop a request."""
    body = b'{"rid":"%b"}' % rid.encode()
    return EngineRequest("POST", "/abort_request", ((b"content-type", b"application/json"),), (body,))
