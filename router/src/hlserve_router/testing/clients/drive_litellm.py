"""Makes calls with `litellm` as a client, over both APIs. Runs in that client's environment: nothing of ours but `record`."""

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any, Final

import litellm

from hlserve_router.testing.clients.record import Call, Raised, Seen, collect, drive

TOOL: Final[Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def _asked(call: Call, provider: str, **more: Any) -> dict[str, Any]:
    return {
        "model": f"{provider}/{call.model}",
        "api_base": f"{call.url}/v1" if provider == "openai" else call.url,
        "api_key": call.key or "none",
        "messages": [{"role": "user", "content": call.prompt}],
        "max_tokens": 16,
        "extra_headers": dict(call.headers),
        "timeout": call.timeout_seconds,
        **call.body,
        **more,
    }


def _collect(pieces: Iterable[Any]) -> Seen:
    return Seen(collect(piece.choices[0].delta.content or "" for piece in pieces))


def _whole(provider: str) -> Callable[[Call], Seen]:
    def whole(call: Call) -> Seen:
        reply = litellm.completion(**_asked(call, provider))
        return Seen(reply.choices[0].message.content or "", None, {"finish": reply.choices[0].finish_reason})

    return whole


def _stream(provider: str) -> Callable[[Call], Seen]:
    return lambda call: _collect(litellm.completion(**_asked(call, provider, stream=True)))


def _tools(provider: str, *, streamed: bool) -> Callable[[Call], Seen]:
    def tools(call: Call) -> Seen:
        asked = _asked(call, provider, tools=[TOOL], stream=streamed)
        reply = litellm.completion(**asked)
        if streamed:
            reply = litellm.stream_chunk_builder(list(reply))
        calls = reply.choices[0].message.tool_calls or []
        made = [(item.function.name, item.function.arguments) for item in calls]
        return Seen("", None, {"calls": made, "finish": reply.choices[0].finish_reason})

    return tools


OPERATIONS: Final[Mapping[str, Callable[[Call], Seen]]] = {
    f"{provider}/{operation}": made
    for provider in ("openai", "anthropic")
    for operation, made in {
        "whole": _whole(provider),
        "stream": _stream(provider),
        "tools": _tools(provider, streamed=False),
        "tools stream": _tools(provider, streamed=True),
    }.items()
}


def describe(error: Exception) -> Raised:
    """Its exceptions follow OpenAI's in name; code and type are not among their fields."""
    return Raised(type(error).__name__, str(error), getattr(error, "status_code", None))


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    drive({"litellm": version("litellm")}, lambda call: OPERATIONS[call.operation](call), describe)
