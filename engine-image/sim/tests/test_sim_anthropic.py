import pytest
from anthropic import AsyncAnthropic, BadRequestError, DefaultAsyncHttpxClient
from anthropic.types import MessageParam, ToolParam

from hlserve_sim.testing import MODEL, running

FAST = ("--time-scale", "20")


def sdk(url: str) -> AsyncAnthropic:
    return AsyncAnthropic(
        base_url=url, api_key="none", max_retries=0, http_client=DefaultAsyncHttpxClient(verify=False)
    )


async def test_a_message_answers_whole_and_streamed_with_the_same_words() -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        whole = await client.messages.create(
            model=MODEL, max_tokens=9, system="be brief", messages=[{"role": "user", "content": "one two"}]
        )
        async with client.messages.stream(
            model=MODEL, max_tokens=9, system="be brief", messages=[{"role": "user", "content": "one two"}]
        ) as stream:
            said = "".join([text async for text in stream.text_stream])
            final = await stream.get_final_message()
    block = whole.content[0]
    assert block.type == "text"
    assert len(block.text.split()) == 9
    assert said == block.text
    assert whole.stop_reason == final.stop_reason == "max_tokens"
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (9, 9)
    assert (final.usage.input_tokens, final.usage.output_tokens) == (9, 9)


async def test_the_events_of_a_stream_are_those_of_the_api() -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        stream = await client.messages.create(
            model=MODEL, max_tokens=2, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        types = [event.type async for event in stream]
    assert types == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


async def test_thinking_and_tool_use_come_as_blocks() -> None:
    schema: dict[str, object] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    async with running(*FAST) as engine, sdk(engine.url) as client:
        thought = await client.messages.create(
            model=MODEL,
            max_tokens=4000,
            thinking={"type": "enabled", "budget_tokens": 1024},
            messages=[{"role": "user", "content": "hmm"}],
        )
        async with client.messages.stream(
            model=MODEL,
            max_tokens=400,
            messages=[{"role": "user", "content": "look"}],
            tools=[{"name": "read", "input_schema": schema}],
            tool_choice={"type": "any"},
        ) as stream:
            used = await stream.get_final_message()
    assert [block.type for block in thought.content] == ["thinking", "text"]
    call = used.content[0]
    assert call.type == "tool_use"
    assert set(call.input) == {"path"}
    assert used.stop_reason == "tool_use"


async def test_a_conversation_with_tools_hits_the_cache() -> None:
    tool: ToolParam = {
        "name": "read",
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    }
    question: MessageParam = {"role": "user", "content": " ".join(f"w{number}" for number in range(200))}
    async with running(*FAST, "--enable-cache-report") as engine, sdk(engine.url) as client:
        first = await client.messages.create(
            model=MODEL, max_tokens=400, messages=[question], tools=[tool], tool_choice={"type": "any"}
        )
        call = first.content[0]
        assert call.type == "tool_use"
        answer: MessageParam = {"role": "assistant", "content": first.content}
        result: MessageParam = {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "found it"}],
        }
        second = await client.messages.create(
            model=MODEL, max_tokens=4, messages=[question, answer, result], tools=[tool]
        )
    assert second.usage.cache_read_input_tokens == first.usage.input_tokens + first.usage.output_tokens - 1


async def test_count_tokens_counts_what_a_message_would_use() -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        counted = await client.messages.count_tokens(
            model=MODEL, messages=[{"role": "user", "content": "one two three"}]
        )
        sent = await client.messages.create(
            model=MODEL, max_tokens=1, messages=[{"role": "user", "content": "one two three"}]
        )
    assert counted.input_tokens == sent.usage.input_tokens


async def test_an_over_long_prompt_is_an_invalid_request() -> None:
    async with running(*FAST, "--context-length", "50") as engine, sdk(engine.url) as client:
        with pytest.raises(BadRequestError, match="longer than the model's context length") as refused:
            await client.messages.create(model=MODEL, max_tokens=1, messages=[{"role": "user", "content": "w " * 60}])
    message = "The input (63 tokens) is longer than the model's context length (50 tokens)."
    assert refused.value.body == {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
