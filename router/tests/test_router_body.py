"""Step 2: what is read of a body, what is refused, and which bytes may change on the way to an engine."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlserve_api.answers import Reason
from hlserve_router.body import read_body
from hlserve_router.body_spans import MOST_ESCAPES, engine_body, hides_ascii, model_span, top_level_spans
from hlserve_router.body_turns import DECODED_BYTES, PREFIX_BYTES, prompt_prefix
from hlserve_router.errors import Refusal
from hlserve_router.state import ROUTES, BodyFacts, RidTravel, Route

CHAT = ROUTES["/v1/chat/completions"]
GENERATE = ROUTES["/generate"]


@dataclass(frozen=True)
class Bad:
    id: str
    body: bytes
    reason: Reason


BAD = [
    Bad("an empty body", b"", Reason.INVALID_JSON),
    Bad("a body that stops", b'{"model":', Reason.INVALID_JSON),
    Bad("a list", b"[]", Reason.INVALID_JSON),
    Bad("a string", b'"x"', Reason.INVALID_JSON),
    Bad("two documents", b'{"model":"m"}{"model":"m"}', Reason.INVALID_JSON),
    Bad("a byte order mark", b'\xef\xbb\xbf{"model":"m"}', Reason.INVALID_JSON),
    Bad("UTF-16", '{"model":"m"}'.encode("utf-16"), Reason.INVALID_JSON),
    Bad("a hundred thousand brackets", b'{"model":"m","x":' + b"[" * 100_000, Reason.INVALID_JSON),
    Bad("brackets that even close", b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", Reason.INVALID_JSON),
    Bad("a broken key encoding", b'{"mod\xffel":"m"}', Reason.INVALID_JSON),
    Bad("no model", b'{"messages":[]}', Reason.MISSING_MODEL),
    Bad("an empty model", b'{"model":""}', Reason.MISSING_MODEL),
    Bad("a number as model", b'{"model":5}', Reason.MISSING_MODEL),
    Bad("null as model", b'{"model":null}', Reason.MISSING_MODEL),
    Bad("model twice", b'{"model":"m1","model":"other"}', Reason.DUPLICATE_FIELD),
    Bad("model twice, the same", b'{"model":"m1","x":[1,{"y":"}"}],"model":"m1"}', Reason.DUPLICATE_FIELD),
    Bad("model twice, once in escapes", b'{"model":"m1","\\u006dodel":"other"}', Reason.DUPLICATE_FIELD),
    Bad("model twice, once nested before", b'{"a":{"model":1},"model":"x","mod\\u0065l":"y"}', Reason.DUPLICATE_FIELD),
    Bad("rid", b'{"model":"m","rid":"0"}', Reason.RESERVED_FIELD),
    Bad("rid in escapes", b'{"model":"m","\\u0072id":"0"}', Reason.RESERVED_FIELD),
    Bad("request_id", b'{"model":"m","request_id":"0"}', Reason.RESERVED_FIELD),
    Bad("bootstrap_host", b'{"model":"m","bootstrap_host":"10.0.0.9"}', Reason.RESERVED_FIELD),
    Bad("data_parallel_rank's short form", b'{"model":"m","routed_dp_rank":1}', Reason.RESERVED_FIELD),
    Bad("session_params", b'{"model":"m","session_params":{}}', Reason.RESERVED_FIELD),
    Bad("lora_path", b'{"model":"m","lora_path":"/x"}', Reason.RESERVED_FIELD),
    Bad("custom_logit_processor", b'{"model":"m","custom_logit_processor":"code"}', Reason.RESERVED_FIELD),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.id)
def test_a_bad_body_is_refused(case: Bad) -> None:
    with pytest.raises(Refusal) as refusal:
        read_body(CHAT, case.body)
    assert refusal.value.reason is case.reason
    assert len(refusal.value.message) < 400


@pytest.mark.parametrize("rest", ["lorem ipsum ", 'a \\"b\\" _c '], ids=["prose", "more quotes than are looked at"])
@pytest.mark.parametrize("case", [case for case in BAD if case.body.endswith(b"}")], ids=lambda case: case.id)
def test_a_bad_body_is_refused_at_any_size(case: Bad, rest: str) -> None:
    large = case.body.removesuffix(b"}") + f', "text": "{rest * 8_000}"'.encode() + b"}"
    with pytest.raises(Refusal) as refused:
        read_body(CHAT, large)
    assert refused.value.reason is case.reason


@pytest.mark.parametrize(
    "part", ['{"type":"image","source":{"type":"url","url":"file:/x"}}', '{"image_url":"file:/x"}']
)
@pytest.mark.parametrize("rest", ["lorem ipsum ", 'a \\"b\\" _c '], ids=["prose", "more quotes than are looked at"])
def test_media_are_seen_in_a_body_of_any_size(part: str, rest: str) -> None:
    long = f'{{"role":"user","content":"{rest * 8_000}"}}'
    body = f'{{"model":"m","messages":[{long},{{"role":"user","content":[{part}]}},{long}]}}'
    assert [media.url for media in read_body(CHAT, body.encode()).media] == ["file:/x"]


def test_an_empty_body_is_called_empty() -> None:
    with pytest.raises(Refusal, match="The body is empty: send one JSON object"):
        read_body(CHAT, b"")


def fastest(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(3):
        before = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - before)
    return min(seconds)


def facts_of(body: dict[str, Any], path: str = "/v1/chat/completions") -> BodyFacts:
    return read_body(ROUTES[path], json.dumps(body).encode())


@pytest.mark.parametrize(
    ("body", "path", "limit"),
    [
        pytest.param({"max_completion_tokens": 50}, "/v1/chat/completions", 50, id="max_completion_tokens alone"),
        pytest.param({"max_tokens": 50}, "/v1/chat/completions", 50, id="max_tokens alone"),
        pytest.param(
            {"max_tokens": 50, "max_completion_tokens": 80}, "/v1/chat/completions", 80, id="the larger of both"
        ),
        pytest.param({}, "/v1/chat/completions", None, id="neither"),
        pytest.param({"max_tokens": -1}, "/v1/chat/completions", None, id="a negative one is left to the engine"),
        pytest.param({"max_output_tokens": 7}, "/v1/responses", 7, id="responses"),
        pytest.param({"sampling_params": {"max_new_tokens": 9}}, "/generate", 9, id="generate"),
    ],
)
def test_output_limit(body: dict[str, Any], path: str, limit: int | None) -> None:
    assert facts_of({"model": "m", **body}, path).output_limit_tokens == limit


def test_token_ids_are_counted_exactly() -> None:
    assert facts_of({"model": "m", "prompt": [1, 2, 3, 4]}, "/v1/completions").exact_prompt_tokens == 4
    assert facts_of({"model": "m", "prompt": "one two"}, "/v1/completions").exact_prompt_tokens is None


def test_generate_needs_no_model() -> None:
    assert read_body(GENERATE, b'{"text":"hi"}').model is None


@pytest.mark.parametrize(
    ("body", "session"),
    [
        pytest.param({"prompt_cache_key": "a", "metadata": {"user_id": "u"}}, "a", id="prompt_cache_key wins"),
        pytest.param({"metadata": {"user_id": "u"}}, "u", id="metadata.user_id"),
        pytest.param({"metadata": {"user_id": 5}}, None, id="a number is no session"),
        pytest.param({"user": "u"}, None, id="an end user is no session"),
    ],
)
def test_session(body: dict[str, Any], session: str | None) -> None:
    assert facts_of({"model": "m", **body}).session == session


def test_the_prefix_starts_after_the_system_messages() -> None:
    system = {"role": "system", "content": "S" * 9000}
    one = facts_of({"model": "m", "messages": [system, {"role": "user", "content": "first"}]})
    two = facts_of({"model": "m", "messages": [system, {"role": "user", "content": "second"}]})
    again = facts_of(
        {
            "model": "m",
            "messages": [system, {"role": "user", "content": "first"}, {"role": "assistant", "content": "x"}],
        }
    )
    assert prompt_prefix(one) != prompt_prefix(two)
    assert prompt_prefix(one) == prompt_prefix(again)


texts = st.sampled_from(["", "hi", "x" * 3000, "s" * 64_000, '{"role":"user"}]', "\\", 'a\\"' * 900, "é" * 1500, "\n"])
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=2)
turns = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant"])},
    optional={"content": texts | parts | st.none() | st.just([{"type": "text", "text": ""}] * 60), "name": texts},
)


@settings(max_examples=40)
@given(st.lists(turns, max_size=3), turns, st.booleans(), st.sampled_from([None, 1]))
def test_the_prefix_stays_while_the_conversation_grows(
    system: list[dict[str, Any]], first: dict[str, Any], ascii_: bool, indent: int | None
) -> None:
    """A short conversation is decoded to find its first turn, a long one is searched, unless roles stand at odd places."""
    system = [{**turn, "role": "system"} for turn in system]
    first = {**first, "role": "user"}

    def prefix(*messages: dict[str, Any]) -> bytes:
        document = {"model": "m", "messages": messages}
        return prompt_prefix(read_body(CHAT, json.dumps(document, ensure_ascii=ascii_, indent=indent).encode()))

    short = prefix(*system, first)
    assert short == prefix(*system, first, {"role": "assistant", "content": "more " * DECODED_BYTES})
    assert len(short) == PREFIX_BYTES or json.loads(short) == first
    backwards = [dict(reversed(turn.items())) for turn in (*system, first)]
    assert prefix(*backwards) == prefix(*backwards, {"role": "assistant", "content": "more " * DECODED_BYTES})
    assert prefix(*system) == prefix(*system, {"role": "system", "content": "more " * DECODED_BYTES}) == b""


@pytest.mark.parametrize(
    "turn",
    [
        pytest.param('{"role":"system","role":"user","content":"hi"}', id="told last that it is a user's"),
        pytest.param('{"role":"user","content":"hi","role":"system"}', id="told last that it is a system message"),
        pytest.param(
            '{"role":"user","content":"' + "x" * 9000 + '","role":"system"}', id="told so behind a long content"
        ),
        pytest.param('{"type":"message","role":"user","role":"developer"}', id="with a type before"),
        pytest.param('{"content":"hi","role":"system","role":"user"}', id="two that stand last"),
    ],
)
def test_a_turn_with_two_roles_gives_one_prefix_however_long_the_conversation_is(turn: str) -> None:
    def prefix(*more: str) -> bytes:
        messages = ",".join(
            ('{"role":"system","content":"You help."}', turn, '{"role":"user","content":"next"}', *more)
        )
        return prompt_prefix(read_body(CHAT, f'{{"model":"m","messages":[{messages}]}}'.encode()))

    assert prefix() == prefix(json.dumps({"role": "assistant", "content": "more " * DECODED_BYTES}))


def test_the_prefix_of_a_long_conversation_is_found_without_reading_it() -> None:
    system = {"role": "system", "content": "S" * 9000}
    body = {"model": "m", "messages": [system, {"role": "user", "content": "x" * 4_000_000}]}
    facts = facts_of(body)
    assert fastest(lambda: prompt_prefix(facts)) < fastest(lambda: read_body(CHAT, json.dumps(body).encode())) / 4


@pytest.mark.parametrize(
    ("part", "urls"),
    [
        pytest.param(
            {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, ["file:///etc/passwd"], id="object"
        ),
        pytest.param({"type": "input_image", "image_url": "http://x/y.png"}, ["http://x/y.png"], id="string"),
        pytest.param(
            {"type": "image", "source": {"type": "url", "url": "http://x"}}, ["http://x"], id="Anthropic source"
        ),
        pytest.param({"type": "text", "text": "image_url"}, [], id="the word alone is no reference"),
    ],
)
def test_media(part: dict[str, Any], urls: list[str]) -> None:
    facts = facts_of({"model": "m", "messages": [{"role": "user", "content": [part]}]})
    assert [ref.url for ref in facts.media] == urls


def test_media_keys_in_escapes_are_seen() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":[{"im\\u0061ge_url":"file:///x"}]}]}'
    assert [ref.url for ref in read_body(CHAT, body).media] == ["file:///x"]


@pytest.mark.parametrize("before", [0, 3, MOST_ESCAPES, MOST_ESCAPES + 5])
def test_an_escape_is_seen_behind_those_of_control_characters(before: int) -> None:
    text = b"\\u001b[0m \\u00e9" * before + b"\\u00"
    assert not hides_ascii(text + b"1f")
    assert not hides_ascii(text)
    assert not hides_ascii(text + b"80")
    assert all(hides_ascii(text + end) for end in (b"20", b"7e", b"1b\\u005f"))


def test_inline_media_do_not_count_as_text() -> None:
    big = "data:image/png;base64," + "A" * 400_000
    body = {"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": big}}]}]}
    assert facts_of(body).prompt_bytes < 10_000


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
keys = st.text(min_size=1).filter(
    lambda key: key not in ("model", "rid", "request_id", "stream_options", "priority", "session_params", "lora_path",
                            "custom_logit_processor") and not key.startswith("bootstrap_") and not key.endswith("dp_rank")
)  # fmt: skip
bodies = st.builds(
    lambda before, after, ascii_, indent: json.dumps(
        {**before, "model": "alias", **{key: value for key, value in after.items() if key not in before}},
        ensure_ascii=ascii_,
        indent=indent,
    ).encode("utf-8", "surrogatepass"),
    st.dictionaries(keys, values, max_size=4),
    st.dictionaries(keys, values, max_size=4),
    st.booleans(),
    st.none() | st.integers(0, 2),
)


fields = st.fixed_dictionaries(
    {"model": st.just("m")},
    optional={
        "stream": st.booleans() | st.none() | st.just(1),
        "n": st.integers(-2, 300) | st.none() | st.just(2.0),
        "max_tokens": st.integers(-2, 2**70) | st.none() | st.just("5") | st.just(True) | st.just(50.0),
        "max_completion_tokens": st.integers(-2, 9),
        "max_output_tokens": st.integers(-2, 9),
        "sampling_params": st.fixed_dictionaries({"max_new_tokens": st.integers(-2, 9) | st.booleans()}) | st.text(),
        "messages": st.lists(
            st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": st.text()})
        ),
        "prompt": st.text() | st.lists(st.integers(0, 9), max_size=3) | st.lists(st.text(), max_size=2),
        "input": st.text() | st.lists(st.integers(0, 9), max_size=3),
        "text": st.text(),
        "system": st.text(),
        "tools": st.just([]) | st.none(),
        "metadata": st.fixed_dictionaries({"user_id": st.text(max_size=4) | st.integers()}) | st.text(),
        "prompt_cache_key": st.text(max_size=4) | st.integers(),
        "session_id": st.text(max_size=4) | st.none(),
        "previous_response_id": st.text(max_size=4) | st.none(),
        "background": st.booleans() | st.none(),
        "stream_options": st.fixed_dictionaries({"include_usage": st.booleans() | st.none()}) | st.none(),
    },
)


def plainly(facts: BodyFacts) -> dict[str, object]:
    values = {field.name: getattr(facts, field.name) for field in fields_of(facts)}
    return {**values, "prompt": None if facts.prompt is None else bytes(memoryview(facts.prompt))}


@given(fields, st.sampled_from(list(ROUTES.values())), st.booleans())
def test_a_body_that_must_be_read_with_care_says_the_same(document: dict[str, Any], route: Route, ascii_: bool) -> None:
    """A nested key that ends as reserved ones do sends a body to the reader that looks at every key."""
    body = json.dumps(document, ensure_ascii=ascii_).encode()
    with_care = json.dumps({**document, "x": {"a_rank": 1}}, ensure_ascii=ascii_).encode()
    assert plainly(read_body(route, body)) == plainly(read_body(route, with_care))


def utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(bodies.filter(utf8))
def test_without_reasons_the_clients_bytes_are_the_only_piece(body: bytes) -> None:
    read_body(CHAT, body)
    pieces = engine_body(body, model=None, rid=(RidTravel.HEADER, "r"), priority=None, include_usage=False)
    assert len(pieces) == 1
    assert pieces[0] is body


@given(bodies.filter(utf8))
def test_splices_change_only_what_they_say(body: bytes) -> None:
    read_body(CHAT, body)
    pieces = engine_body(body, model="real", rid=(RidTravel.BODY_RID, "hls-1"), priority=7, include_usage=True)
    sent = b"".join(pieces)
    want = {**json.loads(body), "model": "real"}
    got = json.loads(sent)
    assert got.pop("rid") == "hls-1"
    assert got.pop("priority") == 7
    assert got.pop("stream_options") == {"include_usage": True}
    assert got == want
    span = model_span(body)
    assert span is not None
    start, end = span
    opening = body.index(b"{") + 1
    assert sent.endswith(body[end:])
    assert body[opening:start] in sent


def test_a_priority_and_stream_options_of_the_client_are_replaced_in_place() -> None:
    body = b'{ "priority" : 1000000 , "model":"m", "stream_options": {"x": [1, 2]} , "n":1}'
    sent = b"".join(engine_body(body, model=None, rid=None, priority=-3, include_usage=True))
    assert sent == b'{ "priority" : -3 , "model":"m", "stream_options": {"x":[1,2],"include_usage":true} , "n":1}'


def test_only_the_top_level_model_is_rewritten() -> None:
    body = b'{"messages":[{"role":"user","content":"say \\"model\\":\\"fast\\""}],"tools":[{"model":"fast"}],"model" : "fast"}'
    sent = b"".join(engine_body(body, model="m1", rid=None, priority=None, include_usage=False))
    assert sent == body.replace(b'"model" : "fast"', b'"model" : "m1"')


@given(st.dictionaries(st.text(), values, max_size=6), st.none() | st.integers(0, 3))
def test_spans_hold_every_top_level_value(document: dict[str, Any], indent: int | None) -> None:
    body = json.dumps(document, indent=indent).encode()
    found = {key: json.loads(body[start:end]) for key, (start, end) in top_level_spans(body)}
    assert found == document


def test_a_large_prompt_is_read_in_little_more_than_one_pass() -> None:
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": 'say "source" file: \n' * 100_000}]}
    ).encode()

    assert fastest(lambda: read_body(CHAT, body)) < 12 * fastest(lambda: json.loads(body))
