"""What is written to an engine: the allowed headers, ours, and the client's body with its stated spans. Pure."""

from typing import Final

from hlserve_api import headers as names
from hlserve_router.body_spans import engine_body
from hlserve_router.exchange import Exchange
from hlserve_router.plans import PoolPlan
from hlserve_router.state import EngineRequest, RidTravel

_REQUEST_ID: Final = names.REQUEST_ID.encode()
_ENGINE_RID: Final = names.ENGINE_RID.encode()
_ENGINE_PRIORITY: Final = names.ENGINE_PRIORITY.encode()
# A look-up on an enum's class costs more than the comparison that it is for.
_NO_RID: Final = RidTravel.NONE
_RID_HEADER: Final = RidTravel.HEADER
_RID_IN_BODY: Final = RidTravel.BODY_RID
_REQUEST_ID_IN_BODY: Final = RidTravel.BODY_REQUEST_ID


def engine_request(exchange: Exchange, pool: PoolPlan) -> EngineRequest:
    """The request for an engine of `pool`. A foreign engine gets no id and no priority: it would not know them."""
    head, route, body = exchange.head, exchange.route, exchange.body
    headers = [*head.forwarded, (_REQUEST_ID, head.request_id.encode())]
    travel = _NO_RID if pool.foreign else route.rid
    priority = pool.priority if route.generates else None
    if travel is _RID_HEADER:
        headers.append((_ENGINE_RID, exchange.rid.encode()))
        if priority is not None:
            headers.append((_ENGINE_PRIORITY, b"%d" % priority))
            priority = None
    facts = exchange.facts
    model = pool.model if facts.model is not None and facts.model != pool.model else None
    in_body = travel is _RID_IN_BODY or travel is _REQUEST_ID_IN_BODY
    include_usage = pool.foreign and facts.stream and route.usage_strippable and not facts.wants_usage
    pieces: tuple[bytes | memoryview, ...] = (body,)
    if in_body or include_usage or model is not None or priority is not None:
        pieces = engine_body(
            body,
            model=model,
            rid=(travel, exchange.rid) if in_body else None,
            priority=priority,
            include_usage=include_usage,
        )
    return EngineRequest(exchange.method, exchange.path or route.path, headers, pieces)


def abort_request(rid: str) -> EngineRequest:
    """Tells an engine of ours to drop a request."""
    body = b'{"rid":"%b"}' % rid.encode()
    return EngineRequest("POST", "/abort_request", ((b"content-type", b"application/json"),), (body,))
