"""The numbers that a request leaves behind: counters, times, tokens to charge, its log line."""

from hlserve_api.answers import ANSWERS, Outcome
from hlserve_api.routing import Intent
from hlserve_router.classify import Classified, Rule
from hlserve_router.errors import Refusal
from hlserve_router.exchange import Exchange
from hlserve_router.metrics import Metrics
from hlserve_router.outcome import Ending


def account(metrics: Metrics, exchange: Exchange, ending: Ending, now: float) -> None:
    """Counts a request's one outcome, its times and its tokens."""
    class_name, pool = exchange.class_name, exchange.pool_name
    reason = ending.reason.value if ending.reason is not None else ""
    client = metrics.client_label(exchange.key.client)
    outcome = ending.outcome
    metrics.count("hlserve_router_requests_total", (class_name, pool, outcome.value, reason))
    metrics.count("hlserve_router_client_requests_total", (client, class_name, outcome.value))
    if outcome is Outcome.SHED:
        metrics.count("hlserve_router_shed_total", (class_name, reason))
    if outcome is Outcome.CLIENT_GONE:
        stage = "queue" if not exchange.dispatched else "stream" if exchange.first_event else "prefill"
        metrics.count("hlserve_router_client_gone_total", (class_name, stage))
    if not pool:
        return
    _times(metrics, exchange, ending, now)
    _tokens(metrics, exchange, client)


def _times(metrics: Metrics, exchange: Exchange, ending: Ending, now: float) -> None:
    labels = (exchange.class_name, exchange.pool_name)
    if ending.outcome is not Outcome.OK:
        return
    metrics.observe("hlserve_router_e2e_seconds", labels, now - exchange.arrived)
    if not exchange.streams or not exchange.first_event:
        return
    metrics.observe("hlserve_router_ttft_seconds", labels, exchange.first_event - exchange.arrived)
    tokens = exchange.usage.completion_tokens or 0
    if tokens > 1:
        metrics.observe("hlserve_router_tpot_seconds", labels, (now - exchange.first_event) / (tokens - 1))


def _tokens(metrics: Metrics, exchange: Exchange, client: str) -> None:
    labels = (exchange.class_name, exchange.pool_name)
    usage = exchange.usage
    output = usage.completion_tokens if usage.completion_tokens is not None else exchange.events
    if usage.prompt_tokens:
        metrics.count("hlserve_router_input_tokens_total", labels, usage.prompt_tokens)
        if exchange.pool is not None and exchange.facts.exact_prompt_tokens is None and not exchange.facts.media:
            exchange.pool.learn_token_size(exchange.facts.prompt_bytes, usage.prompt_tokens)
    if usage.cached_tokens:
        metrics.count("hlserve_router_cached_tokens_total", labels, usage.cached_tokens)
    if output > exchange.metered_tokens:
        metrics.count("hlserve_router_output_tokens_total", labels, output - exchange.metered_tokens)
    total = (usage.prompt_tokens or 0) + output
    if total:
        metrics.count("hlserve_router_client_tokens_total", (client,), total)


def account_placement(metrics: Metrics, exchange: Exchange, now: float) -> None:
    """Counts that a request got an endpoint. Its wait and its affinity count once, its spills each time."""
    class_name, pool = exchange.class_name, exchange.pool_name
    if exchange.attempts == 0:
        metrics.observe("hlserve_router_queue_wait_seconds", (class_name,), now - exchange.submitted)
        metrics.count("hlserve_router_affinity_total", (class_name, pool, exchange.affinity.value))
    if exchange.spill is not None:
        metrics.count("hlserve_router_spills_total", (class_name, pool, exchange.spill.value))


def meter(metrics: Metrics, exchange: Exchange) -> None:
    """Counts reply tokens while they flow; `account` corrects to what the engine reports."""
    seen = exchange.events - 3
    if seen > exchange.metered_tokens and exchange.pool is not None:
        labels = (exchange.class_name, exchange.pool_name)
        metrics.count("hlserve_router_output_tokens_total", labels, seen - exchange.metered_tokens)
        exchange.metered_tokens = seen


def account_class(metrics: Metrics, found: Classified, looks_like: Intent) -> None:
    """Counts a wish for a higher class, and a key whose class does not fit what its request looks like."""
    if found.rule is Rule.CLAMPED:
        metrics.count("hlserve_router_class_clamped_total", (found.route.name,))
    if looks_like is not found.route.intent:
        metrics.count("hlserve_router_class_advice_total", (found.route.name, looks_like.value))


def account_refusal(metrics: Metrics, refusal: Refusal) -> None:
    """Counts a request that was refused before it had a class."""
    outcome = ANSWERS[refusal.reason].outcome
    metrics.count("hlserve_router_requests_total", ("", "", outcome.value, refusal.reason.value))


def refusal_fields(route_name: str, refusal: Refusal) -> dict[str, object]:
    """The log line of such a request."""
    outcome = ANSWERS[refusal.reason].outcome
    return {"route": route_name, "outcome": outcome.value, "reason": refusal.reason.value}


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
