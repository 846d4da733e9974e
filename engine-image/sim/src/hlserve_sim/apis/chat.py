"""`/v1/chat/completions`."""

from collections.abc import Mapping, Sequence

import msgspec

from hlserve_sim import wire
from hlserve_sim.apis.base import matched_stop
from hlserve_sim.apis.choices import ChoicesApi, ChoiceStream, usage
from hlserve_sim.apis.completions import running_usage
from hlserve_sim.errors import ApiError, flat
from hlserve_sim.fields import Fields
from hlserve_sim.live import Live
from hlserve_sim.logprobs import chat_logprobs, top_wanted
from hlserve_sim.orders import Order, Reader, choices_wanted, limit, request_id, schema_wanted, usage_wanted
from hlserve_sim.prompts import chat_words
from hlserve_sim.replies import REASONING_SHARE, Kind, Piece, Tool


class ChatApi(ChoicesApi):
    """OpenAI chat."""

    header_overrides = True

    def read(self, fields: Fields, reader: Reader) -> Order:
        tools = read_tools(fields)
        prompt, digest = reader.words_prompt(chat_words(fields.children("messages"), tools))
        wanted = fields.integer("max_completion_tokens")
        max_tokens = limit(wanted if wanted is not None else fields.integer("max_tokens"), "max_completion_tokens")
        include_usage, continuous = usage_wanted(fields, reader.default_include_usage)
        return Order(
            prompt=prompt,
            digest=digest,
            model=fields.need_text("model"),
            stream=fields.flag("stream"),
            rid=request_id(fields, "rid"),
            priority=fields.integer("priority"),
            max_tokens=max_tokens,
            min_tokens=fields.integer("min_tokens") or 0,
            ignore_eos=fields.flag("ignore_eos"),
            stop=fields.strings("stop"),
            reasoning_effort=effort(fields.text("reasoning_effort"), "reasoning_effort"),
            tool=forced_tool(fields.raw.get("tool_choice"), tools),
            json_schema=schema_wanted(fields, "response_format"),
            include_usage=include_usage,
            continuous_usage=continuous,
            choices=choices_wanted(fields),
            top_logprobs=top_wanted(fields.integer("top_logprobs"), "top_logprobs")
            if fields.flag("logprobs")
            else None,
        )

    def whole_of(self, order: Order, lives: Sequence[Live], created: int) -> object:
        top = order.top_logprobs
        choices = [
            {
                "index": index,
                "message": _message(live),
                "logprobs": None if top is None else chat_logprobs(live, 0, live.made, top),
                "finish_reason": live.finish,
                "matched_stop": matched_stop(live),
            }
            for index, live in enumerate(lives)
        ]
        return {
            "id": lives[0].rid,
            "object": "chat.completion",
            "created": created,
            "model": order.model,
            "choices": choices,
            "usage": usage(order, lives, self._context.cache_report),
        }

    def choice_stream(self, order: Order, live: Live, created: int, index: int) -> ChoiceStream:
        return _ChatStream(self, order, live, created, index)

    def trailer(self, order: Order, lives: Sequence[Live], created: int) -> bytes:
        if not order.include_usage:
            return wire.DONE
        last = {
            "id": lives[0].rid,
            "object": "chat.completion.chunk",
            "created": created,
            "model": order.model,
            "choices": [],
            "usage": usage(order, lives, self._context.cache_report),
        }
        return wire.sse(last) + wire.DONE

    def error(self, error: ApiError) -> Mapping[str, object]:
        return flat(error)

    def error_stream(self, error: ApiError, model: str) -> bytes:
        return wire.sse({"error": flat(error)}) + wire.DONE


def effort(value: str | None, name: str) -> str | None:
    """A reasoning effort, checked."""
    if value is not None and value not in REASONING_SHARE:
        raise ApiError(f"{name}: must be one of {', '.join(REASONING_SHARE)}", kind="Bad Request", param=name)
    return value


def read_tools(fields: Fields) -> list[Tool]:
    """The functions a body declares."""
    return [_tool(item) for item in fields.children("tools")]


def _tool(item: Fields) -> Tool:
    function = item.child("function")
    if item.text("type") != "function" or function is None:
        raise ApiError("tools: each must have type 'function' and a function", kind="Bad Request", param="tools")
    parameters = function.child("parameters")
    return Tool(function.need_text("name"), dict(parameters.raw) if parameters else {})


def forced_tool(choice: object, tools: list[Tool]) -> Tool | None:
    """The tool that must be called: the first one for `required`, the named one, or none."""
    if choice is None or choice in ("auto", "none"):
        return None
    if choice == "required":
        if not tools:
            raise ApiError("Tools cannot be empty if tool choice is set to required.", param="tool_choice")
        return tools[0]
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    for tool in tools:
        if tool.name == name:
            return tool
    raise ApiError(f"Tool '{name}' not found in tools list.", param="tool_choice")


def _message(live: Live) -> dict[str, object]:
    reply, made = live.reply, live.made
    calls = None
    if any(piece.kind is Kind.TOOL_NAME for piece in reply.pieces[:made]):
        function = {"name": reply.text(Kind.TOOL_NAME, made), "arguments": reply.text(Kind.TOOL_ARGUMENTS, made)}
        calls = [{"id": reply.tool_call_id, "index": 0, "type": "function", "function": function}]
    return {
        "role": "assistant",
        "content": reply.text(Kind.CONTENT, made),
        "reasoning_content": reply.text(Kind.REASONING, made) or None,
        "tool_calls": calls,
    }


class _ChatStream(ChoiceStream):
    def __init__(self, api: ChoicesApi, order: Order, live: Live, created: int, index: int) -> None:
        super().__init__(api, order, live, created)
        head = {"id": live.rid, "object": "chat.completion.chunk", "created": created, "model": order.model}
        self._head = b'data: %b,"choices":[{"index":%d,"delta":' % (msgspec.json.encode(head)[:-1], index)
        self._own_tails = order.continuous_usage or order.top_logprobs is not None
        self._said_role = False

    def tokens(self, start: int, stop: int) -> bytes:
        head, pieces, own_tails = self._head, self._live.reply.pieces, self._own_tails
        tail = b',"logprobs":null,"finish_reason":null,"matched_stop":null}]}\n\n'
        parts = []
        if not self._said_role:
            self._said_role = True
            parts.append(head + b'{"reasoning_content":null,"role":"assistant","content":""}' + tail)
        for at in range(start, stop):
            piece = pieces[at]
            if piece.kind is Kind.SILENT and self._order.top_logprobs is None:
                continue
            if own_tails:
                tail = self._own_tail(at)
            parts.append(head + self._delta(piece) + tail)
        return b"".join(parts)

    def _own_tail(self, at: int) -> bytes:
        """What follows the delta of token `at` when each chunk carries usage, log probabilities or both."""
        order, live = self._order, self._live
        logged = None if order.top_logprobs is None else chat_logprobs(live, at, at + 1, order.top_logprobs)
        tail = b',"logprobs":%b,"finish_reason":null,"matched_stop":null}]' % msgspec.json.encode(logged)
        if order.continuous_usage:
            tail += b',"usage":' + msgspec.json.encode(running_usage(live, at + 1))
        return tail + b"}\n\n"

    def _delta(self, piece: Piece) -> bytes:
        text = msgspec.json.encode(piece.text)
        match piece.kind:
            case Kind.CONTENT:
                return b'{"reasoning_content":null,"content":' + text + b"}"
            case Kind.REASONING:
                return b'{"reasoning_content":' + text + b"}"
            case Kind.TOOL_NAME:
                function = {"name": piece.text, "arguments": ""}
                call = {"id": self._live.reply.tool_call_id, "index": 0, "type": "function", "function": function}
                return msgspec.json.encode({"reasoning_content": None, "tool_calls": [call]})
            case Kind.TOOL_ARGUMENTS:
                fragment = {"name": None, "arguments": piece.text}
                call = {"id": None, "index": 0, "type": "function", "function": fragment}
                return msgspec.json.encode({"reasoning_content": None, "tool_calls": [call]})
            case Kind.SILENT:
                return b'{"reasoning_content":null}'

    def ending(self) -> bytes:
        live = self._live
        end = {"logprobs": None, "finish_reason": live.finish, "matched_stop": matched_stop(live)}
        return self._head + b'{"reasoning_content":null},' + msgspec.json.encode(end)[1:] + b"]}\n\n"

    def failed(self, error: ApiError) -> bytes:
        return wire.sse({"error": flat(error)}) + wire.DONE
