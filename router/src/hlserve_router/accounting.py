"""The numbers that one ended request leaves behind."""

from hlserve_api.answers import Outcome
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
