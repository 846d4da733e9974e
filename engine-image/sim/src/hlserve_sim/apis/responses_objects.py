"""The objects of `/v1/responses`: responses and their output items."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hlserve_sim.apis.base import reasoning_tokens
from hlserve_sim.live import Live
from hlserve_sim.orders import Order
from hlserve_sim.replies import Kind

PREFIX = "resp_"


@dataclass(frozen=True, slots=True)
class Echo:
    """What a response repeats of its request."""

    instructions: str | None
    max_output_tokens: int | None
    previous_response_id: str | None
    store: bool
    background: bool
    tools: Sequence[object]
    tool_choice: object
    metadata: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseOrder(Order):
    """An order of this API. `history` is its input as items, for a later `previous_response_id`."""

    echo: Echo
    history: Sequence[object]


def response_order(order: Order) -> ResponseOrder:
    """The order as one of this API. Raises TypeError for another API's."""
    if not isinstance(order, ResponseOrder):
        raise TypeError(f"an order of /v1/responses is needed, not {type(order).__name__}")
    return order


def final_response(order: Order, live: Live, created: int) -> dict[str, object]:
    """The response object at its end."""
    return response(order, live, created, _status(live), output_items(live))


def _status(live: Live) -> str:
    return {"length": "incomplete", "abort": "cancelled"}.get(live.finish, "completed")


def item_id(live: Live, kind: str) -> str:
    """The id of an output item: the same in the stream and in the whole answer."""
    return f"{kind}_{live.rid.removeprefix(PREFIX)}"


def message_item(live: Live, text: str, status: str = "completed") -> dict[str, object]:
    """An output message."""
    part: dict[str, object] = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
    return {
        "id": item_id(live, "msg"),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [part] if status == "completed" else [],
    }


def reasoning_item(live: Live, text: str, status: str = "completed") -> dict[str, object]:
    """An output item of reasoning."""
    content = [{"type": "reasoning_text", "text": text}] if status == "completed" else []
    return {"id": item_id(live, "rs"), "type": "reasoning", "summary": [], "content": content, "status": status}


def call_item(live: Live, name: str, arguments: str, status: str = "completed") -> dict[str, object]:
    """An output item of a function call."""
    return {
        "id": item_id(live, "fc"),
        "type": "function_call",
        "call_id": live.reply.tool_call_id,
        "name": name,
        "arguments": arguments,
        "status": status,
    }


def output_items(live: Live) -> list[dict[str, object]]:
    """All output items of what was made."""
    reply, made = live.reply, live.made
    items = []
    if thinking := reply.text(Kind.REASONING, made):
        items.append(reasoning_item(live, thinking))
    if text := reply.text(Kind.CONTENT, made):
        items.append(message_item(live, text))
    if name := reply.text(Kind.TOOL_NAME, made):
        items.append(call_item(live, name, reply.text(Kind.TOOL_ARGUMENTS, made)))
    return items


def _usage(live: Live) -> dict[str, object]:
    return {
        "input_tokens": live.prompt_tokens,
        "input_tokens_details": {"cached_tokens": live.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": live.made,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens(live)},
        "total_tokens": live.prompt_tokens + live.made,
    }


def response(
    order: Order, live: Live, created: int, status: str, output: Sequence[Mapping[str, object]]
) -> dict[str, object]:
    """A response object in one of its states."""
    echo = response_order(order).echo
    ended = status not in ("queued", "in_progress")
    return {
        "id": live.rid,
        "object": "response",
        "created_at": created,
        "model": order.model,
        "output": output,
        "status": status,
        "usage": _usage(live) if ended else None,
        "parallel_tool_calls": True,
        "tool_choice": echo.tool_choice,
        "tools": echo.tools,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": echo.instructions,
        "max_output_tokens": echo.max_output_tokens,
        "previous_response_id": echo.previous_response_id,
        "reasoning": {"effort": order.reasoning_effort, "summary": None},
        "store": echo.store,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "top_p": None,
        "truncation": "disabled",
        "user": None,
        "metadata": echo.metadata,
    }
