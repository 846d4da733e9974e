import asyncio

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hlserve_api import metrics as declared
from hlserve_sim import app
from hlserve_sim.engine_setup import resolve
from hlserve_sim.flags import parse
from hlserve_sim.server import Server
from hlserve_sim.testing import MODEL, running

PROMPT = list(range(1000))


async def scrape(http: httpx.AsyncClient, url: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    page = (await http.get(f"{url}/metrics")).text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def values(http: httpx.AsyncClient, url: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for (name, _), value in (await scrape(http, url)).items():
        sums[name] = sums.get(name, 0.0) + value
    return sums


async def test_every_metric_name_is_there_from_the_start_or_after_one_request(http: httpx.AsyncClient) -> None:
    async with running("--time-scale", "20") as engine:
        await http.post(
            engine.url + "/v1/completions", json={"model": MODEL, "prompt": PROMPT, "max_tokens": 5, "ignore_eos": True}
        )
        await http.post(
            engine.url + "/v1/completions",
            json={"model": MODEL, "prompt": PROMPT, "max_tokens": 5, "ignore_eos": True, "stream": True},
        )
        found = await values(http, engine.url)
    expected = {
        "sglang:num_running_reqs": 0,
        "sglang:num_queue_reqs": 0,
        "sglang:num_used_tokens": 0,
        "sglang:token_usage": 0,
        "sglang:cache_hit_rate": 999 / 2000,
        "sglang:prompt_tokens_total": 2000,
        "sglang:generation_tokens_total": 10,
        "sglang:cached_tokens_total": 999,
        "sglang:num_requests_total": 2,
        "sglang:num_retracted_requests_total": 0,
        "sglang:time_to_first_token_seconds_count": 2,
        "sglang:queue_time_seconds_count": 2,
        "sglang:inter_token_latency_seconds_count": 8,
        "sglang:e2e_request_latency_seconds_count": 2,
        "sglang:request_time_per_output_token_seconds_count": 2,
        "sglang:prompt_tokens_histogram_sum": 2000,
        "sglang:generation_tokens_histogram_sum": 10,
        "sglang:kv_evictable_tokens": 1004,
    }
    assert {name: found.get(name) for name in expected} == pytest.approx(expected)
    assert found["sglang:gen_throughput"] >= 0
    assert found["sglang:max_total_num_tokens"] == engine.server.setup.config.pool_tokens
    assert found["sglang:time_to_first_token_seconds_sum"] == pytest.approx(
        sum((record.first_token_us or 0) - record.arrived_us for record in engine.server.records) / 1e6
    )


async def test_the_labels_are_sglangs(http: httpx.AsyncClient) -> None:
    async with running("--time-scale", "20") as engine:
        await http.post(
            engine.url + "/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 2}, "stream": True}
        )
        samples = await scrape(http, engine.url)
    gauges = [dict(labels) for name, labels in samples if name == "sglang:num_running_reqs"]
    counters = [dict(labels) for name, labels in samples if name == "sglang:generation_tokens_total"]
    assert gauges == [
        {"model_name": MODEL, "engine_type": "unified", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
    ]
    assert counters == [{"model_name": MODEL, "engine_type": "unified", "is_streaming": "true"}]


async def test_the_gauges_show_what_runs_and_what_waits(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 9000, "ignore_eos": True, "stream": True}
    async with (
        running("--max-running-requests", "1") as engine,
        http.stream("POST", engine.url + "/v1/completions", json=body) as first,
        http.stream(
            "POST", engine.url + "/v1/responses", json={"model": MODEL, "input": "x", "stream": True}
        ) as second,
    ):
        first_lines, second_lines = first.aiter_lines(), second.aiter_lines()
        await anext(first_lines)
        await anext(second_lines)
        found = await values(http, engine.url)
    assert (found["sglang:num_running_reqs"], found["sglang:num_queue_reqs"]) == (1, 1)
    assert found["sglang:num_used_tokens"] >= 1000
    assert found["sglang:token_usage"] == pytest.approx(
        found["sglang:num_used_tokens"] / engine.server.setup.config.pool_tokens
    )


async def test_hlserves_engine_metrics_are_declared_ones_with_their_own_labels(http: httpx.AsyncClient) -> None:
    async with running("--enable-throughput-mode", "--max-running-requests", "11", "--time-scale", "20") as engine:
        await http.post(engine.url + "/v1/completions", json={"model": MODEL, "prompt": PROMPT, "max_tokens": 2})
        samples = await scrape(http, engine.url)
    declarations = {metric.name: metric for metric in declared.ENGINE}
    own = {name: dict(labels) for name, labels in samples if name.startswith("hlserve_engine_")}
    for name, labels in own.items():
        base = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        metric = declarations.get(name) or declarations[base]
        assert set(labels) - {"le"} == set(metric.label_names)
    flat = {name: value for (name, labels), value in samples.items() if not labels}
    assert flat["hlserve_engine_throughput_mode"] == 1
    assert flat["hlserve_engine_max_running_requests"] == 11
    assert flat["hlserve_engine_step_seconds_count"] == engine.server.driver.totals.steps
    assert samples["hlserve_engine_policy_info", frozenset({("policy", "lpm")})] == 1


async def test_without_the_flag_there_is_no_page(http: httpx.AsyncClient) -> None:
    flags = parse([])
    transport = httpx.ASGITransport(app.build(Server(flags, resolve(flags))))
    async with httpx.AsyncClient(transport=transport, base_url="http://sim") as client:
        assert (await client.get("/metrics")).status_code == 404
        assert (await client.get("/health")).status_code == 200


async def test_retractions_are_counted_when_admission_is_by_ratio(http: httpx.AsyncClient) -> None:
    flags = ("--kv-admission", "ratio", "--max-total-tokens", "2000", "--time-scale", "50", "--disable-radix-cache")
    async with running(*flags) as engine:
        bodies = [
            {"model": MODEL, "prompt": [number] * 300, "max_tokens": 400, "ignore_eos": True} for number in range(6)
        ]
        answers = await gather(http, engine.url, bodies)
        found = await values(http, engine.url)
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [400] * 6
    assert found["sglang:num_retracted_requests_total"] > 0
    assert found["hlserve_engine_retractions_total"] == found["sglang:num_retracted_requests_total"]


async def gather(http: httpx.AsyncClient, url: str, bodies: list[dict[str, object]]) -> list[httpx.Response]:
    return list(await asyncio.gather(*(http.post(url + "/v1/completions", json=body) for body in bodies)))
