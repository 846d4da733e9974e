"""The numbers and words of the live view."""

from datetime import UTC, datetime

import pytest
from rich.console import Console

from hlserve_local.events import Event, EventKind
from hlserve_local.gauges import EngineGauges, parse_engine_gauges
from hlserve_local.live import ClassRow, Look, PoolRow, View, class_row, quantile, rate
from hlserve_local.render import is_bad, line, tables

OLD = """
hlserve_router_ttft_seconds_bucket{class="agent",pool="agents",le="0.1"} 5
hlserve_router_ttft_seconds_bucket{class="agent",pool="agents",le="0.2"} 5
hlserve_router_ttft_seconds_bucket{class="agent",pool="agents",le="+Inf"} 5
hlserve_router_output_tokens_total{class="agent",pool="agents"} 100
"""
NEW = """
hlserve_router_ttft_seconds_bucket{class="agent",pool="agents",le="0.1"} 9
hlserve_router_ttft_seconds_bucket{class="agent",pool="agents",le="0.2"} 13
hlserve_router_ttft_seconds_bucket{class="agent",pool="agents",le="+Inf"} 13
hlserve_router_ttft_seconds_bucket{class="batch",pool="agents",le="+Inf"} 7
hlserve_router_output_tokens_total{class="agent",pool="agents"} 300
hlserve_router_output_tokens_total{class="batch",pool="agents"} 50
hlserve_router_in_flight_requests{class="agent",pool="agents"} 4
hlserve_router_queue_depth{class="agent"} 2
hlserve_router_requests_total{class="agent",pool="agents",outcome="ok",reason=""} 13
hlserve_router_requests_total{class="agent",pool="",outcome="shed",reason="queue_full"} 3
hlserve_router_requests_total{class="agent",pool="agents",outcome="client_gone",reason=""} 1
"""


@pytest.fixture
def looks() -> tuple[Look, Look]:
    return Look.parse(OLD, 10.0), Look.parse(NEW, 20.0)


def test_rates_and_quantiles_are_over_the_window(looks: tuple[Look, Look]) -> None:
    assert rate(*looks, "hlserve_router_output_tokens_total", {"pool": "agents"}) == pytest.approx(25.0)
    assert rate(*looks, "hlserve_router_output_tokens_total", {"class": "agent"}) == pytest.approx(20.0)
    # 8 new observations: 4 up to 0.1 s and 4 between 0.1 and 0.2 s.
    assert quantile(0.5, *looks, "hlserve_router_ttft_seconds", {"class": "agent"}) == pytest.approx(0.1)
    assert quantile(0.75, *looks, "hlserve_router_ttft_seconds", {"class": "agent"}) == pytest.approx(0.15)
    assert quantile(0.5, *looks, "hlserve_router_ttft_seconds", {"class": "nobody"}) is None
    assert rate(looks[1], looks[0], "hlserve_router_output_tokens_total", {}) == 0


def test_class_row_adds_up_and_gives_reasons(looks: tuple[Look, Look]) -> None:
    row = class_row("agent", "Agent", *looks)
    assert (row.running, row.queued, row.ok) == (4, 2, 13)
    assert row.reasons == {"queue_full": 3, "client_gone": 1}


def test_engine_gauges_from_sglangs_names() -> None:
    text = 'sglang:num_running_reqs{tp_rank="0"} 3.0\nsglang:num_queue_reqs 1.0\nsglang:gen_throughput 120.5\nsglang:token_usage 0.25\n'
    assert parse_engine_gauges(text) == EngineGauges(3, 1, 120.5, 0.25, 0.0)
    assert not parse_engine_gauges(text).idle
    assert parse_engine_gauges("").idle


def test_view_in_words_and_in_tables() -> None:
    view = View(
        (
            PoolRow("chat", "Interactive", "m", 1, 1, 3, 0, 120.0, 0.25, ""),
            PoolRow("agents", "HumanLess", "m", 2, 3, 7, None, 900.0, None, "1 restarting"),
        ),
        (ClassRow("agent", "Agent", 4, 2, 13, 20.0, 0.1, 0.15, {"queue_full": 3}),),
    )
    assert line(view) == (
        "pool chat 1/1 ready, 3 running, 0 queued, 120 tok/s | pool agents 2/3 ready, 7 running, – queued, 900 tok/s (1 restarting) | "
        "class agent 2 queued, 13 ok, TTFT p95 150 ms, not ok: 3 queue_full"
    )
    console = Console(width=120)
    event = Event(datetime(2026, 1, 1, tzinfo=UTC), EventKind.ENGINE_LOST, "agents-1 was ended by SIGKILL")
    with console.capture() as capture:
        console.print(tables(view, [event], "http://127.0.0.1:8000"))
    text = capture.get()
    for words in (
        "http://127.0.0.1:8000",
        "agents",
        "2/3",
        "150 ms",
        "3 queue_full",
        "engine lost: agents-1 was ended by SIGKILL",
    ):
        assert words in text
    assert is_bad(event)
