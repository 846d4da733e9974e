import json
from itertools import pairwise

import httpx
import pytest

from hlserve_sim.testing import MODEL, running

FAST = ("--time-scale", "20")


async def test_generate_answers_with_text_ids_and_meta_info(http: httpx.AsyncClient) -> None:
    body = {"text": "one two three", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}, "rid": "mine"}
    async with running(*FAST) as engine:
        answer = (await http.post(engine.url + "/generate", json=body)).json()
    assert len(answer["output_ids"]) == len(answer["text"].split()) == 4
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
    assert answer["meta_info"]["id"] == "mine"
    assert (answer["meta_info"]["prompt_tokens"], answer["meta_info"]["completion_tokens"]) == (3, 4)


async def test_a_generate_stream_repeats_the_text_so_far(http: httpx.AsyncClient) -> None:
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}, "stream": True}
    async with running() as engine:
        lines = (await http.post(engine.url + "/generate", json=body)).text.strip().split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert lines[-1] == "data: [DONE]"
    texts = [event["text"] for event in events]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    finishes = [event["meta_info"]["finish_reason"] for event in events]
    assert finishes[-1] == {"type": "length", "length": 4}
    assert finishes[:-1] == [None] * (len(events) - 1)


async def test_tokens_are_words_there_and_back(http: httpx.AsyncClient) -> None:
    async with running() as engine:
        one = (await http.post(engine.url + "/tokenize", json={"model": MODEL, "prompt": "alpha t5  beta"})).json()
        many = (await http.post(engine.url + "/tokenize", json={"prompt": ["alpha", "beta t5"]})).json()
        back = (await http.post(engine.url + "/detokenize", json={"tokens": one["tokens"]})).json()
        rows = (await http.post(engine.url + "/detokenize", json={"tokens": many["tokens"]})).json()
        chat = (
            await http.post(engine.url + "/tokenize", json={"messages": [{"role": "user", "content": "a b"}]})
        ).json()
        bad = await http.post(engine.url + "/tokenize", json={})
    assert one["count"] == 3
    assert one["tokens"][1] == 5
    assert many["count"] == [1, 2]
    assert many["tokens"] == [[one["tokens"][0]], [one["tokens"][2], 5]]
    assert back["text"] == "alpha t5 beta"
    assert rows["text"] == ["alpha", "beta t5"]
    assert chat["count"] == 5
    assert bad.status_code == 400


async def test_server_info_says_what_was_resolved_and_that_it_is_simulated(http: httpx.AsyncClient) -> None:
    arguments = ("--enable-throughput-mode", "--max-running-requests", "11", "--api-key", "secret")
    async with running(*arguments) as engine:
        client = {"authorization": "Bearer secret"}
        info = (await http.get(engine.url + "/get_server_info", headers=client)).json()
        same = (await http.get(engine.url + "/server_info", headers=client)).json()
    assert info.keys() == same.keys()
    assert info["basis"] == info["hlserve"]["basis"] == "simulated"
    assert info["max_running_requests"] == 11
    assert info["schedule_policy"] == "lpm"
    assert info["version"] == "0.5.23"
    assert info["api_key"] is None
    caps = {cap["name"]: cap["value"] for cap in info["hlserve"]["caps"]}
    assert caps["chunked_prefill_size"] is None
    assert caps["max_total_num_tokens"] == info["max_total_num_tokens"]


async def test_loads_and_model_info_and_flush(http: httpx.AsyncClient) -> None:
    async with running(*FAST) as engine:
        await http.post(
            engine.url + "/generate", json={"input_ids": list(range(100)), "sampling_params": {"max_new_tokens": 2}}
        )
        load = (await http.get(engine.url + "/v1/loads")).json()["loads"][0]
        model = (await http.get(engine.url + "/get_model_info")).json()
        held = engine.server.driver.gauges().kv_cached_tokens
        flushed = await http.post(engine.url + "/flush_cache")
        assert (held, engine.server.driver.gauges().kv_cached_tokens) == (101, 0)
        body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 9000, "ignore_eos": True}, "stream": True}
        async with http.stream("POST", engine.url + "/generate", json=body) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            busy = await http.post(engine.url + "/flush_cache")
    assert (load["dp_rank"], load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0, 0)
    assert model["served_model_name"] == MODEL
    assert (flushed.status_code, busy.status_code) == (200, 400)


async def test_state_tells_each_requests_times_on_the_engines_own_clock(http: httpx.AsyncClient) -> None:
    async with running(*FAST) as engine:
        await http.post(
            engine.url + "/generate",
            json={"input_ids": list(range(500)), "sampling_params": {"max_new_tokens": 3}, "rid": "r"},
        )
        state = (await http.get(engine.url + "/sim/state")).json()
    (record,) = state["requests"]
    assert (record["rid"], record["prompt_tokens"], record["output_tokens"], record["finish"]) == (
        "r",
        500,
        3,
        "length",
    )
    assert record["ttft_us"] == pytest.approx(engine.server.setup.cost.step_us(0, 0, [(500, 0)]), abs=1)
    assert state["totals"]["output_tokens"] == 3
    assert state["totals"]["busy_us"] == pytest.approx(sum(state["totals"]["cost_us"].values()), abs=10)
    assert state["basis"] == "simulated"
    late = state["lateness"]
    assert late["steps"] >= 3
    assert 0 <= late["max_us"] <= late["total_us"]


@pytest.mark.parametrize("path", ["/health", "/health_generate", "/ready", "/hlserve/ready"])
async def test_an_idle_engine_is_healthy_and_ready(http: httpx.AsyncClient, path: str) -> None:
    async with running() as engine:
        assert (await http.get(engine.url + path)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/generate", 405), ("DELETE", "/v1/models", 405)]
)
async def test_other_paths_and_methods_are_refused(
    http: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    async with running() as engine:
        assert (await http.request(method, engine.url + path)).status_code == status
