"""Streams and bytes, by the ids of the reports they come from."""

import asyncio
import gzip
import json
import logging
from dataclasses import dataclass
from typing import Any

import pytest

from hlserve_api.routing import QueueRule
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_key, a_keyring, a_pool, a_table, some_timeouts
from hlserve_router.testing.engine import EVENT_STREAM, Play, ScriptedEngine, Session
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import COMPLETION, DONE, STOP, delta, event, held, reply, stream, usage_event
from hlserve_router.testing.stage import Stage
from hlserve_router.testing.wire import request_head

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "stream": True}
NS = {**BODY, "stream": False}
COFFEE = 'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"café ☕"},"finish_reason":null}]}\n\n'.encode()
E_ACUTE, CUP = COFFEE.index(b"\xc3\xa9") + 1, COFFEE.index(b"\xe2\x98\x95") + 1


async def one_engine(stage: Stage, play: Play, **route: Any) -> tuple[RunningRouter, ScriptedEngine]:
    engine = await stage.engine(play)
    return await stage.router(a_table(a_pool("agents", engine.url), a_class("agent", "agents", **route))), engine


def ended(router: RunningRouter) -> list[tuple[str, str]]:
    return [(labels[2], labels[3]) for labels in router.router.proxy.metrics.series("hlserve_router_requests_total")]


def tokens(router: RunningRouter) -> tuple[float, float]:
    names = ("hlserve_router_input_tokens_total", "hlserve_router_output_tokens_total")
    return router.count(names[0], "agent", "agents"), router.count(names[1], "agent", "agents")


def logged(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    fields: dict[str, Any] = next(r for r in caplog.records if r.getMessage() == "request").__dict__["fields"]
    return fields


@dataclass(frozen=True)
class Exact:
    id: str
    pieces: tuple[bytes, ...]
    tokens: tuple[int, int]


EXACT = [
    Exact(
        "B01: characters of two and three bytes cut in the middle",
        (COFFEE[:E_ACUTE], COFFEE[E_ACUTE:CUP], COFFEE[CUP : CUP + 1], COFFEE[CUP + 1 :], STOP, DONE),
        (0, 3),
    ),
    Exact(
        "B02: a data line cut, CRLF ends, no space after the colon",
        (b"dat", b'a:{"id":"c1","choices":[{"index":0,"delta":{"content":"A"}}]}\r\n', b"\r\n", delta("B"), DONE),
        (0, 2),
    ),
    Exact(
        "B10: empty and absent choices, null, a number",
        (
            b'data: {"id":"c1","choices":[]}\n\n',
            b'data: {"id":"c1","usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}\n\n',
            b"data: null\n\ndata: 7\n\n",
            delta("A"),
            DONE,
        ),
        (5, 1),
    ),
    Exact(
        "B11: interleaved tool calls, nulls, reasoning, numbers, unknown fields",
        (
            b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null,"reasoning_content":"think"},"logprobs":null}]}\n\n',
            b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a\\""}}]},"index":0}]}\n\n',
            b'data: {"choices":[{"delta":{"tool_calls":[{"index":1,"function":{"arguments":":1}"}}]},"index":0}]}\n\n',
            b'data: {"x_engine":{"spec_accept":0.5,"small":1e-7,"one":1.0},"choices":[]}\n\n',
            DONE,
        ),
        (0, 5),
    ),
    Exact(
        "B12: comments, retry, id, event lines, two data lines in one event",
        (b": queued\n\n", b"retry: 3000\nid: 7\nevent: message\n" + delta("A"), b'data: {"choices":\ndata: []}\n\n', DONE),
        (0, 4),
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", EXACT, ids=lambda case: case.id)
async def test_a_stream_is_byte_equal(stage: Stage, case: Exact) -> None:
    router, _ = await one_engine(stage, stream(*case.pieces))
    answer = await router.post(CHAT, BODY)
    assert answer.content == b"".join(case.pieces)
    assert ended(router) == [("ok", "")]
    got = tokens(router)
    assert got[0] == case.tokens[0]
    assert abs(got[1] - case.tokens[1]) <= (0 if case.tokens[0] else 1), "events stand for tokens where none are told"


async def test_b02_an_event_of_crlf_lines_is_not_held_until_the_next_one(stage: Stage) -> None:
    release = asyncio.Event()
    first = (b"dat", b'a:{"id":"c1","choices":[{"index":0,"delta":{"content":"A"}}]}\r\n', b"\r\n")

    async def play(session: Session) -> None:
        await session.head()
        for piece in first:
            await session.write(piece)
        await session.until(release)
        await session.write(delta("B") + DONE)
        await session.end()

    router, _ = await one_engine(stage, play)
    headers = {"authorization": f"Bearer {AGENT_KEY}"}
    async with router.http.stream("POST", router.url + CHAT, json=BODY, headers=headers) as answer, asyncio.timeout(5):
        chunks = answer.aiter_raw()
        assert await anext(chunks) == b"".join(first)
        release.set()
        assert b"".join([chunk async for chunk in chunks]) == delta("B") + DONE


MESSAGE = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":3}}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"partial_json":"{"}}\n\n'
)
TOOL = event({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"path":"/et'}}]}}]})


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        pytest.param(CHAT, TOOL, id="B05: a reset inside a tool call"),
        pytest.param("/v1/messages", MESSAGE, id="B05: a reset after content_block_delta"),
    ],
)
async def test_b05_an_engine_that_dies_in_mid_stream(stage: Stage, path: str, sent: bytes) -> None:
    go = asyncio.Event()

    async def play(session: Session) -> None:
        await session.head()
        await session.write(sent)
        await session.until(go)
        session.reset()

    router, engine = await one_engine(stage, play)
    wire = await stage.wire(router)
    body = json.dumps({**BODY, "max_tokens": 9}).encode()
    await wire.send(request_head(path, f"content-length: {len(body)}", "connection: close"), body)
    status, headers = await wire.head()
    assert (status, headers["transfer-encoding"]) == (200, ["chunked"])
    assert (await wire.reader.readuntil(sent)).endswith(sent)
    go.set()
    rest = await wire.rest()
    assert rest.endswith(b"0\r\n\r\n"), "the framing is closed"
    assert rest.count(b"data: ") == 1
    assert b'"engine_reset"' in rest
    assert (b"event: error\n" in rest) is (path == "/v1/messages")
    assert b"[DONE]" not in rest
    assert b"message_stop" not in rest
    assert ended(router) == [("truncated", "engine_reset")]
    assert next(iter(router.router.proxy.pools.endpoints())).failures == 1
    assert len(engine.requests) == 1


BAD_REQUEST = b'data: {"error":{"message":"bad request","type":"BadRequestError","code":400}}\n\n'


@pytest.mark.parametrize(
    ("late", "in_event", "ending", "status"),
    [
        pytest.param(stream(BAD_REQUEST), b'"code":400', ("engine_rejected", ""), 400, id="B07: an error event after pings"),
        pytest.param(reply(b"{}", 503), b'"engine_busy"', ("shed", "engine_busy"), 503, id="B07: a 503 after pings"),
        pytest.param(reply(b"{}", 422), b'"status":422', ("engine_rejected", ""), 422, id="B07: a 422 after pings"),
    ],
)  # fmt: skip
async def test_b07_an_error_after_pings_tells_the_real_status(
    stage: Stage, caplog: pytest.LogCaptureFixture, late: Play, in_event: bytes, ending: tuple[str, str], status: int
) -> None:
    caplog.set_level(logging.INFO)
    release = asyncio.Event()
    router, _ = await one_engine(
        stage, held(release, late), timeouts=some_timeouts(ping_seconds=0), queue=QueueRule(ttl_milliseconds=400)
    )
    headers = {"authorization": f"Bearer {AGENT_KEY}"}
    async with router.http.stream("POST", router.url + CHAT, json=BODY, headers=headers) as answer:
        assert answer.status_code == 200
        chunks = answer.aiter_raw()
        body = await anext(chunks)
        assert body == b": ping\n"
        release.set()
        async for chunk in chunks:
            body += chunk
    events = body.replace(b": ping\n", b"")
    assert in_event in events
    assert events.startswith(b"data: {")
    assert events.endswith(b"}\n\n")
    assert events.count(b"\n\n") == 1
    assert ended(router) == [ending]
    assert logged(caplog)["status"] == status


async def test_b08_raw_json_in_the_stream_becomes_an_error_event(stage: Stage) -> None:
    router, _ = await one_engine(stage, stream(delta("A"), b'{"error":{"message":"CUDA error","code":500}}'))
    answer = await router.post(CHAT, BODY)
    assert answer.content.startswith(delta("A") + b"data: ")
    assert json.loads(answer.content.removeprefix(delta("A") + b"data: "))["error"]["code"] == "engine_truncated"
    assert next(iter(router.router.proxy.pools.endpoints())).failures == 1


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        pytest.param({}, False, id="B09: not asked for, not shown"),
        pytest.param({"stream_options": {"include_usage": False}}, False, id="B09: refused, not shown"),
        pytest.param({"stream_options": {"include_usage": True}}, True, id="B09: asked for, shown once and last"),
    ],
)
async def test_b09_the_usage_chunk(stage: Stage, options: dict[str, Any], shown: bool) -> None:
    router, engine = await one_engine(stage, stream(delta("A"), STOP, usage_event(5, 2), DONE))
    answer = await router.post(CHAT, {**BODY, **options})
    assert answer.content == delta("A") + STOP + (usage_event(5, 2) if shown else b"") + DONE
    assert tokens(router) == (5, 2)
    assert engine.requests[0].json == {**BODY, **options}


async def test_b14_two_choices_with_logprobs(stage: Stage) -> None:
    def chunk(index: int, finish: str | None) -> bytes:
        return event({"choices": [{"index": index, "logprobs": {"content": [{"logprob": -1e-7}]}, "finish_reason": finish}]})  # fmt: skip

    pieces = [chunk(0, None), chunk(1, None), chunk(1, "length"), chunk(0, "stop")]
    router, engine = await one_engine(stage, stream(*pieces, usage_event(7, 4), DONE))
    sent = b'{"model":"m1","messages":[],"stream":true,"n":2,"logprobs":true,"top_logprobs":3,"seed":9007199254740993}'
    answer = await router.post(CHAT, sent)
    assert engine.requests[0].body == sent
    assert answer.content == b"".join(pieces) + DONE
    assert tokens(router) == (7, 4)


async def test_b15_a_compressed_answer_keeps_bytes_and_header_together(stage: Stage) -> None:
    packed = gzip.compress(COMPLETION)
    router, engine = await one_engine(stage, reply(packed, 200, "content-encoding: gzip"))
    headers = {"authorization": f"Bearer {AGENT_KEY}", "accept-encoding": "gzip, br, zstd"}
    async with router.http.stream("POST", router.url + CHAT, json=NS, headers=headers) as answer:
        raw = b"".join([chunk async for chunk in answer.aiter_raw()])
    assert (answer.headers["content-encoding"], raw) == ("gzip", packed)
    assert engine.requests[0].header("accept-encoding") == "gzip, br, zstd"


async def test_b16_headers_against_buffering_stand_once(stage: Stage) -> None:
    async def play(session: Session) -> None:
        await session.head(200, EVENT_STREAM, ["X-Accel-Buffering: yes", "Cache-Control: private"])
        await session.write(DONE)
        await session.end()

    router, _ = await one_engine(stage, play)
    headers = (await router.post(CHAT, BODY)).headers
    assert headers.get_list("x-accel-buffering") == ["no"]
    assert headers.get_list("cache-control") == ["no-cache"]
    assert "content-length" not in headers


async def test_b24_a_stream_holds_its_place_until_its_last_byte(stage: Stage) -> None:
    release = asyncio.Event()

    async def play(session: Session) -> None:
        await session.head()
        await session.write(delta("A"))
        await session.until(release)
        await session.write(DONE)
        await session.end()

    engine = await stage.engine(play)
    key = a_key(AGENT_KEY, "coder", "agent", limits={"maxConcurrent": 2})
    router = await stage.router(a_table(a_pool("agents", engine.url), a_class("agent", "agents")), a_keyring(key))
    two = [asyncio.create_task(router.post(CHAT, BODY)) for _ in range(2)]
    await router.until(lambda: sum(bool(r.exchange.first_event) for r in router.router.face.relays) == 2)
    third = await router.post(CHAT, BODY)
    assert (third.status_code, third.json()["error"]["code"]) == (429, "key_concurrency")
    release.set()
    assert [answer.status_code for answer in await asyncio.gather(*two)] == [200, 200]
    assert (await router.post(CHAT, BODY)).status_code == 200


async def test_b25_a_total_limit_ends_the_engines_work(stage: Stage) -> None:
    router, engine = await one_engine(
        stage, held(asyncio.Event(), reply()), timeouts=some_timeouts(total_seconds=1)
    )  # fmt: skip
    answer = await router.post(CHAT, NS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "total_timeout")
    assert answer.headers["x-should-retry"] == "false"
    await engine.wait_for(lambda: engine.open_sessions == 0 and len(engine.aborts) == 1)
    assert engine.aborts == [{"rid": engine.requests[0].header("x-override-rid")}]
