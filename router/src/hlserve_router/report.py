"""What the admin port tells of the state: gauges for /metrics, documents for /v1/report, /v1/pools and /v1/classes."""

from collections.abc import Iterator
from typing import Any

from hlserve_router.endpoint import BreakerState, EndpointState
from hlserve_router.metrics import Gauge
from hlserve_router.proxy import Proxy
from hlserve_router.tables import Tables


def gauges(proxy: Proxy, tables: Tables, abort_grace_seconds: float) -> Iterator[Gauge]:
    """Every gauge, read now."""
    now = proxy.now()
    for name, pool in proxy.pools.pools.items():
        for class_name, count in pool.in_flight_by_class.items():
            yield "hlserve_router_in_flight_requests", (class_name, name), count - pool.elsewhere.get(class_name, 0)
            yield "hlserve_router_in_flight_tokens", (class_name, name), pool.tokens_by_class.get(class_name, 0)
        endpoints = pool.endpoints.values()
        yield "hlserve_router_pool_endpoints", (name,), sum(endpoint.usable(now) for endpoint in endpoints)
        yield (
            "hlserve_router_zombie_requests",
            (name,),
            sum(zombies(endpoint, now, abort_grace_seconds) for endpoint in endpoints),
        )
        for endpoint in endpoints:
            yield "hlserve_router_endpoint_up", (name, endpoint.label), endpoint.reachable
            yield "hlserve_router_endpoint_in_flight_requests", (name, endpoint.label), endpoint.own_in_flight
            for state in BreakerState:
                yield (
                    "hlserve_router_endpoint_breaker",
                    (name, endpoint.label, state.value),
                    endpoint.breaker(now) is state,
                )
    for class_name in proxy.pools.classes:
        depth = proxy.admission.depth(class_name)
        yield "hlserve_router_queue_depth", (class_name,), depth.count
        yield "hlserve_router_queue_bytes", (class_name,), depth.size_bytes
    if proxy.pools.table is not None:
        yield "hlserve_router_table_info", (proxy.pools.table.generation[:12],), 1
        yield "hlserve_router_table_applied_timestamp_seconds", (), tables.applied_at
    yield "hlserve_router_keys", (), len(proxy.keyrings)
    if proxy.limits.shared:
        yield "hlserve_router_limits_store_up", (), not proxy.limits.away
        yield "hlserve_router_limits_routers", (), proxy.limits.members
    for kind, age in tables.ages().items():
        yield "hlserve_router_source_age_seconds", (kind.value,), age


def zombies(endpoint: EndpointState, now: float, grace_seconds: float) -> int:
    """Requests that the router gave up longer than the grace ago and that the engine, by its gauges, still seems to run."""
    endpoint.forget_aborted(now)
    given_up = sum(now - at > grace_seconds for at in endpoint.aborted.values())
    gauges = endpoint.gauges
    if gauges is None or not given_up:
        return 0
    return max(0, min(given_up, gauges.running + gauges.queued - endpoint.in_flight))


def report(proxy: Proxy, tables: Tables, *, draining: bool) -> dict[str, Any]:
    """What the operator polls."""
    now = proxy.now()
    pools = proxy.pools.pools
    backlog: dict[str, int] = {name: sum(pool.tokens_by_class.values()) for name, pool in pools.items()}
    for lane in proxy.admission.lanes():
        waiting = sum(entry.cost_tokens for entry in lane.entries())
        for target in lane.route.targets[:1]:
            backlog[target.pool] = backlog.get(target.pool, 0) + waiting
    wall = proxy.clocks.wall()
    return {
        "generations": {
            "table": proxy.pools.table.generation if proxy.pools.table is not None else None,
            "keyrings": proxy.keyrings.generations,
        },
        "problems": tables.problems,
        "sourceAgeSeconds": {kind.value: round(age, 1) for kind, age in tables.ages().items()},
        "routerDraining": draining,
        "draining": {e.id: e.own_in_flight for e in proxy.pools.endpoints() if e.draining},
        "backlogTokens": backlog,
        "lastUsed": {
            name: wall - (now - p.last_used) if p.last_used is not None else None for name, p in pools.items()
        },
        "keysLastUsed": {client: round(wall - (now - used), 3) for client, used in proxy.lately_used().items()},
        "slo": {},
    }


def pools(proxy: Proxy, abort_grace_seconds: float) -> list[dict[str, Any]]:
    """Every pool with its endpoints."""
    now = proxy.now()
    return [
        {
            "name": name,
            "mode": pool.route.mode.value,
            "model": pool.route.model,
            "aliases": list(pool.route.aliases),
            "inFlight": sum(endpoint.own_in_flight for endpoint in pool.endpoints.values()),
            "inFlightByClass": pool.own_by_class(),
            "bytesPerToken": round(pool.bytes_per_token, 2),
            "endpoints": [_endpoint(endpoint, now, abort_grace_seconds) for endpoint in pool.endpoints.values()],
        }
        for name, pool in proxy.pools.pools.items()
    ]


def _endpoint(endpoint: EndpointState, now: float, abort_grace_seconds: float) -> dict[str, Any]:
    gauges = endpoint.gauges
    return {
        "id": endpoint.id,
        "name": endpoint.label,
        "url": endpoint.url,
        "usable": endpoint.usable(now),
        "reachable": endpoint.reachable,
        "ready": endpoint.ready,
        "draining": endpoint.draining,
        "breaker": endpoint.breaker(now).value,
        "busy": endpoint.busy(now),
        "inFlight": endpoint.own_in_flight,
        "inFlightTokens": endpoint.in_flight_tokens - endpoint.elsewhere[1],
        "sessions": endpoint.sessions,
        "running": gauges.running if gauges is not None else None,
        "queued": gauges.queued if gauges is not None else None,
        "tokenUsage": gauges.token_usage if gauges is not None else None,
        "zombies": zombies(endpoint, now, abort_grace_seconds),
    }


def classes(proxy: Proxy) -> list[dict[str, Any]]:
    """Every class with what waits in it."""
    now = proxy.now()
    lanes = proxy.admission.lanes()
    return [
        {
            "name": name,
            "intent": route.intent.value,
            "priority": route.priority,
            "targets": [{"pool": target.pool, "role": target.role.value} for target in route.targets],
            "queued": proxy.admission.depth(name).count,
            "queuedBytes": proxy.admission.depth(name).size_bytes,
            "oldestWaitMilliseconds": round(
                1000 * max((lane.oldest_wait_seconds(now) for lane in lanes if lane.route.name == name), default=0.0)
            ),
            "spilling": any(lane.spilling for lane in lanes if lane.route.name == name),
            "inFlight": sum(pool.own_by_class().get(name, 0) for pool in proxy.pools.pools.values()),
        }
        for name, route in proxy.pools.classes.items()
    ]
