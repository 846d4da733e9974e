"""What engines answer to real clients: whole replies and streams of each API, typed after SGLang 0.5.23's."""

import json
from typing import Any, Final

from hlserve_router.testing.scripts import DONE, event

TEXT: Final = "Hello there"
_WORDS: Final = ("Hello", " there")
_ARGUMENTS: Final = '{"city": "Oslo"}'


def named(data: dict[str, Any]) -> bytes:
    """One event that carries its type as its name, as the Anthropic and Responses APIs have it."""
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def _chat(message: dict[str, Any], finish: str) -> bytes:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    body = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m1", "choices": [choice], "usage": usage}
    return json.dumps(body).encode()


def _tool_call(arguments: str, name: str | None = "weather", call_id: str | None = "call_1") -> dict[str, Any]:
    return {"index": 0, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


CHAT: Final = _chat({"content": TEXT}, "stop")
CHAT_TOOLS: Final = _chat({"content": None, "tool_calls": [_tool_call(_ARGUMENTS)]}, "tool_calls")


def chat_chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    """One chunk of a streamed chat completion."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event(
        {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m1", "choices": [choice], "usage": None}
    )


CHAT_BEGIN: Final = chat_chunk({"role": "assistant", "content": ""})
CHAT_WORDS: Final = tuple(chat_chunk({"content": word}) for word in _WORDS)
CHAT_USAGE: Final = event(
    {
        "id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m1", "choices": [],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }
)  # fmt: skip
CHAT_STREAM: Final = (CHAT_BEGIN, *CHAT_WORDS, chat_chunk({}, "stop"), CHAT_USAGE, DONE)
CHAT_TOOLS_STREAM: Final = (
    CHAT_BEGIN,
    chat_chunk({"tool_calls": [_tool_call("")]}),
    chat_chunk({"tool_calls": [_tool_call(_ARGUMENTS[:7], None, None)]}),
    chat_chunk({"tool_calls": [_tool_call(_ARGUMENTS[7:], None, None)]}),
    chat_chunk({}, "tool_calls"),
    CHAT_USAGE,
    DONE,
)
COMPLETIONS_STREAM: Final = (
    *(
        event(
            {
                "id": "c1",
                "object": "text_completion",
                "created": 1,
                "model": "m1",
                "choices": [{"index": 0, "text": word}],
            }
        )
        for word in _WORDS
    ),
    DONE,
)
EMBEDDINGS: Final = json.dumps(
    {
        "object": "list", "model": "m1", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }
).encode()  # fmt: skip


def _response(status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    usage = {
        "input_tokens": 5, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 7,
    }  # fmt: skip
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "m1", "status": status, "output": output,
        "usage": usage if status == "completed" else None, "parallel_tool_calls": True, "tool_choice": "auto",
        "tools": [], "error": None, "incomplete_details": None, "instructions": None, "metadata": None,
        "temperature": None, "top_p": None, "text": {"format": {"type": "text"}},
    }  # fmt: skip


def _numbered(*items: dict[str, Any]) -> tuple[bytes, ...]:
    return tuple(named({**item, "sequence_number": number}) for number, item in enumerate(items))


_PART: Final[dict[str, Any]] = {"type": "output_text", "text": TEXT, "annotations": []}
_ITEM: Final[dict[str, Any]] = {
    "id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [_PART],
}  # fmt: skip
_AT: Final = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
RESPONSE: Final = json.dumps(_response("completed", [_ITEM])).encode()
RESPONSE_STREAM: Final = _numbered(
    {"type": "response.created", "response": _response("in_progress", [])},
    {"type": "response.in_progress", "response": _response("in_progress", [])},
    {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {**_ITEM, "status": "in_progress", "content": []},
    },
    {"type": "response.content_part.added", **_AT, "part": {**_PART, "text": ""}},
    *({"type": "response.output_text.delta", **_AT, "delta": word, "logprobs": []} for word in _WORDS),
    {"type": "response.output_text.done", **_AT, "text": TEXT, "logprobs": []},
    {"type": "response.content_part.done", **_AT, "part": _PART},
    {"type": "response.output_item.done", "output_index": 0, "item": _ITEM},
    {"type": "response.completed", "response": _response("completed", [_ITEM])},
)
_CALL: Final[dict[str, Any]] = {
    "id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "weather", "arguments": _ARGUMENTS,
    "status": "completed",
}  # fmt: skip
RESPONSE_TOOLS_STREAM: Final = _numbered(
    {"type": "response.created", "response": _response("in_progress", [])},
    {"type": "response.output_item.added", "output_index": 0, "item": {**_CALL, "status": "in_progress", "arguments": ""}},
    {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 0, "delta": _ARGUMENTS},
    {
        "type": "response.function_call_arguments.done", "item_id": "fc_1", "output_index": 0, "name": "weather",
        "arguments": _ARGUMENTS,
    },
    {"type": "response.output_item.done", "output_index": 0, "item": _CALL},
    {"type": "response.completed", "response": _response("completed", [_CALL])},
)  # fmt: skip


def _message(content: list[dict[str, Any]], stop: str | None) -> dict[str, Any]:
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m1", "content": content, "stop_reason": stop,
        "stop_sequence": None, "usage": {"input_tokens": 5, "output_tokens": 2},
    }  # fmt: skip


_TOOL_USE: Final[dict[str, Any]] = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {}}
MESSAGE: Final = json.dumps(_message([{"type": "text", "text": TEXT}], "end_turn")).encode()
MESSAGE_TOOLS: Final = json.dumps(_message([{**_TOOL_USE, "input": {"city": "Oslo"}}], "tool_use")).encode()
MESSAGE_BEGIN: Final = named({"type": "message_start", "message": _message([], None)})


def _block(start: dict[str, Any], *deltas: dict[str, Any]) -> tuple[bytes, ...]:
    return (
        named({"type": "content_block_start", "index": 0, "content_block": start}),
        *(named({"type": "content_block_delta", "index": 0, "delta": delta}) for delta in deltas),
        named({"type": "content_block_stop", "index": 0}),
    )


def _message_end(stop: str) -> tuple[bytes, ...]:
    return (
        named({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 2}}),
        named({"type": "message_stop"}),
    )


MESSAGE_WORDS: Final = _block({"type": "text", "text": ""}, *({"type": "text_delta", "text": word} for word in _WORDS))
MESSAGE_STREAM: Final = (MESSAGE_BEGIN, *MESSAGE_WORDS, *_message_end("end_turn"))
MESSAGE_TOOLS_STREAM: Final = (
    MESSAGE_BEGIN,
    *_block(
        _TOOL_USE,
        {"type": "input_json_delta", "partial_json": _ARGUMENTS[:7]},
        {"type": "input_json_delta", "partial_json": _ARGUMENTS[7:]},
    ),
    *_message_end("tool_use"),
)
TOKENS: Final = b'{"input_tokens": 5}'
