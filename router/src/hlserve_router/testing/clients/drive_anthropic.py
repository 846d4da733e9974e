"""Makes calls with the official `anthropic` SDK. Runs in that client's environment: nothing of ours but `record`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import anthropic
from anthropic import Anthropic

from hlserve_router.testing.clients.record import Call, Raised, Seen, collect, drive, send_raw

TOOL: Final[Any] = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


_SHARED: Final = Anthropic(api_key="none")


def _client(call: Call) -> Anthropic:
    """A client with this call's key. All share one pool of connections: making one reads every certificate of the system."""
    timeout: Any = anthropic.NOT_GIVEN if call.timeout_seconds is None else call.timeout_seconds
    return _SHARED.with_options(base_url=call.url, api_key=call.key or "none", timeout=timeout)


def _headers(call: Call) -> dict[str, Any]:
    """What a user adds for this call; without a key, the SDK's own way to leave its header out."""
    omitted = {"X-Api-Key": anthropic.Omit(), "Authorization": anthropic.Omit()} if call.key is None else {}
    return {**call.headers, **omitted}


def _message(call: Call, **more: Any) -> dict[str, Any]:
    return {
        "model": call.model,
        "max_tokens": 16,
        "messages": [{"role": "user", "content": call.prompt}],
        "extra_headers": _headers(call),
        "extra_body": dict(call.body),
        **more,
    }


def _text(events: Iterable[Any]) -> Iterable[str]:
    for event in events:
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            yield event.delta.text


def whole(call: Call) -> Seen:
    """A message in one piece."""
    client = _client(call)
    raw = client.messages.with_raw_response.create(**_message(call))
    reply = raw.parse()
    text = "".join(block.text for block in reply.content if block.type == "text")
    facts = {"pool": raw.headers.get("x-hlserve-pool"), "finish": reply.stop_reason}
    return Seen(text, raw.headers.get("request-id"), facts)


def stream(call: Call) -> Seen:
    """A message as a stream, read event by event."""
    client = _client(call)
    raw = client.messages.with_raw_response.create(**_message(call, stream=True))
    text = collect(_text(raw.parse()))
    return Seen(text, raw.headers.get("request-id"), {"pool": raw.headers.get("x-hlserve-pool")})


def helper(call: Call) -> Seen:
    """A message through the SDK's streaming helper, which keeps account of every event."""
    client = _client(call)
    with client.messages.stream(**_message(call)) as events:
        text = collect(events.text_stream)
        message = events.get_final_message()
        final = "".join(block.text for block in message.content if block.type == "text")
        return Seen(text, None, {"final": final, "finish": message.stop_reason})


def beta(call: Call) -> Seen:
    """A streamed message of the beta API: the same route with `?beta=true` and an `anthropic-beta` header."""
    client = _client(call)
    events = client.beta.messages.create(**_message(call, stream=True, betas=["context-management-2025-06-27"]))
    return Seen(collect(_text(events)))


def tools(call: Call) -> Seen:
    """A reply that uses a tool."""
    client = _client(call)
    reply = client.messages.create(**_message(call, tools=[TOOL]))
    made = [(block.name, block.input) for block in reply.content if block.type == "tool_use"]
    return Seen("", None, {"calls": made, "finish": reply.stop_reason})


def tools_stream(call: Call) -> Seen:
    """A streamed reply that uses a tool, through the helper."""
    client = _client(call)
    with client.messages.stream(**_message(call, tools=[TOOL])) as events:
        message = events.get_final_message()
        made = [(block.name, block.input) for block in message.content if block.type == "tool_use"]
        return Seen("", None, {"calls": made, "finish": message.stop_reason})


def count(call: Call) -> Seen:
    """The number of a prompt's tokens."""
    client = _client(call)
    asked = {key: value for key, value in _message(call).items() if key != "max_tokens"}
    return Seen("", None, {"tokens": client.messages.count_tokens(**asked).input_tokens})


def models(call: Call) -> Seen:
    """The list of models, through the SDK's pages."""
    client = _client(call)
    return Seen("", None, {"ids": [model.id for model in client.models.list(extra_headers=_headers(call))]})


def model(call: Call) -> Seen:
    """One model by its name."""
    client = _client(call)
    found = client.models.retrieve(call.model, extra_headers=_headers(call))
    return Seen(found.id, None, {"object": found.type, "name": found.display_name})


def raw(call: Call) -> Seen:
    """Any path and body."""
    return send_raw(_client(call), call, _headers(call))


OPERATIONS: Final[Mapping[str, Callable[[Call], Seen]]] = {
    "whole": whole,
    "stream": stream,
    "helper": helper,
    "beta": beta,
    "tools": tools,
    "tools stream": tools_stream,
    "count": count,
    "models": models,
    "model": model,
    "raw": raw,
}


def describe(error: Exception) -> Raised:
    """The fields that the SDK documents; the code as it stands in the body where the SDK has no field for it."""
    body = getattr(error, "body", None)
    inner = body.get("error") if isinstance(body, dict) else None
    details = inner.get("details") if isinstance(inner, dict) else None
    return Raised(
        type(error).__name__,
        str(error),
        getattr(error, "status_code", None),
        details.get("error_code") if isinstance(details, dict) else None,
        inner.get("type") if isinstance(inner, dict) else None,
        None,
        getattr(error, "request_id", None),
    )


if __name__ == "__main__":
    drive({"anthropic": anthropic.__version__}, lambda call: OPERATIONS[call.operation](call), describe)
