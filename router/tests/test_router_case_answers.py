"""Answers' headers and encodings, by the ids of the reports they come from."""

import asyncio
import gzip
import json
import zlib

import pytest

from hlserve_router.testing.buffering import buffering_proxy
from hlserve_router.testing.cases import AS_CODER, BODY, CHAT, NS, behind, endings, reading
from hlserve_router.testing.documents import some_timeouts
from hlserve_router.testing.engine import EVENT_STREAM, Session
from hlserve_router.testing.scripts import COMPLETION, DONE, delta, held, reply, stream
from hlserve_router.testing.stage import Stage
from hlserve_router.testing.wire import Wire, request_head

ENCODINGS = {**AS_CODER, "accept-encoding": "gzip, br, zstd"}


@pytest.mark.parametrize("size", [1, 40_000], ids=["B15: small", "B15: larger than what is held"])
async def test_b15_a_compressed_answer_keeps_bytes_and_header_together(stage: Stage, size: int) -> None:
    packed = gzip.compress(COMPLETION * size, compresslevel=0)
    router, (engine,) = await behind(stage, reply(packed, 200, "content-encoding: gzip"))
    async with router.http.stream("POST", router.url + CHAT, json=NS, headers=ENCODINGS) as answer:
        raw = b"".join([chunk async for chunk in answer.aiter_raw()])
    assert (answer.headers["content-encoding"], answer.headers["content-length"]) == ("gzip", str(len(packed)))
    assert raw == packed
    assert engine.requests[0].header("accept-encoding") == "gzip, br, zstd"


async def test_b15_each_event_of_a_compressed_stream_arrives_when_it_is_flushed_and_no_ping_spoils_it(
    stage: Stage,
) -> None:
    events = [delta(text) for text in "ABC"] + [DONE]
    seen = [asyncio.Event() for _ in events]

    async def play(session: Session) -> None:
        packer = zlib.compressobj(wbits=31)
        await session.head(200, EVENT_STREAM, ["content-encoding: gzip"])
        for event, read in zip(events, seen, strict=True):
            await session.write(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH))
            await session.until(read)
        await session.write(packer.flush())
        await session.end()

    router, _ = await behind(stage, play, timeouts=some_timeouts(ping_seconds=1))
    unpacker = zlib.decompressobj(wbits=31)
    got = b""
    async with router.http.stream("POST", router.url + CHAT, json=BODY, headers=ENCODINGS) as answer:
        assert answer.headers["content-encoding"] == "gzip"
        chunks = answer.aiter_raw()
        for number, read in enumerate(seen, 1):
            async with asyncio.timeout(2):
                while got != b"".join(events[:number]):
                    got += unpacker.decompress(await anext(chunks))
            if number == 2:
                await asyncio.sleep(1.1)  # a ping would come now
            read.set()
        async for chunk in chunks:
            got += unpacker.decompress(chunk)
    assert unpacker.eof
    assert got == b"".join(events)
    assert endings(router) == [("ok", "")]


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"], ids=lambda path: f"B16: {path}")
async def test_b16_headers_against_buffering_stand_once(stage: Stage, path: str) -> None:
    last = DONE if path == CHAT else b'event: message_stop\ndata: {"type":"message_stop"}\n\n'

    async def play(session: Session) -> None:
        await session.head(
            200, EVENT_STREAM, ["X-Accel-Buffering: yes", "Cache-Control: private", "cache-control: public"]
        )
        await session.write(last)
        await session.end()

    router, _ = await behind(stage, play)
    headers = (await router.post(path, {**BODY, "max_tokens": 9})).headers
    assert headers.get_list("x-accel-buffering") == ["no"]
    assert headers.get_list("cache-control") == ["no-cache"]
    assert "content-length" not in headers


async def test_b16_a_stream_that_is_opened_while_it_waits_has_them_too(stage: Stage) -> None:
    release = asyncio.Event()
    router, _ = await behind(stage, held(release, stream(DONE)), timeouts=some_timeouts(ping_seconds=0))
    async with reading(router) as answer:
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["cache-control"] == "no-cache"
        release.set()
        await answer.aread()


async def test_b16_a_proxy_that_buffers_by_default_lets_each_event_through(stage: Stage) -> None:
    """In lockstep: the next event is only made when the client has the one before."""
    seen = asyncio.Semaphore(0)

    async def play(session: Session) -> None:
        await session.head()
        for _ in range(20):
            await session.write(delta("A"))
            async with asyncio.timeout(5):
                await seen.acquire()
        await session.write(DONE)
        await session.end()

    router, _ = await behind(stage, play)
    body = json.dumps(BODY).encode()
    async with buffering_proxy(router.url) as url:
        wire = await Wire.to(url)
        await wire.send(request_head(CHAT, f"content-length: {len(body)}", "connection: close"), body)
        status, _ = await wire.head()
        for _ in range(20):
            async with asyncio.timeout(2):
                await wire.reader.readuntil(delta("A"))
            seen.release()
        assert (status, (await wire.rest()).count(DONE)) == (200, 1)
        wire.hang_up()
    assert endings(router) == [("ok", "")]


@pytest.mark.parametrize(
    ("status", "content_type", "body", "outcome"),
    [
        pytest.param(422, "application/json", b'{"error":{"message":"bad tool schema"}}', "engine_rejected", id="B17: a 422"),
        pytest.param(400, "application/problem+json", b'{"title":"no"}', "engine_rejected", id="B17: a 400 of another type"),
        pytest.param(413, "text/plain", b"too large", "engine_rejected", id="B17: a 413 as text"),
        pytest.param(500, "text/html", b"<h1>oops</h1>", "engine_error", id="B17: a 500 as a page"),
        pytest.param(200, "application/json", COMPLETION, "ok", id="B17: a 200 that ignores stream"),
        pytest.param(400, EVENT_STREAM, b"data: {}\n\n", "engine_rejected", id="B17: a 400 that calls itself a stream"),
        pytest.param(200, "application/json", b"", "ok", id="B17: a 200 without a body"),
    ],
)  # fmt: skip
async def test_b17_an_answer_that_is_no_stream_passes_as_it_is(
    stage: Stage, status: int, content_type: str, body: bytes, outcome: str
) -> None:
    async def play(session: Session) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\netag: 1\r\ncontent-length: {len(body)}\r\n\r\n"
        await session.raw(head.encode())
        await session.raw(body)

    router, _ = await behind(stage, play)
    answer = await router.post(CHAT, BODY)
    assert (answer.status_code, answer.headers["content-type"], answer.content) == (status, content_type, body)
    assert (answer.headers["etag"], answer.headers.get_list("content-length")) == ("1", [str(len(body))])
    assert endings(router) == [(outcome, "")]
