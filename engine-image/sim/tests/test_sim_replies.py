import json
from itertools import pairwise

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_sim.fields import Fields
from hlserve_sim.prompts import chat_words
from hlserve_sim.replies import Kind, Reply, Tool, Wish, compose
from hlserve_sim.tokens import Vocabulary

READ_FILE = Tool(
    "read_file",
    {
        "type": "object",
        "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
        "required": ["path", "line"],
    },
)
NOW = Tool("now", {"type": "object", "properties": {}})
DIGESTS = st.integers(0, (1 << 64) - 1)


def reply_to(**wish: object) -> Reply:
    return compose(Wish(**{"digest": 7, "room_tokens": 4096, **wish}), Vocabulary())  # type: ignore[arg-type]


def text_of(reply: Reply) -> str:
    return reply.text(Kind.CONTENT)


@given(
    DIGESTS,
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.booleans(),
    st.sampled_from([None, "low", "high"]),
    st.sampled_from([None, READ_FILE, NOW]),
)
def test_a_reply_has_one_piece_a_token_and_keeps_its_limits(
    digest: int, room: int, wanted: int, forced: bool, effort: str | None, tool: Tool | None
) -> None:
    wish = Wish(
        digest=digest, room_tokens=room, max_tokens=wanted, ignore_eos=forced, reasoning_effort=effort, tool=tool
    )
    reply = compose(wish, Vocabulary())
    assert len(reply.pieces) == len(reply.token_ids) <= min(room, wanted)
    assert len(reply.pieces) >= 1
    assert reply == compose(wish, Vocabulary())
    if forced:
        assert len(reply.pieces) == min(room, wanted)
        assert reply.finish == "length"


def test_other_digests_give_other_lengths_and_words() -> None:
    replies = [reply_to(digest=digest) for digest in range(40)]
    assert len({len(reply.pieces) for reply in replies}) > 20
    assert all(text_of(one) != text_of(other) for one, other in pairwise(replies))


def test_a_reply_that_ends_by_itself_stops_and_one_that_is_cut_has_its_length() -> None:
    natural = reply_to()
    assert natural.finish == "stop"
    cut = reply_to(max_tokens=len(natural.pieces) - 1)
    assert cut.finish == "length"
    assert text_of(natural).startswith(text_of(cut))


def test_min_tokens_lengthens_a_reply() -> None:
    assert len(reply_to(min_tokens=1500).pieces) >= 1500


def test_a_stop_string_ends_the_reply_before_itself() -> None:
    words = text_of(reply_to()).split()
    stop = next(word for word in words[5:] if word not in words[:5])
    reply = reply_to(stop=("no such", stop))
    assert reply.finish == "stop"
    assert reply.matched_stop == stop
    assert stop not in text_of(reply)
    assert text_of(reply_to()).startswith(text_of(reply))


def test_more_effort_reasons_more_and_the_end_mark_shows_no_text() -> None:
    counts = [
        reply_to(max_tokens=100, ignore_eos=True, reasoning_effort=effort).count(Kind.REASONING)
        for effort in ("none", "low", "medium", "high")
    ]
    assert counts == sorted(counts)
    assert counts[0] == 0 < counts[1]
    reply = reply_to(max_tokens=100, ignore_eos=True, reasoning_effort="high")
    assert reply.count(Kind.SILENT) == 1
    assert reply.text(Kind.SILENT) == ""


@pytest.mark.parametrize("length", [20, 57, 400], ids=lambda length: f"{length} tokens")
def test_a_forced_tool_call_is_whole_json_of_the_forced_length(length: int) -> None:
    reply = reply_to(max_tokens=length, ignore_eos=True, tool=READ_FILE)
    assert len(reply.pieces) == length
    arguments = json.loads(reply.text(Kind.TOOL_ARGUMENTS))
    assert set(arguments) == {"path", "line"}
    assert isinstance(arguments["line"], int)


def test_a_tool_without_text_arguments_is_led_by_words_if_a_length_is_forced() -> None:
    reply = reply_to(max_tokens=30, ignore_eos=True, tool=NOW)
    assert len(reply.pieces) == 30
    assert json.loads(reply.text(Kind.TOOL_ARGUMENTS)) == {}
    assert len(text_of(reply).split()) == 28


@pytest.mark.parametrize("effort", [None, "high"], ids=["plain", "with reasoning"])
@pytest.mark.parametrize("tool", [None, READ_FILE], ids=["no tool", "a tool call"])
def test_a_conversation_that_sends_the_reply_back_extends_its_prefix(effort: str | None, tool: Tool | None) -> None:
    vocabulary = Vocabulary()
    asked: list[dict[str, object]] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "how are  you?"},
    ]
    prompt = vocabulary.encode_words(chat_words([Fields(message) for message in asked], []))
    reply = compose(Wish(digest=3, room_tokens=500, reasoning_effort=effort, tool=tool), vocabulary)
    answer: dict[str, object] = {"role": "assistant", "content": reply.text(Kind.CONTENT)}
    if effort is not None and tool is None:
        answer["reasoning_content"] = reply.text(Kind.REASONING)
    if tool is not None:
        answer["tool_calls"] = [{"function": {"name": tool.name, "arguments": reply.text(Kind.TOOL_ARGUMENTS)}}]
    question: dict[str, object] = {"role": "user", "content": "and now?"}
    extended = vocabulary.encode_words(chat_words([Fields(message) for message in [*asked, answer, question]], []))
    assert extended[: len(prompt) + len(reply.token_ids)] == [*prompt, *reply.token_ids]


SCHEMA: dict[str, object] = {
    "type": "object",
    "$defs": {
        "Step": {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "why": {"type": "string"}},
            "required": ["n", "why"],
        }
    },
    "properties": {
        "verdict": {"enum": ["yes", "not at all"]},
        "steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}, "minItems": 2},
        "score": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "note": {"type": ["string", "null"]},
    },
    "required": ["verdict", "steps", "score", "note"],
}


@given(DIGESTS, st.none() | st.integers(40, 300))
def test_a_structured_reply_fits_its_schema_at_any_forced_length(digest: int, forced: int | None) -> None:
    wish = Wish(digest=digest, room_tokens=4096, max_tokens=forced, ignore_eos=forced is not None, json_schema=SCHEMA)
    reply = compose(wish, Vocabulary())
    jsonschema.validate(json.loads(text_of(reply)), SCHEMA)
    if forced is not None:
        assert len(reply.pieces) == forced


def test_a_structured_reply_without_text_is_padded_silently() -> None:
    reply = reply_to(
        max_tokens=30, ignore_eos=True, json_schema={"properties": {"n": {"type": "integer"}}, "required": ["n"]}
    )
    assert len(reply.pieces) == 30
    assert set(json.loads(text_of(reply))) == {"n"}
