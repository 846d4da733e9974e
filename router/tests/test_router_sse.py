"""Event-stream bytes: boundaries, ends, usage chunks, errors."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hlserve_router.sse import (
    CLOSING_MARKS,
    HOLD_BYTES,
    TEXT_FORMS,
    StreamSplitter,
    closes,
    event_data,
    events,
    has_error,
    has_usage,
    is_complete,
    is_ordinary,
    is_text_event,
    read_error,
    read_usage,
    without_usage_chunks,
)
from hlserve_router.state import Finish, Shape, Usage
from hlserve_router.testing.scripts import DONE, STOP, delta, event, usage_event

lines = st.sampled_from(
    [
        b"data: a",
        b"data:b",
        b": ping",
        b"event: x",
        b"id: 7",
        b"retry: 3",
        "data: café ☕".encode(),
        b'data: {"usage": {}}',
        b"",
    ]
)
ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
streams = st.lists(st.tuples(lines, ends), max_size=30).map(lambda parts: b"".join(line + end for line, end in parts))


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({min(point, len(data)) for point in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(at)]


@given(streams, st.lists(st.integers(0, 400), max_size=12))
def test_nothing_is_lost_or_changed_however_the_bytes_are_cut(data: bytes, cuts: list[int]) -> None:
    splitter = StreamSplitter()
    out = b"".join(splitter.feed(piece) for piece in cut(data, cuts)) + splitter.drop()
    assert out == data


def reference_boundaries(data: bytes) -> set[int]:
    """Offsets after which a parser that reads line by line has just dispatched an event (or skipped an empty line)."""
    found, at, empty = set(), 0, True
    while at < len(data):
        byte = data[at : at + 1]
        if byte in (b"\n", b"\r"):
            at += 2 if data[at : at + 2] == b"\r\n" else 1
            if empty:
                found.add(at)
            empty = True
        else:
            empty = False
            at += 1
    return found


@given(streams, st.lists(st.integers(0, 400), max_size=12))
def test_whatever_was_passed_on_ends_where_an_event_ends(data: bytes, cuts: list[int]) -> None:
    splitter = StreamSplitter()
    passed = 0
    boundaries = reference_boundaries(data)
    for piece in cut(data, cuts):
        passed += len(splitter.feed(piece))
        assert passed == 0 or passed in boundaries


def test_an_event_is_passed_on_as_soon_as_its_last_byte_is_there() -> None:
    splitter = StreamSplitter()
    assert splitter.feed(b"dat") == b""
    assert splitter.feed(b'a:{"a":1}\r\n') == b""
    assert splitter.feed(b"\r\n") == b'data:{"a":1}\r\n\r\n'


def test_a_line_that_never_ends_is_passed_on_in_bounded_memory() -> None:
    splitter = StreamSplitter()
    total = 0
    for _ in range(200):
        total += len(splitter.feed(b"x" * 10_000))
        assert len(splitter.held) <= HOLD_BYTES
    assert total > 1_900_000
    assert not splitter.at_boundary
    assert splitter.feed(b"\n\n").endswith(b"\n\n")
    assert splitter.at_boundary


@pytest.mark.parametrize(
    ("data", "finish", "want"),
    [
        pytest.param(DONE, Finish.DONE, True, id="[DONE]"),
        pytest.param(b"data:[DONE]\r\n\r\n", Finish.DONE, True, id="[DONE] without a space, CRLF"),
        pytest.param(b"data: [DONE]", Finish.DONE, True, id="[DONE] without an end of line"),
        pytest.param(STOP, Finish.DONE, False, id="a finish reason alone"),
        pytest.param(event({"x": "\ndata: [DONE]\n"}), Finish.DONE, False, id="the marker inside a text"),
        pytest.param(
            b'event: message_stop\ndata: {"type":"message_stop"}\n\n', Finish.MESSAGE_STOP, True, id="message_stop"
        ),
        pytest.param(
            b'event: message_delta\ndata: {"t":"message_stop"}\n\n', Finish.MESSAGE_STOP, False, id="only its name"
        ),
        pytest.param(
            b"event: response.completed\ndata: {}\n\n", Finish.RESPONSE_TERMINAL, True, id="response.completed"
        ),
        pytest.param(b"event: response.created\ndata: {}\n\n", Finish.RESPONSE_TERMINAL, False, id="response.created"),
    ],
)
def test_complete(data: bytes, finish: Finish, want: bool) -> None:
    assert is_complete(data, finish) is want


@pytest.mark.parametrize(
    ("data", "finish", "want"),
    [
        pytest.param(b"data: [DONE]", Finish.DONE, True, id="[DONE]"),
        pytest.param(
            b'event: message_stop\ndata: {"type": "message_stop"}', Finish.MESSAGE_STOP, True, id="message_stop"
        ),
        pytest.param(b'event: message_stop\ndata: {"type": "mess', Finish.MESSAGE_STOP, False, id="its data cut"),
        pytest.param(b"event: message_stop\n", Finish.MESSAGE_STOP, False, id="its data not there"),
        pytest.param(
            b'event: response.completed\ndata: {"response": {"out', Finish.RESPONSE_TERMINAL, False, id="a response cut"
        ),
        pytest.param(STOP[:-2], Finish.DONE, False, id="another event"),
    ],
)
def test_a_last_event_without_its_blank_line_closes_a_stream_if_it_is_whole(
    data: bytes, finish: Finish, want: bool
) -> None:
    assert closes(data, finish) is want


@pytest.mark.parametrize(
    ("data", "dropped"),
    [
        pytest.param(usage_event(), True, id="empty choices and usage"),
        pytest.param(event({"choices": []}), False, id="empty choices alone"),
        pytest.param(event({"usage": {"prompt_tokens": 1}}), False, id="no choices at all"),
        pytest.param(event({"choices": [], "usage": None}), False, id="usage null"),
        pytest.param(
            event({"choices": [{"delta": {}}], "usage": {"prompt_tokens": 1}}), False, id="choices with usage"
        ),
        pytest.param(event({"choices": [{"delta": {"content": '"usage":{'}}]}), False, id="the word in a text"),
        pytest.param(b'data: {"usage": {"a":\n\n', False, id="broken JSON"),
    ],
)
def test_usage_chunk(data: bytes, dropped: bool) -> None:
    around = delta("A") + data + DONE
    assert without_usage_chunks(around) == (delta("A") + DONE if dropped else around)


def test_usage_is_read_from_every_shape() -> None:
    usage = Usage()
    read_usage(usage_event(7, 3), usage)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (7, 3, None)
    anthropic = Usage()
    read_usage(
        b'event: message_start\ndata: {"message":{"usage":{"input_tokens":9,"cache_read_input_tokens":4}}}\n\n',
        anthropic,
    )
    read_usage(b'event: message_delta\ndata: {"usage":{"output_tokens":2}}\n\n', anthropic)
    assert (anthropic.prompt_tokens, anthropic.completion_tokens, anthropic.cached_tokens) == (9, 2, 4)
    nested = Usage()
    read_usage(
        b'data: {"usage":{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":3}}}\n\n',
        nested,
    )
    assert (nested.prompt_tokens, nested.completion_tokens, nested.cached_tokens) == (5, 1, 3)
    generate = Usage()
    read_usage(
        b'data: {"text":"a","meta_info":{"prompt_tokens":4,"completion_tokens":8,"cached_tokens":2}}\n\n', generate
    )
    assert (generate.prompt_tokens, generate.completion_tokens, generate.cached_tokens) == (4, 8, 2)


@pytest.mark.parametrize(
    ("first", "shape", "status"),
    [
        pytest.param(
            event({"error": {"message": "long", "code": 400}}), Shape.OPENAI, 400, id="SGLang's over-long prompt"
        ),
        pytest.param(event({"error": {"message": "m", "code": "404"}}), Shape.OPENAI, 404, id="a code as text"),
        pytest.param(
            event({"error": {"message": "m", "type": "BadRequestError"}}), Shape.OPENAI, 400, id="a type alone"
        ),
        pytest.param(event({"error": {"message": "m"}}), Shape.OPENAI, 500, id="nothing to go by"),
        pytest.param(event({"object": "error", "message": "m", "code": 400}), Shape.OPENAI, 400, id="the flat shape"),
        pytest.param(
            b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n',
            Shape.ANTHROPIC,
            503,
            id="Anthropic",
        ),
        pytest.param(delta("error"), Shape.OPENAI, None, id="the word in a reply"),
        pytest.param(event({"choices": [], "error": None}), Shape.OPENAI, None, id="a null error"),
    ],
)
def test_error_first(first: bytes, shape: Shape, status: int | None) -> None:
    error = read_error(first, shape)
    assert (error.status if error else None) == status
    assert has_error(first) is (status is not None)


def test_two_data_lines_are_one_event() -> None:
    both = b'data: {"choices":\ndata: []}\n\n'
    assert json.loads(event_data(both) or b"") == {"choices": []}
    assert event_data(b": queued\n\n") is None
    assert list(events(both + b"rest")) == [both, b"rest"]


PIECES = (
    b'data: {"id":"', b"data: {", b'"usage":null', b'"usage":null}', b'"usage":{"prompt_tokens":1}', b'"usage": {', b'"meta_info":{',
    b'{"error":{"message":"x"}}', b"event: error\n", b"data: [DONE]", b"event: message_stop\n", b'data: {"type":"message_stop"}',
    b"event: content_block_delta\n", b"event: response.output_text.delta\n", b"event: response.completed\n", b"x", b'"', b"}",
    b"\n", b"\n\n", b"\r\n", b"\r",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join), st.sampled_from(Finish))
@example(b'data: {"id":"1","usage":null}\n\n', Finish.DONE)
@example(b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n', Finish.MESSAGE_STOP)
def test_what_passes_unread_holds_nothing_that_a_relay_must_know_of(data: bytes, finish: Finish) -> None:
    form, mark = TEXT_FORMS[finish], CLOSING_MARKS[finish]
    passes = (form is not None and is_text_event(data, form)) or (mark != b"" and is_ordinary(data, mark))
    if passes:
        assert not is_complete(data, finish)
        assert not has_error(data)
        assert not has_usage(data)


@pytest.mark.parametrize(
    ("data", "finish"),
    [
        pytest.param(b'data: {"id":"1","choices":[],"usage":null}\n\n', Finish.DONE, id="a chat chunk"),
        pytest.param(b'event: content_block_delta\ndata: {"a":{}}\n\n', Finish.MESSAGE_STOP, id="a message's delta"),
        pytest.param(
            b'event: response.output_text.delta\ndata: {"a":1}\n\n', Finish.RESPONSE_TERMINAL, id="a response's delta"
        ),
    ],
)
def test_the_text_of_each_kind_of_stream_passes_unread(data: bytes, finish: Finish) -> None:
    form = TEXT_FORMS[finish]
    assert form is not None
    assert is_text_event(data, form)


@pytest.mark.parametrize("finish", [Finish.DONE, Finish.MESSAGE_STOP, Finish.RESPONSE_TERMINAL])
def test_only_one_whole_event_passes_unread(finish: Finish) -> None:
    form = TEXT_FORMS[finish]
    assert form is not None
    begin, end, _ = form
    one = begin + b'data: {"a":1,' + end
    pieces = [
        one + one,
        begin + b"\n" + end,
        begin + b"a\nb" + end,
        one[:-1],
        one[:-2],
        one + b"\n",
        b"\n" + one,
        b"",
        end,
    ]
    assert is_text_event(one, form)
    assert [piece for piece in pieces if is_text_event(piece, form)] == []
