import json

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletionToolParam
from pydantic import BaseModel

from hlserve_sim.testing import MODEL, running

TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "read_file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
FAST = ("--time-scale", "20")


def sdk(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=DefaultAsyncHttpxClient(verify=False)
    )


async def test_chat_answers_whole_and_streamed_with_the_same_words() -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        whole = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "one two three"}], max_completion_tokens=12
        )
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "one two three"}],
            max_completion_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == 6
    assert whole.usage.completion_tokens == len((whole.choices[0].message.content or "").split()) == 12
    assert whole.choices[0].finish_reason == "length"
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == whole.choices[0].message.content
    assert [chunk.usage for chunk in chunks if chunk.usage] == [chunks[-1].usage]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[0].choices[0].delta.role == "assistant"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((), 0), (("--stream-response-default-include-usage",), 1)],
    ids=["no usage unless asked for", "usage by default if the flag says so"],
)
@pytest.mark.parametrize("extra", [{}, {"stream_options": {}}], ids=["no stream options", "other stream options"])
async def test_usage_on_streams_follows_the_flag(
    arguments: tuple[str, ...], expected: int, extra: dict[str, object]
) -> None:
    async with running(*FAST, *arguments) as engine, sdk(engine.url) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=3, stream=True, extra_body=extra
        )
        assert sum(chunk.usage is not None for chunk in [chunk async for chunk in stream]) == expected


async def test_continuous_usage_counts_up() -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=4,
            stream=True,
            extra_body={"stream_options": {"continuous_usage_stats": True}},
        )
        counts = [chunk.usage.completion_tokens async for chunk in stream if chunk.usage]
    assert counts == [1, 2, 3, 4]


async def test_a_required_tool_is_called_whole_and_streamed() -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        whole = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "look"}], tools=[TOOL], tool_choice="required"
        )
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "look"}],
            tools=[TOOL],
            tool_choice={"type": "function", "function": {"name": "read_file"}},
            stream=True,
        )
        chunks = [chunk async for chunk in stream]
    assert whole.choices[0].finish_reason == "tool_calls"
    calls = whole.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert set(json.loads(calls[0].function.arguments)) == {"path"}
    pieces = [call for chunk in chunks for call in (chunk.choices[0].delta.tool_calls or [])]
    names = [call.function.name for call in pieces if call.function and call.function.name]
    arguments = "".join(call.function.arguments or "" for call in pieces if call.function)
    assert names == ["read_file"]
    assert len(pieces) > 3
    assert arguments == calls[0].function.arguments
    assert pieces[0].id == calls[0].id
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_reasoning_comes_before_the_answer() -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "think"}],
            reasoning_effort="high",
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    reasons = [bool(getattr(delta, "reasoning_content", None)) for delta in deltas]
    kinds = ["r" if reason else "c" for delta, reason in zip(deltas, reasons, strict=True) if reason or delta.content]
    assert "".join(kinds).lstrip("r").strip("c") == ""
    assert kinds.count("r") == 26
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 40
    assert chunks[-1].usage.completion_tokens_details is not None
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 27


async def test_completions_take_token_ids_and_the_same_ids_as_words_share_the_prefix() -> None:
    async with running(*FAST, "--enable-cache-report") as engine, sdk(engine.url) as client:
        ids = list(range(500))
        by_ids = await client.completions.create(model=MODEL, prompt=ids, max_tokens=4)
        words = " ".join(f"t{number}" for number in ids)
        by_words = await client.completions.create(model=MODEL, prompt=words, max_tokens=4)
        stream = await client.completions.create(model=MODEL, prompt=ids, max_tokens=4, stream=True)
        chunks = [chunk async for chunk in stream]
    assert by_ids.usage is not None
    assert by_ids.usage.prompt_tokens == 500
    assert by_words.usage is not None
    assert by_words.usage.prompt_tokens_details is not None
    assert by_words.usage.prompt_tokens_details.cached_tokens == 499
    assert "".join(chunk.choices[0].text for chunk in chunks) == by_ids.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "length"]


async def test_a_chat_that_sends_the_reply_back_hits_the_cache() -> None:
    async with running(*FAST, "--enable-cache-report") as engine, sdk(engine.url) as client:
        question = {"role": "user", "content": " ".join(f"word{number}" for number in range(300))}
        first = await client.chat.completions.create(model=MODEL, messages=[question], max_tokens=50)  # type: ignore[list-item]
        answer = {"role": "assistant", "content": first.choices[0].message.content}
        later = [question, answer, {"role": "user", "content": "go on"}]
        second = await client.chat.completions.create(model=MODEL, messages=later, max_tokens=5)  # type: ignore[arg-type]
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    # All of the first prompt and of its reply, but for the reply's last token, whose KV was never computed.
    expected = first.usage.prompt_tokens + first.usage.completion_tokens - 1
    assert second.usage.prompt_tokens_details.cached_tokens == expected


async def test_the_same_seed_gives_the_same_reply_and_another_seed_another() -> None:
    replies: list[str | None] = []
    for seed in ("5", "5", "6"):
        async with running(*FAST, "--seed", seed) as engine, sdk(engine.url) as client:
            await client.completions.create(model=MODEL, prompt=f"other words first {len(replies)}", max_tokens=2)
            answer = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "same"}])
            replies.append(answer.choices[0].message.content)
    assert replies[0] == replies[1] != replies[2]


async def test_stop_strings_end_a_chat() -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        free = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "stop me"}])
        words = (free.choices[0].message.content or "").split()
        stop = next(word for word in words[3:] if word not in words[:3])
        held = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "stop me"}], stop=[stop]
        )
    assert held.choices[0].finish_reason == "stop"
    assert stop not in (held.choices[0].message.content or "")


async def test_embeddings_are_unit_vectors_of_each_input() -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        answer = await client.embeddings.create(model=MODEL, input=["one two", "three", "one two"], dimensions=16)
    vectors = [row.embedding for row in answer.data]
    assert [len(vector) for vector in vectors] == [16, 16, 16]
    assert vectors[0] == vectors[2] != vectors[1]
    assert sum(value * value for value in vectors[0]) == pytest.approx(1.0, abs=1e-5)
    assert answer.usage.prompt_tokens == 5


async def test_models_are_listed_and_found() -> None:
    async with running(*FAST, "--context-length", "9000") as engine, sdk(engine.url) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        found = await client.models.retrieve(MODEL)
    assert found.owned_by == "sglang"
    assert found.to_dict()["max_model_len"] == 9000


class Verdict(BaseModel):
    """What a structured reply must hold."""

    good: bool
    why: str


async def test_the_sdk_parses_structured_replies_of_chat_and_responses() -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        chat = await client.chat.completions.parse(
            model=MODEL, messages=[{"role": "user", "content": "judge"}], response_format=Verdict
        )
        response = await client.responses.parse(model=MODEL, input="judge", text_format=Verdict)
    assert chat.choices[0].message.parsed is not None
    assert chat.choices[0].message.parsed.why
    assert response.output_parsed is not None
    assert response.output_parsed.why
