"""The numbers that a request leaves behind: counters, times, tokens to charge, its log line."""

from typing import Final

from hlserve_api.answers import ANSWERS, Outcome
from hlserve_api.routing import Intent
from hlserve_router.classify import Classified, Rule
from hlserve_router.errors import Refusal
from hlserve_router.exchange import Exchange
from hlserve_router.meters import ClassMeters, PoolMeters
from hlserve_router.metrics import Metrics
from hlserve_router.outcome import Ending

_OK: Final = Outcome.OK
_CLAMPED: Final = Rule.CLAMPED


def account(metrics: Metrics, exchange: Exchange, ending: Ending, now: float) -> None:
    """Counts a request's one outcome, its times and its tokens."""
    plan, pool = exchange.plan, exchange.pool_plan
    if plan is not None and pool is not None and ending.outcome is _OK:
        pool.meters.ok.value += 1
        plan.meters.client_ok.value += 1
        _times(pool.meters, exchange, now)
    else:
        _other_outcome(metrics, exchange, ending)
    if plan is not None and pool is not None:
        _tokens(pool.meters, plan.meters, exchange)


def _other_outcome(metrics: Metrics, exchange: Exchange, ending: Ending) -> None:
    class_name, pool, outcome = exchange.class_name, exchange.pool_name, ending.outcome
    reason = ending.reason.value if ending.reason is not None else ""
    client = metrics.client_label(exchange.key.client)
    metrics.count("hlserve_router_requests_total", (class_name, pool, outcome.value, reason))
    metrics.count("hlserve_router_client_requests_total", (client, class_name, outcome.value))
    if outcome is Outcome.SHED:
        metrics.count("hlserve_router_shed_total", (class_name, reason))
    if outcome is Outcome.CLIENT_GONE:
        stage = "queue" if not exchange.dispatched else "stream" if exchange.first_event else "prefill"
        metrics.count("hlserve_router_client_gone_total", (class_name, stage))


def _times(meters: PoolMeters, exchange: Exchange, now: float) -> None:
    arrived, first = exchange.arrived, exchange.first_event
    meters.e2e.observe(now - arrived)
    if not first or not exchange.streams:
        return
    meters.ttft.observe(first - arrived)
    tokens = exchange.usage.completion_tokens or 0
    if tokens > 1:
        meters.tpot.observe((now - first) / (tokens - 1))


def _tokens(meters: PoolMeters, client: ClassMeters, exchange: Exchange) -> None:
    usage = exchange.usage
    prompt, output = usage.prompt_tokens or 0, usage.completion_tokens
    if output is None:
        output = exchange.events
    if prompt:
        meters.input_tokens.value += prompt
        facts, pool = exchange.facts, exchange.pool
        if pool is not None and facts.exact_prompt_tokens is None and not facts.media:
            pool.learn_token_size(facts.prompt_bytes, prompt)
    if usage.cached_tokens:
        meters.cached_tokens.value += usage.cached_tokens
    if output > exchange.metered_tokens:
        meters.output_tokens.value += output - exchange.metered_tokens
    client.client_tokens.value += prompt + output


def account_placement(metrics: Metrics, exchange: Exchange, class_: ClassMeters, pool: PoolMeters, now: float) -> None:
    """Counts that a request got an endpoint. Its wait and its affinity count once, its spills each time."""
    if exchange.attempts == 0:
        class_.queue_wait.observe(now - exchange.submitted)
        pool.affinity[exchange.affinity].value += 1
    if exchange.spill is not None:
        labels = (exchange.class_name, exchange.pool_name, exchange.spill.value)
        metrics.count("hlserve_router_spills_total", labels)


def meter(exchange: Exchange) -> None:
    """Counts reply tokens while they flow: what the engine has told so far, else what the events stand for, less those that may
    hold none. `account` adds what is missing; taken back is nothing, as counters never fall.
    """
    told = exchange.usage.completion_tokens
    seen = exchange.events - 3 if told is None else told
    if seen > exchange.metered_tokens and exchange.pool_plan is not None:
        exchange.pool_plan.meters.output_tokens.value += seen - exchange.metered_tokens
        exchange.metered_tokens = seen


def account_class(metrics: Metrics, found: Classified, looks_like: Intent | None) -> None:
    """Counts a wish for a higher class, and a person's key that a program uses (`looks_like`)."""
    if found.rule is _CLAMPED:
        metrics.count("hlserve_router_class_clamped_total", (found.route.name,))
    if looks_like is not None:
        metrics.count("hlserve_router_class_advice_total", (found.route.name, looks_like.value, "program"))


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
