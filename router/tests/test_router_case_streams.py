"""Bytes of whole streams, by the ids of the reports they come from: what an engine sent is what the client gets."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from hlserve_router.testing.cases import BODY, CHAT, NS, behind, endings, endpoints, reading, tokens
from hlserve_router.testing.engine import Play, Session
from hlserve_router.testing.scripts import COMPLETION, DONE, STOP, delta, event, paced, reply, usage_event
from hlserve_router.testing.stage import Stage

COFFEE = 'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"café ☕"},"finish_reason":null}]}\n\n'.encode()
E_ACUTE, CUP = COFFEE.index(b"\xc3\xa9") + 1, COFFEE.index(b"\xe2\x98\x95") + 1
TOOL_CALLS = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null,"reasoning_content":"think"},"logprobs":null}]}\n\n',
    b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a\\""}}]},"index":0}]}\n\n',
    b'data: {"choices":[{"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{\\"b\\""}}]},"index":0}]}\n\n',
    b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]},"index":0}]}\n\n',
    b'data: {"x_engine":{"spec_accept":0.5,"small":1e-7,"one":1.0},"choices":[]}\n\n',
)


@dataclass(frozen=True)
class Exact:
    id: str
    pieces: tuple[bytes, ...]
    tokens: tuple[float, float]
    """Of prompt and reply; events stand for reply tokens where the engine tells none."""


EXACT = [
    Exact(
        "B01: characters of two and three bytes cut in the middle",
        (COFFEE[:E_ACUTE], COFFEE[E_ACUTE:CUP], COFFEE[CUP : CUP + 1], COFFEE[CUP + 1 :], STOP, DONE),
        (0, 3),
    ),
    Exact("B01: a stream cut at every byte", tuple(bytes([byte]) for byte in COFFEE + STOP + DONE), (0, 3)),
    Exact(
        "B02: a data line cut, CRLF ends, no space after the colon",
        (b"dat", b'a:{"id":"c1","choices":[{"index":0,"delta":{"content":"A"}}]}\r\n', b"\r\n", delta("B"), DONE),
        (0, 3),
    ),
    Exact(
        "B02: CRLF ends all through, cut between CR and LF",
        (delta("A")[:-2] + b"\r", b"\n\r", b"\n" + STOP[:-2] + b"\r\n\r", b"\ndata: [DONE]\r\n\r\n"),
        (0, 3),
    ),
    Exact(
        "B10: empty and absent choices, null, a number",
        (
            b'data: {"id":"c1","choices":[]}\n\n',
            b'data: {"id":"c1","usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}\n\n',
            b"data: null\n\n",
            b"data: 7\n\n",
            delta("A"),
            DONE,
        ),
        (5, 1),
    ),
    Exact(
        "B10: choices that are null, a word, an object, and an event of no data at all",
        (
            b'data: {"choices":null}\n\n',
            b'data: {"choices":"none"}\n\n',
            b'data: {"choices":{},"usage":{}}\n\n',
            b'data: "x"\n\n',
            b"data:\n\n",
            b"data: {not json\n\n",
            DONE,
        ),
        (0, 7),
    ),
    Exact("B11: interleaved tool calls, nulls, reasoning, numbers, unknown fields", (*TOOL_CALLS, DONE), (0, 6)),
    Exact(
        "B12: comments, retry, id, event lines, two data lines in one event",
        (b": queued\n\n", b"retry: 3000\nid: 7\nevent: message\n" + delta("A"), b'data: {"choices":\ndata: []}\n\n', DONE),
        (0, 4),
    ),
    Exact(
        "B12: a comment inside an event, a field without a colon, a byte order mark",
        (b"\xef\xbb\xbf: hello\n\n", b": inside\nwhatever\n" + delta("A"), b"data\n\n", b":\n\n:\n\n", DONE),
        (0, 6),
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", EXACT, ids=lambda case: case.id)
async def test_a_stream_is_byte_equal(stage: Stage, case: Exact) -> None:
    router, _ = await behind(stage, paced(*case.pieces))
    answer = await router.post(CHAT, {**BODY, "tools": [{"type": "function", "function": {"name": "f"}}]})
    assert (answer.status_code, answer.content) == (200, b"".join(case.pieces))
    assert endings(router) == [("ok", "")]
    assert tokens(router) == case.tokens
    assert router.count("hlserve_router_internal_errors_total") == 0


async def test_b10_a_tick_between_events_counts_what_the_engine_has_told(stage: Stage) -> None:
    release = asyncio.Event()
    told = usage_event(5, 1)
    empty = b"data: null\n\n"

    async def play(session: Session) -> None:
        await session.head()
        await session.write(told + empty * 8)
        await session.until(release)
        await session.write(DONE)
        await session.end()

    router, _ = await behind(stage, play)
    sent = {**BODY, "stream_options": {"include_usage": True}}
    async with reading(router, sent) as answer, asyncio.timeout(5):
        got = b""
        async for chunk in answer.aiter_raw():
            got += chunk
            if got == told + empty * 8:
                for relay in router.router.intake.relays:
                    relay.tick(router.router.proxy.now())
                release.set()
    assert got == told + empty * 8 + DONE
    assert tokens(router) == (5, 1)


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["B02: LF", "B02: CRLF"])
async def test_b02_an_event_is_passed_on_with_its_last_byte_not_with_the_next_event(stage: Stage, end: str) -> None:
    release = asyncio.Event()
    line = f'data:{{"id":"c1","choices":[{{"index":0,"delta":{{"content":"A"}}}}]}}{end}'.encode()
    first = (line[:3], line[3:], end.encode())

    async def play(session: Session) -> None:
        await session.head()
        for piece in first:
            await session.write(piece)
            await asyncio.sleep(0.005)
        await session.until(release)
        await session.write(delta("B") + DONE)
        await session.end()

    router, _ = await behind(stage, play)
    async with reading(router) as answer, asyncio.timeout(2):
        chunks = answer.aiter_raw()
        assert await anext(chunks) == b"".join(first)
        release.set()
        assert b"".join([chunk async for chunk in chunks]) == delta("B") + DONE


def only_if_asked(session: Session) -> bool:
    return bool((session.request.json.get("stream_options") or {}).get("include_usage"))


async def tells_usage_if_asked(session: Session) -> None:
    usage = (usage_event(5, 2),) if only_if_asked(session) else ()
    await paced(delta("A"), STOP, *usage, DONE)(session)


USAGE: dict[str, tuple[Play, bool]] = {
    "an engine that always tells": (paced(delta("A"), STOP, usage_event(5, 2), DONE), False),
    "an engine that tells if asked": (tells_usage_if_asked, True),
}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize(("play", "foreign"), USAGE.values(), ids=USAGE)
@pytest.mark.parametrize(
    ("options", "shown"),
    [
        pytest.param({}, False, id="B09: not asked for, not shown"),
        pytest.param({"stream_options": None}, False, id="B09: null, not shown"),
        pytest.param({"stream_options": {"include_usage": False}}, False, id="B09: refused, not shown"),
        pytest.param({"stream_options": {"include_usage": True}}, True, id="B09: asked for, shown once and last"),
    ],
)
async def test_b09_the_usage_chunk(
    stage: Stage, options: dict[str, Any], shown: bool, play: Play, foreign: bool, path: str
) -> None:
    router, (engine,) = await behind(stage, play, pool={"foreign": foreign})
    sent = {"model": "m1", "messages": [], "prompt": "hi", "stream": True, **options}
    answer = await router.post(path, sent)
    assert answer.content == delta("A") + STOP + (usage_event(5, 2) if shown else b"") + DONE
    assert tokens(router) == (5, 2)
    upstream = engine.requests[0].json
    assert upstream.pop("stream_options", None) == (
        {"include_usage": True} if foreign else options.get("stream_options")
    )
    upstream.pop("rid", None)
    assert upstream == {name: value for name, value in sent.items() if name != "stream_options"}


@pytest.mark.parametrize("foreign", [False, True], ids=["our engine", "an engine of others"])
async def test_b09_a_call_that_is_not_streamed_is_not_asked_for_usage_although_its_key_is_metered(
    stage: Stage, foreign: bool
) -> None:
    router, (engine,) = await behind(
        stage, reply(COMPLETION), pool={"foreign": foreign}, key={"limits": {"tokensPerMinute": 1_000}}
    )
    assert (await router.post(CHAT, NS)).content == COMPLETION
    assert engine.requests[0].json == NS
    assert tokens(router) == (5, 1)


async def test_b14_two_choices_with_logprobs(stage: Stage) -> None:
    def chunk(index: int, finish: str | None) -> bytes:
        return event({"choices": [{"index": index, "logprobs": {"content": [{"logprob": -1e-7}]}, "finish_reason": finish}]})  # fmt: skip

    pieces = [chunk(0, None), chunk(1, None), chunk(1, "length"), chunk(0, "stop")]
    router, (engine,) = await behind(stage, paced(*pieces, usage_event(7, 4), DONE))
    sent = b'{"model":"m1","messages":[],"stream":true,"n":2,"logprobs":true,"top_logprobs":3,"seed":9007199254740993}'
    answer = await router.post(CHAT, sent)
    assert engine.requests[0].body == sent
    assert answer.content == b"".join(pieces) + DONE
    assert tokens(router) == (7, 4), "once, not per choice"
    assert all(state.in_flight == 0 for state in endpoints(router))
