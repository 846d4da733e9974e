"""From messages to the words of a prompt, always the same way, so that a conversation that goes on extends its prefix.

The template is the simulator's own: a mark per turn, the turn's words, an end mark, and the assistant's mark last. An
assistant turn is laid out exactly as the model made it, so a client that sends a reply back finds it in the cache.
"""

from collections.abc import Iterable, Sequence

import msgspec

from hlserve_sim.errors import ApiError
from hlserve_sim.fields import Fields
from hlserve_sim.replies import THINK_END, Tool, tool_words

TURN_END = "<|end|>"
TOOLS_MARK = "<|tools|>"
MEDIA_MARK = "<|media|>"
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal"})
_MEDIA_PARTS = frozenset(
    {"image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "file", "input_file", "document"}
)


def _mark(role: str) -> str:
    return f"<|{role}|>"


def content_words(content: object) -> list[str]:
    """The words of a message's content: a string, a list of parts, or null."""
    if content is None:
        return []
    if isinstance(content, str):
        return content.split()
    if not isinstance(content, list):
        raise ApiError("messages: content must be a string or a list of parts", kind="Bad Request", param="messages")
    words: list[str] = []
    for part in content:
        words += _part_words(part)
    return words


def _part_words(part: object) -> list[str]:
    if isinstance(part, str):
        return part.split()
    if not isinstance(part, dict):
        raise ApiError("messages: a part of content must be an object", kind="Bad Request", param="messages")
    kind = part.get("type")
    if kind in _TEXT_PARTS:
        text = part.get("text") or part.get("refusal") or ""
        return text.split() if isinstance(text, str) else []
    if kind == "thinking":
        thinking = part.get("thinking")
        return [*thinking.split(), THINK_END] if isinstance(thinking, str) else []
    if kind == "tool_use":
        arguments = msgspec.json.encode(part.get("input") or {}).decode()
        return tool_words(str(part.get("name", "")), arguments)
    if kind == "tool_result":
        return content_words(part.get("content"))
    if kind in _MEDIA_PARTS:
        return [MEDIA_MARK, msgspec.json.encode(part).decode()]
    raise ApiError(f"messages: a part of type {kind!r} is not supported", kind="Bad Request", param="messages")


def tools_words(tools: Sequence[Tool]) -> list[str]:
    """The words that tool definitions put in front of a prompt."""
    words = [TOOLS_MARK] if tools else []
    for tool in tools:
        words += [tool.name, *msgspec.json.encode(tool.parameters, order="sorted").decode().split()]
    return words


def turn(role: str, words: Iterable[str]) -> list[str]:
    """One finished turn."""
    return [_mark(role), *words, TURN_END]


def opening() -> list[str]:
    """What stands before the reply."""
    return [_mark("assistant")]


def chat_words(messages: Sequence[Fields], tools: Sequence[Tool]) -> list[str]:
    """The whole prompt of a chat. Raises ApiError if there is no message or one has no role."""
    if not messages:
        raise ApiError("Messages cannot be empty.", param="messages")
    words = tools_words(tools)
    for message in messages:
        role = message.text("role")
        if not role:
            raise ApiError("messages: each message needs a role", kind="Bad Request", param="messages")
        said: list[str] = []
        reasoning = message.text("reasoning_content")
        if reasoning:
            said += [*reasoning.split(), THINK_END]
        said += content_words(message.raw.get("content"))
        for call in message.children("tool_calls"):
            function = call.child("function")
            if function is not None:
                said += tool_words(function.text("name") or "", function.text("arguments") or "")
        words += turn(role, said)
    return words + opening()


def anthropic_words(system: object, messages: Sequence[Fields], tools: Sequence[Tool]) -> list[str]:
    """The whole prompt of a `/v1/messages` call."""
    if not messages:
        raise ApiError("messages: at least one message is required", param="messages")
    words = tools_words(tools)
    if system:
        words += turn("system", content_words(system))
    for message in messages:
        words += turn(message.need_text("role"), content_words(message.raw.get("content")))
    return words + opening()


def responses_words(instructions: str | None, history: Sequence[object], tools: Sequence[Tool]) -> list[str]:
    """The whole prompt of a `/v1/responses` call; `history` holds input and output items, oldest first."""
    words = tools_words(tools)
    if instructions:
        words += turn("system", instructions.split())
    said: list[str] = []
    for item in history:
        if not isinstance(item, dict):
            raise ApiError("input: must be a string or a list of items", param="input")
        fields = Fields(item)
        match fields.text("type") or "message":
            case "message":
                role = fields.need_text("role")
                if role == "assistant":
                    said += content_words(item.get("content"))
                    continue
                words += turn("assistant", said) if said else []
                words += turn(role, content_words(item.get("content")))
                said = []
            case "reasoning":
                said += [*content_words(item.get("content") or item.get("summary")), THINK_END]
            case "function_call":
                said += tool_words(fields.text("name") or "", fields.text("arguments") or "")
            case "function_call_output":
                words += turn("assistant", said) if said else []
                words += turn("tool", content_words(item.get("output")))
                said = []
            case kind:
                raise ApiError(f"input: an item of type {kind!r} is not supported", param="input")
    words += turn("assistant", said) if said else []
    return words + opening()
