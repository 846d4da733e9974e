"""Step 7 over real sockets: exact bytes, event boundaries, and what the router adds when an engine fails."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from hlserve_api.answers import Outcome
from hlserve_router.answers import PING
from hlserve_router.state import Shape
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_pool, a_table, some_timeouts
from hlserve_router.testing.engine import Play, ScriptedEngine, Session
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import DONE, STOP, delta, event, held, reply, stream, usage_event
from hlserve_router.testing.stage import Stage

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "stream": True}
ERROR_400 = event({"error": {"message": "too long", "type": "BadRequestError", "code": 400}})


async def one_engine(stage: Stage, play: Play, **timeouts: int) -> tuple[RunningRouter, ScriptedEngine]:
    engine = await stage.engine(play)
    route = a_class("agent", "agents", timeouts=some_timeouts(**timeouts))
    return await stage.router(a_table(a_pool("agents", engine.url), route)), engine


def outcomes(router: RunningRouter) -> list[tuple[str, str]]:
    return [(labels[2], labels[3]) for labels in router.router.proxy.metrics.series("hlserve_router_requests_total")]


@asynccontextmanager
async def reading(router: RunningRouter, body: Any = None, path: str = CHAT) -> AsyncIterator[httpx.Response]:
    headers = {"authorization": f"Bearer {AGENT_KEY}"}
    async with router.http.stream("POST", router.url + path, json=body or BODY, headers=headers) as answer:
        yield answer


def parse_events(data: bytes) -> list[bytes]:
    return [part for part in data.split(b"\n\n") if part]


COFFEE = delta("café ☕")
EXACT = {
    "UTF-8 characters cut in the middle": [COFFEE[:-40], *[bytes([byte]) for byte in COFFEE[-40:]], STOP, DONE],
    "a data line cut, CRLF, no space": [
        b"dat",
        b'a:{"id":"c1","choices":[{"index":0,"delta":{}}]}\r\n',
        b"\r\n",
        delta("B"),
        DONE,
    ],
    "empty, absent and odd choices": [
        event({"id": "c1", "choices": []}),
        b"data: null\n\n",
        b"data: 7\n\n",
        delta("A"),
        DONE,
    ],
    "nulls, numbers and unknown fields": [
        b'data: {"choices":[{"delta":{"role":"assistant","content":null,"reasoning_content":"t"},"l":null}],"x":{"a":1e-7,"b":1.0}}\n\n',
        DONE,
    ],
    "comments, ids and two data lines": [
        b": queued\n\n",
        b"retry: 3000\nid: 7\nevent: message\n" + delta("A"),
        b'data: {"choices":\ndata: []}\n\n',
        DONE,
    ],
    "a DONE without an end of line": [delta("A"), b"data: [DONE]"],
    "many events in one piece": [delta("A") * 50 + DONE],
    "usage inside a chunk that has choices": [event({"choices": [{"delta": {}}], "usage": {"prompt_tokens": 3}}), DONE],
}


@pytest.mark.parametrize("pieces", EXACT.values(), ids=EXACT.keys())
async def test_a_stream_is_byte_equal(stage: Stage, pieces: list[bytes]) -> None:
    router, _ = await one_engine(stage, stream(*pieces))
    answer = await router.post(CHAT, BODY)
    assert answer.content == b"".join(pieces)
    assert outcomes(router) == [("ok", "")]


async def test_a_usage_chunk_that_was_asked_for_passes(stage: Stage) -> None:
    router, _ = await one_engine(stage, stream(delta("A"), usage_event(), DONE))
    answer = await router.post(CHAT, {**BODY, "stream_options": {"include_usage": True}})
    assert answer.content == delta("A") + usage_event() + DONE


async def test_the_first_event_reaches_the_client_before_the_second_is_made(stage: Stage) -> None:
    release = asyncio.Event()

    async def play(session: Session) -> None:
        await session.head()
        await session.write(delta("A"))
        await session.until(release)
        await session.write(DONE)
        await session.end()

    router, _ = await one_engine(stage, play)
    async with reading(router) as answer:
        chunks = answer.aiter_raw()
        assert await anext(chunks) == delta("A")
        release.set()
        assert await anext(chunks) == DONE


TRUNCATED = {
    "a clean end without DONE": ([delta("par"), delta("tial")], None, "engine_truncated", "truncated"),
    "a reset in a tool call": ([delta("a")], "reset", "engine_reset", "truncated"),
    "a close inside a chunk": ([delta("a")], "close", "engine_truncated", "truncated"),
    "raw JSON at the end": (
        [delta("A"), b'{"error":{"message":"CUDA error","code":500}}'],
        None,
        "engine_truncated",
        "truncated",
    ),
    "half an event at the end": ([delta("A"), b'data: {"choi'], "reset", "engine_reset", "truncated"),
}


@pytest.mark.parametrize(("pieces", "how", "code", "outcome"), TRUNCATED.values(), ids=TRUNCATED.keys())
async def test_a_broken_stream_ends_with_one_error_event_and_properly(
    stage: Stage, pieces: list[bytes], how: str | None, code: str, outcome: str
) -> None:
    async def play(session: Session) -> None:
        await session.head()
        for piece in pieces:
            await session.write(piece)
        if how is None:
            await session.end()
        else:
            await asyncio.sleep(0.02)  # lets the bytes leave before the connection breaks
            getattr(session, how)()

    router, engine = await one_engine(stage, play)
    answer = await router.post(CHAT, BODY)
    got = parse_events(answer.content)
    whole = [piece for piece in pieces if piece.endswith(b"\n\n")]
    assert b"".join(whole) == answer.content[: len(b"".join(whole))]
    assert len(got) == len(whole) + 1
    assert json.loads(got[-1].removeprefix(b"data: "))["error"]["code"] == code
    assert b"[DONE]" not in answer.content
    assert outcomes(router) == [(outcome, code)]
    assert len(engine.requests) == 1, "never retried after a byte"
    endpoint = next(iter(router.router.proxy.pools.endpoints()))
    assert endpoint.failures == 1


async def test_a_broken_anthropic_stream_has_an_error_event_and_no_message_stop(stage: Stage) -> None:
    first = b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":3}}}\n\n'
    router, _ = await one_engine(stage, stream(first))
    answer = await router.post("/v1/messages", {**BODY, "max_tokens": 9})
    assert answer.content.startswith(first + b"event: error\ndata: ")
    error = json.loads(answer.content.rpartition(b"data: ")[2])
    assert error["error"]["details"]["error_code"] == "engine_truncated"
    assert b"message_stop" not in answer.content


async def test_a_broken_responses_stream_has_a_flat_and_a_nested_error(stage: Stage) -> None:
    router, _ = await one_engine(stage, stream(b'event: response.created\ndata: {"type":"response.created"}\n\n'))
    answer = await router.post("/v1/responses", {"model": "m1", "input": "hi", "stream": True})
    error = json.loads(answer.content.rpartition(b"data: ")[2])
    assert (error["type"], error["code"], error["error"]["code"]) == ("error", "engine_truncated", "engine_truncated")


WHOLE_STREAMS = {
    "/v1/messages": b'event: message_start\ndata: {"type":"message_start"}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n',
    "/v1/responses": b'event: response.created\ndata: {}\n\nevent: response.completed\ndata: {"response":{}}\n\n',
    "/v1/completions": event({"choices": [{"text": "a"}]}) + DONE,
    "/generate": event({"text": "a", "meta_info": {"prompt_tokens": 1, "completion_tokens": 1}}) + DONE,
}


@pytest.mark.parametrize("path", WHOLE_STREAMS)
async def test_every_streaming_route_passes_its_own_kind_of_end(stage: Stage, path: str) -> None:
    router, engine = await one_engine(stage, stream(WHOLE_STREAMS[path]))
    answer = await router.post(
        path, {"model": "m1", "input": "x", "text": "x", "messages": [], "stream": True, "max_tokens": 5}
    )
    assert answer.content == WHOLE_STREAMS[path]
    assert outcomes(router) == [("ok", "")]
    assert engine.requests[0].path == path


async def test_an_error_that_comes_first_becomes_a_real_status(stage: Stage) -> None:
    router, engine = await one_engine(stage, stream(ERROR_400, DONE))
    answer = await router.post(CHAT, BODY)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["message"] == "too long"
    assert outcomes(router) == [("engine_rejected", "")]
    assert len(engine.requests) == 1


async def test_after_the_peek_time_the_status_is_sent_and_a_late_error_is_an_event(stage: Stage) -> None:
    release = asyncio.Event()

    async def play(session: Session) -> None:
        await session.head()
        await session.until(release)
        await session.write(ERROR_400)
        await session.end()

    router, _ = await one_engine(stage, play, peek_milliseconds=50)
    async with reading(router) as answer:
        assert answer.status_code == 200
        release.set()
        body = await answer.aread()
    assert body == ERROR_400
    assert outcomes(router) == [("engine_rejected", "")]


async def test_pings_stand_at_event_boundaries_only(stage: Stage) -> None:
    release = asyncio.Event()
    first, half = delta("A"), delta("B")

    async def play(session: Session) -> None:
        await session.head()
        await session.write(first + half[:20])
        await session.until(release)
        await session.write(half[20:] + DONE)
        await session.end()

    router, _ = await one_engine(stage, play, ping_seconds=0)
    ping = PING[Shape.OPENAI]
    async with reading(router) as answer:
        chunks = answer.aiter_raw()
        got = b""
        while got.count(ping) < 3:
            got += await anext(chunks)
        release.set()
        async for chunk in chunks:
            got += chunk
    assert got.replace(ping, b"") == first + half + DONE
    assert first in got
    assert half in got


async def test_a_stream_that_waits_for_its_engine_is_opened_and_pinged(stage: Stage) -> None:
    release = asyncio.Event()
    router, _ = await one_engine(stage, held(release, stream(delta("A"), DONE)), ping_seconds=0)
    async with reading(router) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        release.set()
        body = await answer.aread()
    assert body.replace(PING[Shape.OPENAI], b"") == delta("A") + DONE
    assert outcomes(router) == [("ok", "")]


async def test_an_engine_that_refuses_after_the_stream_was_opened_is_an_error_event_with_its_status(
    stage: Stage,
) -> None:
    release = asyncio.Event()
    router, _ = await one_engine(stage, held(release, reply(b'{"error":"no"}', 422)), ping_seconds=0)
    async with reading(router) as answer:
        release.set()
        body = await answer.aread()
    error = json.loads(body.replace(PING[Shape.OPENAI], b"").removeprefix(b"data: "))["error"]
    assert (error["code"], error["status"]) == ("engine_protocol", 422)
    assert b"[DONE]" not in body
    assert outcomes(router) == [("engine_rejected", "")]


async def test_anthropic_pings_are_events(stage: Stage) -> None:
    release = asyncio.Event()
    router, _ = await one_engine(stage, held(release, stream(WHOLE_STREAMS["/v1/messages"])), ping_seconds=0)
    async with reading(router, {**BODY, "max_tokens": 5}, "/v1/messages") as answer:
        chunks = answer.aiter_raw()
        body = await anext(chunks)
        release.set()
        async for chunk in chunks:
            body += chunk
    assert body.startswith(b'event: ping\ndata: {"type": "ping"}\n\n')
    assert body.endswith(WHOLE_STREAMS["/v1/messages"])


async def test_silence_in_a_stream_ends_it_with_an_error_event(stage: Stage) -> None:
    async def play(session: Session) -> None:
        await session.head()
        await session.write(delta("A"))
        await session.gone.wait()

    router, engine = await one_engine(stage, play, silence_seconds=0)
    answer = await router.post(CHAT, BODY)
    assert json.loads(answer.content.rpartition(b"data: ")[2])["error"]["code"] == "engine_silent"
    assert outcomes(router) == [("timeout", "engine_silent")]
    await engine.wait_for(lambda: engine.open_sessions == 0)


async def test_an_engines_own_error_event_passes_and_is_no_success(stage: Stage) -> None:
    late = event({"error": {"message": "CUDA", "code": 500}})
    router, _ = await one_engine(stage, stream(delta("A"), late, DONE))
    answer = await router.post(CHAT, BODY)
    assert answer.content == delta("A") + late + DONE
    assert outcomes(router) == [(Outcome.ENGINE_ERROR.value, "")]


@pytest.mark.parametrize("status", [200, 422])
async def test_an_answer_that_is_no_stream_passes_as_it_is(stage: Stage, status: int) -> None:
    body = b'{"error": {"message": "bad tool schema"}}'
    router, _ = await one_engine(stage, reply(body, status, "openai-processing-ms: 1", "x-engine: 1"))
    answer = await router.post(CHAT, BODY)
    assert (answer.status_code, answer.content) == (status, body)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["openai-processing-ms"] == "1"
    assert "x-engine" not in answer.headers
    assert answer.headers.get_list("content-length") == [str(len(body))]


async def test_a_compressed_stream_is_opaque_and_prompt(stage: Stage) -> None:
    release = asyncio.Event()

    async def play(session: Session) -> None:
        await session.head(headers=["content-encoding: x-test"])
        await session.write(b"\x1f\x8b one")
        await session.until(release)
        await session.write(b"two")
        await session.end()

    router, _ = await one_engine(stage, play, ping_seconds=1)
    async with reading(router) as answer:
        chunks = answer.aiter_raw()
        assert await anext(chunks) == b"\x1f\x8b one"
        await asyncio.sleep(1.2)  # a ping would come now, and would break the compressed body
        release.set()
        assert await anext(chunks) == b"two"
        assert answer.headers["content-encoding"] == "x-test"


async def test_a_large_answer_is_passed_on_while_it_comes_and_its_usage_is_read(stage: Stage) -> None:
    big = (
        b'{"choices":[{"message":{"content":"'
        + b"x" * 600_000
        + b'"}}],"usage":{"prompt_tokens":11,"completion_tokens":7}}'
    )
    router, _ = await one_engine(stage, reply(big))
    answer = await router.post(CHAT, {**BODY, "stream": False})
    assert answer.content == big
    assert router.count("hlserve_router_input_tokens_total", "agent", "agents") == 11
    assert router.count("hlserve_router_output_tokens_total", "agent", "agents") == 7


async def test_a_large_answer_that_breaks_is_cut_without_a_proper_end(stage: Stage) -> None:
    async def play(session: Session) -> None:
        await session.head(200, "application/json")
        await session.write(b"x" * 600_000)
        await asyncio.sleep(0.05)  # lets the bytes leave before the connection breaks
        session.reset()

    router, _ = await one_engine(stage, play)
    with pytest.raises(httpx.RemoteProtocolError):
        await router.post(CHAT, {**BODY, "stream": False})
    assert outcomes(router) == [("truncated", "engine_reset")]


async def test_a_line_without_end_is_relayed_in_bounded_memory(stage: Stage) -> None:
    async def play(session: Session) -> None:
        await session.head()
        await session.write(b"data: ")
        for _ in range(200):
            await session.write(b"x" * 65536)
        await session.write(b"\n\n" + DONE)
        await session.end()

    router, _ = await one_engine(stage, play)
    total = 0
    async with reading(router) as answer:
        async for chunk in answer.aiter_raw():
            total += len(chunk)
            for relay in router.router.face.relays:
                assert len(relay._splitter.held) <= 64 * 1024
    assert total == 6 + 200 * 65536 + 2 + len(DONE)
    assert outcomes(router) == [("ok", "")]


async def test_a_slow_reader_stops_the_engine_instead_of_filling_memory(stage: Stage) -> None:
    sent = 0

    async def play(session: Session) -> None:
        nonlocal sent
        await session.head()
        for _ in range(2000):
            await session.write(delta("x" * 32_000))
            sent += 1
        await session.write(DONE)
        await session.end()

    router, _ = await one_engine(stage, play)
    async with reading(router) as answer:
        chunks = answer.aiter_raw(1000)
        await anext(chunks)
        before = -1
        while before != sent:  # until the engine cannot write any more
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 1500, "64 MB must not pile up anywhere"
        async for _ in chunks:
            pass
    assert sent == 2000
    assert outcomes(router) == [("ok", "")]
