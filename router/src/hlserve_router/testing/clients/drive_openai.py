"""Makes calls with the official `openai` SDK. Runs in that client's environment: nothing of ours but `record`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import openai
from openai import OpenAI

from hlserve_router.testing.clients.record import Call, Raised, Seen, collect, drive, send_raw

TOOL: Final[Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
RESPONSES_TOOL: Final[Any] = {"type": "function", "strict": False, **TOOL["function"]}


_SHARED: Final = OpenAI(api_key="none")


def _client(call: Call) -> OpenAI:
    """A client with this call's key. All share one pool of connections: making one reads every certificate of the system."""
    timeout: Any = openai.NOT_GIVEN if call.timeout_seconds is None else call.timeout_seconds
    return _SHARED.with_options(base_url=f"{call.url}/v1", api_key=call.key or "none", timeout=timeout)


def _headers(call: Call) -> dict[str, Any]:
    """What a user adds for this call; without a key, the SDK's own way to leave its header out."""
    return {**call.headers, **({"Authorization": openai.Omit()} if call.key is None else {})}


def _common(call: Call) -> dict[str, Any]:
    return {"model": call.model, "extra_headers": _headers(call), "extra_body": dict(call.body)}


def _chat(call: Call, **more: Any) -> dict[str, Any]:
    return {**_common(call), "messages": [{"role": "user", "content": call.prompt}], **more}


def whole(call: Call) -> Seen:
    """A chat completion in one piece."""
    client = _client(call)
    raw = client.chat.completions.with_raw_response.create(**_chat(call))
    reply = raw.parse()
    headers: Mapping[str, str] = raw.headers
    facts = {"pool": headers.get("x-hlserve-pool"), "finish": reply.choices[0].finish_reason}
    return Seen(reply.choices[0].message.content or "", raw.request_id, facts)


def stream(call: Call) -> Seen:
    """A chat completion as a stream, read chunk by chunk."""
    client = _client(call)
    raw = client.chat.completions.with_raw_response.create(**_chat(call, stream=True))
    chunks = raw.parse()
    text = collect(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return Seen(text, raw.request_id, {"pool": raw.headers.get("x-hlserve-pool")})


def usage_stream(call: Call) -> Seen:
    """A stream whose usage was asked for."""
    client = _client(call)
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(**_chat(call, stream=True, stream_options=options)))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    usages = [chunk.usage.total_tokens for chunk in chunks if chunk.usage is not None]
    return Seen(text, None, {"usages": usages})


def helper(call: Call) -> Seen:
    """A chat completion through the SDK's streaming helper, which keeps account of every event."""
    client = _client(call)
    with client.chat.completions.stream(**_chat(call)) as events:
        text = collect(event.delta for event in events if event.type == "content.delta")
        final = events.get_final_completion()
        return Seen(text, None, {"final": final.choices[0].message.content})


def tools(call: Call) -> Seen:
    """A reply that calls a tool."""
    client = _client(call)
    reply = client.chat.completions.create(**_chat(call, tools=[TOOL]))
    calls = reply.choices[0].message.tool_calls or []
    made = [(item.function.name, item.function.arguments) for item in calls if item.type == "function"]
    return Seen("", None, {"calls": made, "finish": reply.choices[0].finish_reason})


def tools_stream(call: Call) -> Seen:
    """A streamed reply that calls a tool, through the helper."""
    client = _client(call)
    with client.chat.completions.stream(**_chat(call, tools=[TOOL])) as events:
        for _ in events:
            pass
        final = events.get_final_completion()
        calls = final.choices[0].message.tool_calls or []
        made = [(item.function.name, item.function.arguments) for item in calls]
        return Seen("", None, {"calls": made, "finish": final.choices[0].finish_reason})


def completions(call: Call) -> Seen:
    """The older completions route, streamed."""
    client = _client(call)
    chunks = client.completions.create(**_common(call), prompt=call.prompt, stream=True)
    return Seen(collect(chunk.choices[0].text for chunk in chunks if chunk.choices))


def embeddings(call: Call) -> Seen:
    """Embeddings; the SDK asks for base64 by itself."""
    client = _client(call)
    reply = client.embeddings.create(**_common(call), input=call.prompt)
    return Seen("", None, {"numbers": reply.data[0].embedding})


def responses(call: Call) -> Seen:
    """A response in one piece."""
    client = _client(call)
    reply = client.responses.create(**_common(call), input=call.prompt)
    return Seen(reply.output_text, None, {"status": reply.status})


def responses_stream(call: Call) -> Seen:
    """A response as a stream of events, as the SDK hands them out."""
    client = _client(call)
    kinds: list[str] = []

    def deltas() -> Iterable[str]:
        for event in client.responses.create(**_common(call), input=call.prompt, stream=True):
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                yield event.delta
            elif event.type == "error":
                yield f"<error event {event.code}>"

    text = collect(deltas())
    return Seen(text, None, {"last": kinds[-1]})


def responses_helper(call: Call) -> Seen:
    """A response through the SDK's streaming helper."""
    client = _client(call)
    with client.responses.stream(**_common(call), input=call.prompt) as events:
        text = collect(event.delta for event in events if event.type == "response.output_text.delta")
        return Seen(text, None, {"final": events.get_final_response().output_text})


def responses_tools(call: Call) -> Seen:
    """A streamed response that calls a tool."""
    asked: Any = {**_common(call), "input": call.prompt, "tools": [RESPONSES_TOOL]}
    client = _client(call)
    with client.responses.stream(**asked) as events:
        for _ in events:
            pass
        output = events.get_final_response().output
        made = [(item.name, item.arguments) for item in output if item.type == "function_call"]
        return Seen("", None, {"calls": made})


def models(call: Call) -> Seen:
    """The list of models, through the SDK's pages."""
    client = _client(call)
    return Seen("", None, {"ids": [model.id for model in client.models.list(extra_headers=_headers(call))]})


def model(call: Call) -> Seen:
    """One model by its name."""
    client = _client(call)
    found = client.models.retrieve(call.model, extra_headers=_headers(call))
    return Seen(found.id, None, {"object": found.object, "owner": found.owned_by})


def raw(call: Call) -> Seen:
    """Any path and body."""
    return send_raw(_client(call), call, _headers(call))


OPERATIONS: Final[Mapping[str, Callable[[Call], Seen]]] = {
    "whole": whole,
    "stream": stream,
    "usage stream": usage_stream,
    "helper": helper,
    "tools": tools,
    "tools stream": tools_stream,
    "completions": completions,
    "embeddings": embeddings,
    "responses": responses,
    "responses stream": responses_stream,
    "responses helper": responses_helper,
    "responses tools": responses_tools,
    "models": models,
    "model": model,
    "raw": raw,
}


def describe(error: Exception) -> Raised:
    """The fields that the SDK documents."""
    code = getattr(error, "code", None)
    return Raised(
        type(error).__name__,
        str(error),
        getattr(error, "status_code", None),
        None if code is None else str(code),
        getattr(error, "type", None),
        getattr(error, "param", None),
        getattr(error, "request_id", None),
    )


if __name__ == "__main__":
    drive({"openai": openai.__version__}, lambda call: OPERATIONS[call.operation](call), describe)
