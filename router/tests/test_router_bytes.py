"""Byte equality, both ways and on both faces, of whatever a client or an engine may send.

The engine gets the client's bytes but for the stated spans (alias, id, priority, usage option); the client gets the
engine's bytes but for usage chunks that it did not ask for.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hlserve_api.routing import PriorityOrder
from hlserve_router.testing.cases import CHAT, NS, still_held
from hlserve_router.testing.documents import (
    AGENT_KEY,
    BATCH_KEY,
    INTERACTIVE_KEY,
    a_class,
    a_key,
    a_keyring,
    a_pool,
    a_table,
)
from hlserve_router.testing.engine import ScriptedEngine, Session
from hlserve_router.testing.running import Face, RunningRouter
from hlserve_router.testing.scripts import DONE, ORDINARY, delta, passed_on
from hlserve_router.testing.stage import Stage
from hlserve_router.testing.wire import Wire, request_head

ALIAS = "an-alias ☕"
ENDS = {
    CHAT: DONE,
    "/v1/completions": DONE,
    "/v1/messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    "/v1/responses": b'event: response.completed\ndata: {"type":"response.completed"}\n\n',
}
"""What the streams of each route end with."""
SPLICED_IDS = {"/v1/completions": "rid", "/v1/responses": "request_id"}
STRIPPED = (CHAT, "/v1/completions")
PRIORITY = 7


@dataclass(frozen=True)
class Client:
    """A key, and which spans its pool has spliced."""

    key: str
    ours: bool = True
    """The engine is one of ours: it gets an id."""
    priority: int | None = None


CLIENTS = (
    Client(AGENT_KEY),
    Client(INTERACTIVE_KEY, ours=False),
    Client(BATCH_KEY, priority=-PRIORITY),
)


async def set_up(stage: Stage, play: Any) -> tuple[RunningRouter, ScriptedEngine]:
    engine = await stage.engine(play)
    table = a_table(
        a_pool("agents", engine.url, aliases=(ALIAS,)),
        a_pool("foreign", engine.url, aliases=(ALIAS,), foreign=True),
        a_pool("ordered", engine.url, aliases=(ALIAS,), priority_order=PriorityOrder.LOWER_FIRST),
        a_class("agent", "agents"), a_class("interactive", "foreign"), a_class("batch", "ordered", priority=PRIORITY),
    )  # fmt: skip
    keys = a_keyring(
        a_key(AGENT_KEY, "coder", "agent"), a_key(INTERACTIVE_KEY, "web", "interactive"), a_key(BATCH_KEY, "nightly", "batch")
    )  # fmt: skip
    return await stage.router(table, keys, probe_seconds=60), engine


# JSON as no serialiser writes it ----------------------------------------------------------------------------------------

NUMBERS = [
    "0",
    "-0",
    "1.0",
    "1e-7",
    "1E+5",
    "-1.50e300",
    "0.1000",
    "123456789012345678901234567890",
    "9007199254740993",
]
NESTED_KEYS = ['"model"', '"stream"', '"stream_options"', '"rid"', '"priority"', '"usage"', '"error"', '"choices"']
STRINGS = [
    '"\\/\\u0041\\"\\\\"',
    '"\\ud83d\\ude00"',
    '"\\"model\\":\\"m1\\""',
    '"data: [DONE]\\n\\n"',
    '"\u2028é"',
]
spaces = st.sampled_from(["", "", "", " ", "\n\t", "\r\n  "])
strings = st.sampled_from(STRINGS) | st.builds(json.dumps, st.text(max_size=12), ensure_ascii=st.booleans()).filter(
    lambda text: text.isascii() or max(text) < "\ud800" or max(text) > "\udfff"
)


def is_free(key: str) -> bool:
    """False for names that mean something to the router at the top of a body."""
    taken = ("model", "stream", "stream_options", "priority", "rid", "request_id", "session_params", "lora_path")
    name = json.loads(key)
    return (
        name not in (*taken, "custom_logit_processor") and not name.startswith("bootstrap_") and "dp_rank" not in name
    )


values: st.SearchStrategy[str] = st.recursive(
    st.sampled_from(["null", "true", "false", *NUMBERS]) | strings,
    lambda inner: (
        st.builds(lambda items, space: "[" + space + ",".join(items) + space + "]", st.lists(inner, max_size=3), spaces)
        | st.builds(
            lambda items, space: "{" + ",".join(f"{space}{key}{space}:{value}" for key, value in items) + "}",
            st.lists(st.tuples(st.sampled_from(NESTED_KEYS) | strings, inner), max_size=3),
            spaces,
        )
    ),
    max_leaves=12,
)
deep = st.builds(lambda depth: "[" * depth + "]" * depth, st.integers(1, 200))
known = st.sampled_from(
    ['"messages"', '"prompt"', '"input"', '"max_tokens"', '"n"', '"tools"', '"user"', '"metadata"', '"seed"']
)
members = st.lists(
    st.tuples(known | strings.filter(is_free), values | deep), max_size=5, unique_by=lambda item: item[0]
)


@dataclass(frozen=True)
class Sent:
    """A body as the client sends it, in the pieces that matter."""

    lead: str
    before: str
    model: str
    between: str
    options: str | None
    after: str
    streams: bool
    asks_usage: bool

    def bytes_with(self, model: str, options: str | None) -> bytes:
        """The body with these values of the two fields."""
        chosen = f',"stream_options":{options}' if options is not None else ""
        return f'{self.lead}{{{self.before}"model":{model}{self.between}{chosen}{self.after}}}'.encode()


@st.composite
def bodies(draw: st.DrawFn) -> Sent:
    space, streams = draw(spaces), draw(st.booleans())
    first, last = draw(members), draw(members)
    names = {key for key, _ in first}
    before = "".join(f"{space}{key} : {value}," for key, value in first)
    after = "".join(f",{space}{key}:{space}{value}" for key, value in last if key not in names)
    options = draw(
        st.sampled_from(
            [None, None, "null", "{}", '{"include_usage": false}', '{"include_usage": true}', '{"x":[1.0]}']
        )
    )
    model = draw(st.sampled_from(['"m1"', f'"{ALIAS}"', json.dumps(ALIAS)]))
    stream = f'{space},"stream": {"true" if streams else "false"}'
    asks = options is not None and "true" in options
    return Sent(draw(spaces), before, model, stream, options, after + draw(spaces), streams, asks)


# answers ----------------------------------------------------------------------------------------------------------------

line_ends = st.sampled_from(["\n", "\n", "\r\n"])
USAGE = '{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1e0,"x":1.0}}'
DATA = [
    '{"choices":[{"delta":{"content":"A"}}],"usage":{"prompt_tokens":1}}',
    '{"choices":[],"usage":null}',
    "7",
    "null",
    "{",
    "",
]


@st.composite
def events(draw: st.DrawFn) -> tuple[bytes, bool]:
    """One event, and whether it is a chunk that only carries usage."""
    end = draw(line_ends)
    kind = draw(st.sampled_from(["data", "data", "odd", "comment", "usage", "lines"]))
    if kind == "comment":
        return f": {draw(st.sampled_from(['ping', 'data: x', '']))}{end}{end}".encode(), False
    if kind == "usage":
        return f"data:{draw(st.sampled_from(['', ' ']))}{USAGE}{end}{end}".encode(), True
    head = draw(st.sampled_from(["", "", f"id: 7{end}", f"event: message{end}retry: 3{end}"]))
    if kind == "lines":
        return f'{head}data: {{"choices":{end}data: [],"a":1e-7}}{end}{end}'.encode(), False
    if kind == "odd":
        data = draw(st.sampled_from(DATA))
    else:
        value = draw(values).replace("\n", "").replace("\r", "")
        data = f'{{"choices":[{{"delta":{value}}}]}}'
    return f"{head}data: {data}{end}{end}".encode(), False


@dataclass(frozen=True)
class Answered:
    """What the engine plays."""

    status: int
    content_type: str
    body: bytes
    shown: bytes
    """What a client that did not ask for usage gets of it."""
    framing: str
    cuts: tuple[int, ...]

    async def play(self, session: Session) -> None:
        """Writes it, each piece as a segment of its own."""
        line = {"length": f"content-length: {len(self.body)}", "chunked": "transfer-encoding: chunked", "close": "x: y"}
        head = f"HTTP/1.1 {self.status} X\r\ncontent-type: {self.content_type}\r\n{line[self.framing]}\r\n\r\n"
        await session.raw(head.encode())
        for piece in cut(self.body, self.cuts):
            await session.raw(b"%x\r\n%b\r\n" % (len(piece), piece) if self.framing == "chunked" else piece)
            await passed_on()
        if self.framing == "chunked":
            await session.raw(b"0\r\n\r\n")
        elif self.framing == "close":
            session.close()


def cut(data: bytes, cuts: tuple[int, ...]) -> Iterator[bytes]:
    at = [0, *sorted({place % len(data) for place in cuts} - {0}), len(data)] if data else []
    return (data[start:end] for start, end in pairwise(at))


places = st.lists(st.integers(1, 5_000), max_size=8).map(tuple)


@st.composite
def answers(draw: st.DrawFn, path: str, *, streams: bool) -> Answered:
    framing, cuts = draw(st.sampled_from(["length", "chunked", "close"])), draw(places)
    if streams and draw(st.integers(0, 4)):
        parts = [*draw(st.lists(events(), max_size=6)), (ENDS[path], False)]
        body = b"".join(part for part, _ in parts)
        shown = b"".join(part for part, usage in parts if not usage) if path in STRIPPED else body
        return Answered(200, "text/event-stream", body, shown, framing, cuts)
    body = draw(st.binary(max_size=300) | values.map(str.encode))
    status, kind = (
        draw(st.sampled_from([200, 201, 400, 404, 422, 500])),
        draw(st.sampled_from(["application/json", "text/plain"])),
    )
    return Answered(status, kind, body, body, framing, cuts)


# the property -----------------------------------------------------------------------------------------------------------


def assert_engine_got(got: bytes, sent: Sent, path: str, client: Client) -> None:
    """But for the spans that are stated, the engine got the client's bytes."""
    options, inserted = sent.options, set()
    if client.ours and path in SPLICED_IDS:
        inserted.add(SPLICED_IDS[path])
        if client.priority is not None:
            inserted.add("priority")
    if not client.ours and sent.streams and path in STRIPPED and not sent.asks_usage:
        if options is None:
            inserted.add("stream_options")
        else:
            kept = json.loads(options) or {}
            options = json.dumps({**kept, "include_usage": True}, separators=(",", ":"))
    model = sent.model if json.loads(sent.model) == "m1" else '"m1"'
    want = sent.bytes_with(model, options)
    lead = len(sent.lead) + 1
    rest = want[lead:]
    assert got[:lead] == want[:lead]
    assert got.endswith(rest)
    extra = got[lead : len(got) - len(rest)]
    if not inserted:
        assert extra == b""
        return
    assert extra.endswith(b",")
    fields = json.loads(b"{" + extra[:-1] + b"}")
    assert set(fields) == inserted
    assert fields.get("priority", client.priority) == client.priority
    assert fields.get("stream_options", {"include_usage": True}) == {"include_usage": True}
    assert all(fields[name].startswith("hls-") for name in inserted & {"rid", "request_id"})


async def ask(wire: Wire, path: str, body: bytes, cuts: tuple[int, ...], *, chunked: bool, key: str) -> None:
    framing = "transfer-encoding: chunked" if chunked else f"content-length: {len(body)}"
    await wire.send(request_head(path, framing, key=key))
    for piece in cut(body, cuts):
        await wire.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        await passed_on()
    if chunked:
        await wire.send(b"0\r\n\r\n")


def test_both_ways_bytes_are_equal_but_for_the_stated_spans(tmp_path: Path, face: Face) -> None:
    answer: list[Answered] = []

    async def play(session: Session) -> None:
        await answer[0].play(session)

    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        path, client = data.draw(st.sampled_from(list(ENDS))), data.draw(st.sampled_from(CLIENTS))
        sent = data.draw(bodies())
        answer[:] = [data.draw(answers(path, streams=sent.streams))]
        body, before = sent.bytes_with(sent.model, sent.options), len(engine.requests)
        cuts, chunked = data.draw(places), data.draw(st.booleans())
        runner.run(ask(wire, path, body, cuts, chunked=chunked, key=client.key))
        status, headers, got = runner.run(wire.message())
        assert (status, headers["content-type"]) == (answer[0].status, [answer[0].content_type])
        assert got == (answer[0].body if sent.asks_usage else answer[0].shown)
        assert len(engine.requests) == before + 1
        assert_engine_got(engine.requests[-1].body, sent, path, client)

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        stage = Stage(tmp_path, face, stack)
        router, engine = runner.run(set_up(stage, play))
        wire = runner.run(stage.wire(router))
        try:
            holds()
            assert still_held(router) == {}
        finally:
            runner.run(stack.aclose())


MIB = 1 << 20


@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "in chunks"])
async def test_a_body_of_16_mib_reaches_the_engine_as_it_is(stage: Stage, chunked: bool) -> None:
    router, engine = await set_up(stage, ORDINARY)
    text = "é\\u00e9 1.0 " * (16 * MIB // 13)
    body = f'{{"seed":1e-7,"messages":[{{"role":"user","content":"{text}"}}],"model":"{ALIAS}"}}'.encode()
    assert len(body) >= 16 * MIB
    wire = await stage.wire(router)
    await ask(wire, CHAT, body, tuple(range(0, len(body), 700_001)), chunked=chunked, key=AGENT_KEY)
    assert (await wire.message())[0] == 200
    assert engine.requests[0].body == body.replace(ALIAS.encode(), b"m1")


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "a stream"])
async def test_an_answer_of_16_mib_reaches_the_client_as_it_is(stage: Stage, framing: str, streams: bool) -> None:
    part = delta("é 1.0 1e-7 " * 3_000)
    body = part * (16 * MIB // len(part)) + DONE
    kind = "text/event-stream" if streams else "application/json"
    router, engine = await set_up(
        stage, Answered(200, kind, body, body, framing, tuple(range(0, len(body), 90_001))).play
    )
    wire = await stage.wire(router)
    await ask(wire, CHAT, json.dumps({**NS, "stream": streams}).encode(), (), chunked=False, key=AGENT_KEY)
    status, headers, got = await wire.message()
    assert (status, headers["content-type"]) == (200, [kind])
    assert got == body
    assert len(engine.requests) == 1
