"""`/v1/messages`, Anthropic's API over the same generation, and `/v1/messages/count_tokens`."""

from collections.abc import Mapping
from uuid import uuid4

import msgspec

from hlserve_sim import wire
from hlserve_sim.apis.base import Api, Stream
from hlserve_sim.apis.chat import effort
from hlserve_sim.errors import ApiError, anthropic
from hlserve_sim.fields import Fields
from hlserve_sim.live import Live
from hlserve_sim.orders import Order, Reader, schema_wanted
from hlserve_sim.prompts import anthropic_words
from hlserve_sim.replies import Kind, Tool

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_BUDGET_EFFORTS = ((2048, "low"), (8192, "medium"))
"""Thinking budgets up to these count as these efforts; larger ones as high."""
_MESSAGE_STOP = wire.named_sse("message_stop", {"type": "message_stop"})


def read_words(fields: Fields) -> tuple[list[str], list[Tool]]:
    """The prompt of a messages call and its tools."""
    tools = [_tool(item) for item in fields.children("tools")]
    return anthropic_words(fields.raw.get("system"), fields.children("messages"), tools), tools


class MessagesApi(Api):
    """Anthropic messages."""

    holds_status = False
    header_overrides = True

    def read(self, fields: Fields, reader: Reader) -> Order:
        words, tools = read_words(fields)
        prompt, digest = reader.words_prompt(words)
        max_tokens = fields.integer("max_tokens")
        if max_tokens is None:
            raise ApiError("max_tokens: Field required")
        if max_tokens <= 0:
            raise ApiError("max_tokens: max_tokens must be positive")
        return Order(
            prompt=prompt,
            digest=digest,
            model=fields.need_text("model"),
            stream=fields.flag("stream"),
            rid=None,
            priority=fields.integer("priority"),
            max_tokens=max_tokens,
            min_tokens=fields.integer("min_tokens") or 0,
            ignore_eos=fields.flag("ignore_eos"),
            stop=fields.strings("stop_sequences"),
            reasoning_effort=_effort(fields),
            tool=_forced_tool(fields.child("tool_choice"), tools),
            json_schema=schema_wanted(fields.child("output_config"), "format"),
            include_usage=True,
        )

    def whole(self, order: Order, live: Live, created: int) -> object:
        return {
            "id": f"msg_{uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "content": _content(live),
            "model": order.model,
            "stop_reason": _STOP_REASONS.get(live.finish, "end_turn"),
            "usage": {**_input_usage(live, self._context.cache_report), "output_tokens": live.made},
        }

    def stream(self, order: Order, live: Live, created: int) -> Stream:
        return _MessageStream(order, live, self._context.cache_report)

    def error(self, error: ApiError) -> Mapping[str, object]:
        return anthropic(error)

    def error_stream(self, error: ApiError, model: str) -> bytes:
        return _start_event(model, {"input_tokens": 0}) + wire.named_sse("error", anthropic(error)) + _MESSAGE_STOP


def _tool(item: Fields) -> Tool:
    schema = item.child("input_schema")
    return Tool(item.need_text("name"), dict(schema.raw) if schema else {})


def _forced_tool(choice: Fields | None, tools: list[Tool]) -> Tool | None:
    kind = choice.text("type") if choice is not None else "auto"
    if choice is None or kind in ("auto", "none"):
        return None
    if kind == "any" and tools:
        return tools[0]
    name = choice.text("name")
    for tool in tools:
        if kind == "tool" and tool.name == name:
            return tool
    raise ApiError(f"tool_choice: no tool for {name or kind!r} in tools")


def _effort(fields: Fields) -> str | None:
    output = fields.child("output_config")
    if output is not None and (level := output.text("effort")) is not None:
        return effort(level, "output_config.effort")
    thinking = fields.child("thinking")
    if thinking is None or thinking.text("type") == "disabled":
        return None
    budget = thinking.integer("budget_tokens")
    if budget is None:
        return "medium"
    return next((name for most, name in _BUDGET_EFFORTS if budget <= most), "high")


def _content(live: Live) -> list[dict[str, object]]:
    reply, made = live.reply, live.made
    blocks: list[dict[str, object]] = []
    if thinking := reply.text(Kind.REASONING, made):
        blocks.append({"type": "thinking", "thinking": thinking})
    if text := reply.text(Kind.CONTENT, made):
        blocks.append({"type": "text", "text": text})
    if name := reply.text(Kind.TOOL_NAME, made):
        blocks.append({"type": "tool_use", "id": reply.tool_call_id, "name": name, "input": _arguments(live)})
    return blocks or [{"type": "text", "text": ""}]


def _arguments(live: Live) -> object:
    try:
        value: object = msgspec.json.decode(live.reply.text(Kind.TOOL_ARGUMENTS, live.made))
    except msgspec.DecodeError:
        return {}  # cut by the token limit; upstream gives an empty object too
    return value


def _input_usage(live: Live, cache_report: bool) -> dict[str, object]:
    """Anthropic counts cached tokens apart from `input_tokens`."""
    if not cache_report or not live.cached_tokens:
        return {"input_tokens": live.prompt_tokens}
    return {
        "input_tokens": live.prompt_tokens - live.cached_tokens,
        "cache_read_input_tokens": live.cached_tokens,
    }


def _start_event(model: str, counted: Mapping[str, object]) -> bytes:
    message = {
        "id": f"msg_{uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": model,
        "usage": {**counted, "output_tokens": 0},
    }
    return wire.named_sse("message_start", {"type": "message_start", "message": message})


_BLOCK = {Kind.REASONING: "thinking", Kind.CONTENT: "text", Kind.TOOL_NAME: "tool_use", Kind.TOOL_ARGUMENTS: "tool_use"}


class _MessageStream(Stream):
    def __init__(self, order: Order, live: Live, cache_report: bool) -> None:
        self._order, self._live, self._cache_report = order, live, cache_report
        self._started = False
        self._block: str | None = None
        self._index = 0
        self._head = b""

    def tokens(self, start: int, stop: int) -> bytes:
        parts = self._start()
        for at in range(start, stop):
            piece = self._live.reply.pieces[at]
            if piece.kind is Kind.SILENT:
                continue
            if _BLOCK[piece.kind] != self._block:
                parts += self._close_block()
                parts.append(self._open_block(piece.kind, piece.text))
            if piece.kind is not Kind.TOOL_NAME:
                parts.append(self._head + msgspec.json.encode(piece.text) + b"}}\n\n")
        return b"".join(parts)

    def closing(self) -> bytes:
        parts = self._start() + self._close_block()
        delta = {"stop_reason": _STOP_REASONS.get(self._live.finish, "end_turn")}
        ended = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": self._live.made}}
        return b"".join(parts) + wire.named_sse("message_delta", ended) + _MESSAGE_STOP

    def failed(self, error: ApiError) -> bytes:
        parts = self._start() + self._close_block()
        return b"".join(parts) + wire.named_sse("error", anthropic(error)) + _MESSAGE_STOP

    def _start(self) -> list[bytes]:
        if self._started:
            return []
        self._started = True
        return [_start_event(self._order.model, _input_usage(self._live, self._cache_report))]

    def _open_block(self, kind: Kind, text: str) -> bytes:
        self._block = _BLOCK[kind]
        match self._block:
            case "thinking":
                block: dict[str, object] = {"type": "thinking", "thinking": ""}
                delta = b'{"type":"thinking_delta","thinking":'
            case "text":
                block = {"type": "text", "text": ""}
                delta = b'{"type":"text_delta","text":'
            case _:
                block = {"type": "tool_use", "id": self._live.reply.tool_call_id, "name": text, "input": {}}
                delta = b'{"type":"input_json_delta","partial_json":'
        head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":' % self._index
        self._head = head + delta
        opened = {"type": "content_block_start", "index": self._index, "content_block": block}
        return wire.named_sse("content_block_start", opened)

    def _close_block(self) -> list[bytes]:
        if self._block is None:
            return []
        closed = wire.named_sse("content_block_stop", {"type": "content_block_stop", "index": self._index})
        self._block = None
        self._index += 1
        return [closed]
