"""Makes calls with LangChain's OpenAI client. Runs in that client's environment: nothing of ours but `record` and `drive_openai`."""

import json
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any, Final

from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import SecretStr

from hlserve_router.testing.clients.drive_openai import describe
from hlserve_router.testing.clients.record import Call, Seen, collect, drive

TOOL: Final[Any] = {
    "title": "weather",
    "description": "The weather of a city.",
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


def _model(call: Call, **more: Any) -> Any:
    return ChatOpenAI(
        model=call.model, base_url=f"{call.url}/v1", api_key=SecretStr(call.key or "none"), timeout=call.timeout_seconds,
        default_headers=dict(call.headers), extra_body=dict(call.body) or None, **more,
    )  # fmt: skip


def whole(call: Call) -> Seen:
    """One message."""
    reply = _model(call).invoke([HumanMessage(call.prompt)])
    return Seen(str(reply.content), None, {"finish": reply.response_metadata.get("finish_reason")})


def stream(call: Call) -> Seen:
    """A streamed message, piece by piece."""
    pieces: Iterable[Any] = _model(call).stream([HumanMessage(call.prompt)])
    return Seen(collect(str(piece.content) for piece in pieces))


def usage_stream(call: Call) -> Seen:
    """A streamed message whose usage is kept."""
    pieces = list(_model(call, stream_usage=True).stream([HumanMessage(call.prompt)]))
    usages = [piece.usage_metadata["total_tokens"] for piece in pieces if piece.usage_metadata]
    return Seen("".join(str(piece.content) for piece in pieces), None, {"usages": usages})


def tools(call: Call) -> Seen:
    """A message that calls a tool."""
    reply: AIMessage = _model(call).bind_tools([TOOL]).invoke([HumanMessage(call.prompt)])
    return _calls(reply)


def tools_stream(call: Call) -> Seen:
    """A streamed message that calls a tool."""
    pieces = list(_model(call).bind_tools([TOOL]).stream([HumanMessage(call.prompt)]))
    message = pieces[0]
    for piece in pieces[1:]:
        message += piece
    return _calls(message)


def _calls(message: Any) -> Seen:
    return Seen("", None, {"calls": [(item["name"], json.dumps(item["args"])) for item in message.tool_calls]})


def responses_stream(call: Call) -> Seen:
    """A message streamed over the Responses API."""
    pieces: Iterable[Any] = _model(call, use_responses_api=True).stream([HumanMessage(call.prompt)])
    return Seen(collect(str(piece.text) for piece in pieces))


def embeddings(call: Call) -> Seen:
    """The embedding of a text."""
    model = OpenAIEmbeddings(
        model=call.model,
        base_url=f"{call.url}/v1",
        api_key=SecretStr(call.key or "none"),
        check_embedding_ctx_length=False,
    )
    return Seen("", None, {"numbers": model.embed_query(call.prompt)})


OPERATIONS: Final[Mapping[str, Callable[[Call], Seen]]] = {
    "whole": whole,
    "stream": stream,
    "usage stream": usage_stream,
    "tools": tools,
    "tools stream": tools_stream,
    "responses stream": responses_stream,
    "embeddings": embeddings,
}

if __name__ == "__main__":
    drive({"langchain-openai": version("langchain-openai")}, lambda call: OPERATIONS[call.operation](call), describe)
