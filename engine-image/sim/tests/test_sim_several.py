"""Several choices and prompt batches: each choice an engine request of its own, under one id."""

import asyncio
import json
from itertools import groupby
from time import monotonic

import httpx
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from hlserve_sim.testing import MODEL, Running, running, until

FAST = ("--time-scale", "20")
WORDS = " ".join(f"word{number}" for number in range(300))
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": WORDS}]}
LONG = {**CHAT, "n": 3, "max_tokens": 9_000, "ignore_eos": True}


def sdk(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=DefaultAsyncHttpxClient(verify=False)
    )


def events(text: str) -> list[dict[str, object]]:
    *lines, done = text.strip().split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_choices_of_a_chat_differ_and_share_the_prompt() -> None:
    async with running(*FAST, "--enable-cache-report") as engine, sdk(engine.url) as client:
        one = await client.chat.completions.create(**CHAT, max_tokens=20, extra_body={"ignore_eos": True})  # type: ignore[call-overload]
        engine.server.driver.flush_cache()
        many = await client.chat.completions.create(**CHAT, n=3, max_tokens=20, extra_body={"ignore_eos": True})  # type: ignore[call-overload]
        records = list(engine.server.records)[1:]
    assert [choice.index for choice in many.choices] == [0, 1, 2]
    said = [choice.message.content for choice in many.choices]
    assert said[0] == one.choices[0].message.content
    assert len(set(said)) == 3
    assert many.usage.prompt_tokens == one.usage.prompt_tokens
    assert many.usage.completion_tokens == 60
    assert many.usage.total_tokens == many.usage.prompt_tokens + 60
    # The prompt is read once, by a request that makes no token; each choice then finds all but its last token.
    assert [(record.output_tokens, record.cached_tokens) for record in records] == [
        (0, 0),
        *[(20, one.usage.prompt_tokens - 1)] * 3,
    ]
    assert many.usage.prompt_tokens_details.cached_tokens == one.usage.prompt_tokens - 1


async def test_streams_of_choices_are_interleaved_and_end_once() -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        whole = await client.chat.completions.create(**CHAT, n=3, max_tokens=30, extra_body={"ignore_eos": True})  # type: ignore[call-overload]
        stream = await client.chat.completions.create(  # type: ignore[call-overload]
            **CHAT,
            n=3,
            max_tokens=30,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = [chunk async for chunk in stream]
    said = dict.fromkeys(range(3), "")
    order = []
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        said[choice.index] += choice.delta.content or ""
        order.append(choice.index)
    assert list(said.values()) == [choice.message.content for choice in whole.choices]
    assert len(list(groupby(order))) > 12, "the choices do not come one after the other"
    finishes = [chunk.choices[0].index for chunk in chunks[:-1] if chunk.choices[0].finish_reason]
    assert sorted(finishes) == [0, 1, 2]
    assert [chunk.usage for chunk in chunks if chunk.usage] == [whole.usage]


async def test_a_batch_of_prompts_with_choices_is_numbered_prompt_by_prompt() -> None:
    prompts = ["alpha beta", "gamma delta epsilon"]
    async with running(*FAST) as engine, sdk(engine.url) as client:
        alone = [await client.completions.create(model=MODEL, prompt=prompt, max_tokens=6) for prompt in prompts]
        batch = await client.completions.create(model=MODEL, prompt=prompts, max_tokens=6)
        both = await client.completions.create(model=MODEL, prompt=prompts, max_tokens=6, n=2)
        by_ids = await client.completions.create(model=MODEL, prompt=[[1, 2], [3, 4, 5]], max_tokens=6, n=2)
        stream = await client.completions.create(model=MODEL, prompt=prompts, max_tokens=6, n=2, stream=True)
        streamed = dict.fromkeys(range(4), "")
        async for chunk in stream:
            streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert [choice.text for choice in batch.choices] == [answer.choices[0].text for answer in alone]
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert [both.choices[0].text, both.choices[2].text] == [choice.text for choice in batch.choices]
    assert list(streamed.values()) == [choice.text for choice in both.choices]
    for answer in (both, by_ids):
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 24)


@pytest.mark.parametrize(
    ("body", "answers"),
    [
        ({"text": ["a b", "c d e"]}, [("r_0", 2), ("r_1", 3)]),
        ({"input_ids": [[1, 2], [3, 4, 5]]}, [("r_0", 2), ("r_1", 3)]),
        ({"text": ["a b"]}, [("r_0", 2)]),
        ({"text": "a b", "sampling_params": {"n": 2, "max_new_tokens": 3}}, [("r_0", 2), ("r_1", 2)]),
    ],
    ids=["texts", "token ids", "a list of one", "two choices"],
)
async def test_a_native_batch_is_a_list_and_its_stream_numbers_its_events(
    http: httpx.AsyncClient, body: dict[str, object], answers: list[tuple[str, int]]
) -> None:
    async with running(*FAST) as engine:
        whole = (await http.post(engine.url + "/generate", json={**body, "rid": "r"})).json()
        stream = await http.post(engine.url + "/generate", json={**body, "rid": "r", "stream": True})
    assert [(one["meta_info"]["id"], one["meta_info"]["prompt_tokens"]) for one in whole] == answers
    last: dict[object, object] = {event["index"]: event["text"] for event in events(stream.text)}
    assert last == {index: one["text"] for index, one in enumerate(whole)}


async def begun(engine: Running, requests: int) -> None:
    """Wait until as many engine requests have begun their replies."""

    async def all_begun() -> bool:
        gauges = engine.server.driver.gauges()
        return gauges.running == requests and gauges.pending_prefill_tokens == 0

    await until(all_begun)


@pytest.mark.parametrize("kind", ["abort", "leave"])
async def test_an_abort_or_a_client_that_leaves_ends_all_choices(http: httpx.AsyncClient, kind: str) -> None:
    async with running() as engine:
        body = {**LONG, "rid": "mine", "stream": True}
        async with http.stream("POST", engine.url + "/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            await begun(engine, 3)
            if kind == "abort":
                await http.post(engine.url + "/abort_request", json={"rid": "mine"})
                text = "\n".join([line async for line in lines])
                finishes = [
                    json.loads(line[6:])["choices"][0]["finish_reason"]
                    for line in text.split("\n")
                    if line.startswith("data: {")
                ]
                assert finishes.count("abort") == 3
        await engine.server.driver.idle()
        assert [record.finish for record in engine.server.records] == ["length", *["abort"] * 3]
        again = await http.post(engine.url + "/v1/chat/completions", json={**CHAT, "rid": "mine", "max_tokens": 1})
    assert again.status_code == 200


async def test_an_abort_of_one_choice_leaves_the_others(http: httpx.AsyncClient) -> None:
    async with (
        running() as engine,
        http.stream("POST", engine.url + "/v1/chat/completions", json={**LONG, "rid": "r", "stream": True}) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        await begun(engine, 3)
        await http.post(engine.url + "/abort_request", json={"rid": "r_1"})
        await begun(engine, 2)
        assert engine.server.driver.rids() == ("r_0", "r_2")


async def test_an_abort_while_the_prompt_is_read_ends_the_request_before_it_has_choices(
    http: httpx.AsyncClient,
) -> None:
    prompt = " ".join(f"w{number}" for number in range(30_000))
    body = {**LONG, "rid": "r", "messages": [{"role": "user", "content": prompt}]}
    async with running("--context-length", "50000") as engine:

        async def reading() -> bool:
            return engine.server.driver.rids() == ("r_prompt0",)

        answer = asyncio.create_task(http.post(engine.url + "/v1/chat/completions", json=body))
        await until(reading)
        await http.post(engine.url + "/abort_request", json={"rid": "r"})
        choices = (await answer).json()["choices"]
        assert [(choice["message"]["content"], choice["finish_reason"]) for choice in choices] == [("", "abort")] * 3
        assert [record.rid for record in engine.server.records] == ["r_prompt0"]


@pytest.mark.parametrize("taken", ["r", "r_0", "r_prompt0"])
async def test_an_id_in_use_is_refused(http: httpx.AsyncClient, taken: str) -> None:
    async with (
        running() as engine,
        http.stream("POST", engine.url + "/v1/chat/completions", json={**LONG, "rid": "r", "stream": True}) as answer,
    ):
        await anext(answer.aiter_lines())
        single = await http.post(engine.url + "/v1/chat/completions", json={**CHAT, "rid": taken})
        several = await http.post(engine.url + "/v1/chat/completions", json={**CHAT, "n": 2, "rid": taken})
    for refused in (single, several):
        assert refused.status_code == 400
        assert refused.json()["message"].startswith("Duplicate request ID detected: r")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_refuses_the_whole_request(http: httpx.AsyncClient, stream: bool) -> None:
    async with running("--max-running-requests", "1", "--max-queued-requests", "1") as engine:
        answer = await http.post(engine.url + "/v1/chat/completions", json={**LONG, "stream": stream})
        await engine.server.driver.idle()
    assert (answer.status_code, answer.json()["message"]) == (503, "The request queue is full.")


async def test_a_prompt_of_a_batch_that_is_too_long_refuses_it(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": [[1], list(range(200))], "max_tokens": 1}
    async with running("--context-length", "100") as engine:
        whole = await http.post(engine.url + "/v1/completions", json=body)
        streamed = await http.post(engine.url + "/v1/completions", json={**body, "stream": True})
        assert engine.server.driver.in_flight == 0
    assert whole.status_code == 400
    assert events(streamed.text) == [{"error": whole.json()}]


@pytest.mark.parametrize("kind", ["truncate", "cut", "reset"])
async def test_a_fault_strikes_after_the_chunks_of_all_choices(http: httpx.AsyncClient, kind: str) -> None:
    async with running() as engine:
        await http.post(engine.url + "/sim/faults", json={"kind": kind, "after_chunks": 7, "count": 1})
        text = ""
        try:
            async with http.stream(
                "POST", engine.url + "/v1/completions", json={**LONG, "prompt": "x", "stream": True}
            ) as answer:
                async for part in answer.aiter_text():
                    text += part
        except httpx.TransportError:
            assert kind != "truncate"
        await engine.server.driver.idle()
    if kind != "reset":
        assert text.count("data: {") == 7
    assert "[DONE]" not in text


async def test_ignored_aborts_let_all_choices_run_to_their_end(http: httpx.AsyncClient) -> None:
    body = {**LONG, "max_tokens": 400, "stream": True}
    async with running("--time-scale", "5") as engine:
        await http.post(engine.url + "/sim/faults", json={"kind": "ignore_abort"})
        async with http.stream("POST", engine.url + "/v1/chat/completions", json=body) as answer:
            await anext(answer.aiter_lines())
        await engine.server.driver.idle()
        assert [record.output_tokens for record in engine.server.records] == [0, 400, 400, 400]


async def test_a_slow_first_byte_comes_after_the_status_of_all_choices(http: httpx.AsyncClient) -> None:
    body = {**LONG, "max_tokens": 4, "stream": True}
    async with running(*FAST) as engine:
        await http.post(engine.url + "/sim/faults", json={"kind": "slow_first_byte", "delay_ms": 300})
        started = monotonic()
        async with http.stream("POST", engine.url + "/v1/chat/completions", json=body) as answer:
            status_after = monotonic() - started
            text = "".join([part async for part in answer.aiter_text()])
        ended_after = monotonic() - started
    assert status_after < 0.3 <= ended_after
    # Each choice: its role, four tokens and its end.
    assert len(events(text)) == 3 * 6
