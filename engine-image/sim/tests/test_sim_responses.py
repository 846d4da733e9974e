import json

import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.responses import FunctionToolParam

from hlserve_sim.testing import MODEL, running

FAST = ("--time-scale", "20")
TOOL: FunctionToolParam = {
    "type": "function",
    "name": "search",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    "strict": False,
}


def sdk(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=DefaultAsyncHttpxClient(verify=False)
    )


async def test_a_response_answers_whole_and_streamed_with_the_same_words() -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        whole = await client.responses.create(
            model=MODEL, input="one two", instructions="be brief", max_output_tokens=8
        )
        stream = await client.responses.create(
            model=MODEL, input="one two", instructions="be brief", max_output_tokens=8, stream=True
        )
        events = [event async for event in stream]
    assert whole.status == "incomplete"
    assert len(whole.output_text.split()) == 8
    assert whole.usage is not None
    assert whole.usage.output_tokens == 8
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == 8


async def test_the_sdks_stream_helper_accepts_reasoning_and_text() -> None:
    async with (
        running(*FAST) as engine,
        sdk(engine.url) as client,
        client.responses.stream(model=MODEL, input="think", reasoning={"effort": "high"}) as stream,
    ):
        types = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert "response.reasoning_text.delta" in types
    assert types.index("response.reasoning_text.done") < types.index("response.output_text.delta")
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert final.status == "completed"


async def test_a_required_tool_is_called() -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        whole = await client.responses.create(model=MODEL, input="find it", tools=[TOOL], tool_choice="required")
        stream = await client.responses.create(
            model=MODEL, input="find it", tools=[TOOL], tool_choice="required", stream=True
        )
        events = [event async for event in stream]
    call = whole.output[0]
    assert call.type == "function_call"
    assert set(json.loads(call.arguments)) == {"query"}
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(pieces) == call.arguments
    assert events[-1].type == "response.completed"


async def test_without_the_store_nothing_is_kept() -> None:
    async with running(*FAST) as engine, sdk(engine.url) as client:
        made = await client.responses.create(model=MODEL, input="hi", max_output_tokens=2)
        with pytest.raises(openai.BadRequestError, match="Response store is disabled"):
            await client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError, match="Response store is disabled"):
            await client.responses.create(model=MODEL, input="hi", previous_response_id=made.id)


async def test_with_the_store_a_response_is_found_and_continued() -> None:
    async with running(*FAST, "--enable-response-store") as engine, sdk(engine.url) as client:
        first = await client.responses.create(model=MODEL, input="hi there", max_output_tokens=20)
        found = await client.responses.retrieve(first.id)
        second = await client.responses.create(
            model=MODEL, input="go on", previous_response_id=first.id, max_output_tokens=2
        )
        with pytest.raises(openai.NotFoundError, match="not found"):
            await client.responses.retrieve("resp_unknown")
        with pytest.raises(openai.BadRequestError, match="begins with 'resp'"):
            await client.responses.retrieve("unknown")
    assert found.output_text == first.output_text
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens == first.usage.input_tokens + first.usage.output_tokens - 1


async def test_a_background_response_is_cancelled_and_its_slot_freed() -> None:
    async with running("--enable-response-store") as engine, sdk(engine.url) as client:
        made = await client.responses.create(
            model=MODEL, input="take long", background=True, max_output_tokens=5000, extra_body={"ignore_eos": True}
        )
        assert made.status == "queued"
        live = engine.server.driver.find(made.id)
        assert live is not None
        await live.changed(0)
        assert (await client.responses.cancel(made.id)).status == "cancelled"
        await live.completed()
        assert engine.server.driver.gauges().running == 0
        assert (await client.responses.retrieve(made.id)).status == "cancelled"
