"""Streams that break, by the ids of the reports they come from: marked with one error event, never completed by the router."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

import pytest

from hlserve_api.routing import QueueRule
from hlserve_router.testing.cases import BODY, CHAT, ask, behind, endings, endpoints, error_code, reading, request_lines
from hlserve_router.testing.documents import some_timeouts
from hlserve_router.testing.engine import EVENT_STREAM, Play, Session
from hlserve_router.testing.scripts import DONE, ORDINARY, delta, event, held, in_turn, passed_on, reply, stream
from hlserve_router.testing.stage import Stage

MESSAGE = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":3}}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"partial_json":"{"}}\n\n'
)
TOOL = event({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"path":"/et'}}]}}]})
CREATED = b'event: response.created\ndata: {"type":"response.created"}\n\n'
BEGUN = {
    CHAT: TOOL,
    "/v1/completions": event({"choices": [{"text": "par"}]}) + event({"choices": [{"text": "tial"}]}),
    "/v1/messages": MESSAGE,
    "/v1/responses": CREATED,
    "/generate": event({"text": "par"}),
}
"""What a stream of each route begins with."""
ANY_ROUTE = {**BODY, "prompt": "hi", "input": "hi", "text": "hi", "max_tokens": 9}


def the_error(path: str, rest: bytes) -> str:
    """The reason in the one error event that `rest` is."""
    name, _, data = rest.rpartition(b"data: ")
    assert rest.endswith(b"\n\n")
    assert rest.count(b"data: ") == 1
    assert name == (b"event: error\n" if path in ("/v1/messages", "/v1/responses") else b"")
    error = json.loads(data)
    if path == "/v1/messages":
        assert error["type"] == "error"
        return str(error["error"]["details"]["error_code"])
    if path == "/v1/responses":
        assert error["code"] == error["error"]["code"]
    return str(error["error"]["code"])


async def ends_in_chunks(session: Session, begun: bytes) -> None:
    await session.head()
    await session.write(begun)
    await session.end()


async def ends_with_the_connection(session: Session, begun: bytes) -> None:
    await session.raw(f"HTTP/1.1 200 OK\r\ncontent-type: {EVENT_STREAM}\r\n\r\n".encode() + begun)
    session.close()


async def ends_with_its_length(session: Session, begun: bytes) -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {EVENT_STREAM}\r\ncontent-length: {len(begun)}\r\n\r\n"
    await session.raw(head.encode() + begun)


async def closes_in_a_chunk(session: Session, begun: bytes) -> None:
    await session.head()
    await session.raw(b"%x\r\n%b" % (len(begun) + 40, begun + b"data: {"))
    await passed_on()
    session.close()


async def ends_before_its_length(session: Session, begun: bytes) -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {EVENT_STREAM}\r\ncontent-length: {len(begun) + 40}\r\n\r\n"
    await session.raw(head.encode() + begun)
    await passed_on()
    session.close()


ENDS: dict[str, Callable[[Session, bytes], Awaitable[None]]] = {
    "a proper end in chunks": ends_in_chunks,
    "the end of the connection": ends_with_the_connection,
    "the end of its length": ends_with_its_length,
    "a close inside a chunk": closes_in_a_chunk,
    "a close before its length": ends_before_its_length,
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("path", BEGUN, ids=lambda path: f"B04: {path}")
async def test_b04_an_end_without_the_closing_event_is_no_success(stage: Stage, path: str, how: str) -> None:
    async def play(session: Session) -> None:
        await ENDS[how](session, BEGUN[path])

    router, (one, two) = await behind(stage, play, play)
    answer = await router.post(path, ANY_ROUTE)
    assert answer.content.startswith(BEGUN[path])
    assert the_error(path, answer.content.removeprefix(BEGUN[path])) == "engine_truncated"
    assert b"[DONE]" not in answer.content
    assert endings(router) == [("truncated", "engine_truncated")]
    assert len(one.requests) + len(two.requests) == 1, "never retried"
    assert sum(state.failures for state in endpoints(router)) == 1


@pytest.mark.parametrize("path", BEGUN, ids=lambda path: f"B05: {path}")
async def test_b05_an_engine_that_dies_in_mid_stream(stage: Stage, path: str) -> None:
    go = asyncio.Event()

    async def play(session: Session) -> None:
        await session.head()
        await session.write(BEGUN[path])
        await session.until(go)
        session.reset()

    router, (one, two) = await behind(stage, play, play)
    wire = await ask(stage, router, ANY_ROUTE, path, "connection: close")
    status, headers = await wire.head()
    assert (status, headers["transfer-encoding"]) == (200, ["chunked"])
    assert (await wire.reader.readuntil(BEGUN[path])).endswith(BEGUN[path])
    go.set()
    rest = await wire.rest()
    assert rest.endswith(b"\r\n0\r\n\r\n"), "the framing is closed"
    size, _, event_ = rest.removeprefix(b"\r\n").removesuffix(b"\r\n0\r\n\r\n").partition(b"\r\n")
    assert len(event_) == int(size, 16)
    assert the_error(path, event_) == "engine_reset"
    assert endings(router) == [("truncated", "engine_reset")]
    assert sum(state.failures for state in endpoints(router)) == 1
    assert len(one.requests) + len(two.requests) == 1


BAD_REQUEST = b'data: {"error":{"message":"bad request","type":"BadRequestError","code":400}}\n\n'
MESSAGE_ERROR = (
    b'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error","message":"bad request"}}\n\n'
)


async def reset(session: Session) -> None:
    session.reset()


async def two_framings(session: Session) -> None:
    await session.raw(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 10\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("late", "in_event", "ending", "status"),
    [
        pytest.param(stream(BAD_REQUEST), b'"code":400', ("engine_rejected", ""), 400, id="B07: an error event after pings"),
        pytest.param(stream(BAD_REQUEST, DONE), b'"code":400', ("engine_rejected", ""), 400, id="B07: an error event and DONE"),
        pytest.param(reply(b"{}", 503), b'"engine_busy"', ("shed", "engine_busy"), 503, id="B07: a 503 after pings"),
        pytest.param(reply(b"{}", 422), b'"status":422', ("engine_rejected", ""), 422, id="B07: a 422 after pings"),
        pytest.param(reply(b"{}", 500), b'"status":500', ("engine_error", ""), 500, id="B07: a 500 after pings"),
        pytest.param(reply(b"{}", 200), b'"engine_protocol"', ("engine_error", "engine_protocol"), 502, id="B07: no stream after pings"),
        pytest.param(reset, b'"engine_reset"', ("engine_error", "engine_reset"), 502, id="B07: a reset after pings"),
        pytest.param(two_framings, b'"engine_protocol"', ("engine_error", "engine_protocol"), 502, id="B07: bad HTTP after pings"),
        pytest.param(stream(), b'"engine_truncated"', ("truncated", "engine_truncated"), 502, id="B07: an empty stream after pings"),
    ],
)  # fmt: skip
async def test_b07_an_error_after_pings_tells_the_real_status(
    stage: Stage, caplog: pytest.LogCaptureFixture, late: Play, in_event: bytes, ending: tuple[str, str], status: int
) -> None:
    caplog.set_level(logging.INFO)
    release = asyncio.Event()
    router, _ = await behind(
        stage, held(release, late), timeouts=some_timeouts(ping_seconds=0), queue=QueueRule(ttl_milliseconds=400)
    )
    async with reading(router) as answer:
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
    assert events.count(b"\n\n") == 1, "one event, and no DONE"
    assert endings(router) == [ending]
    assert [line["status"] for line in request_lines(caplog.records)] == [status]


@pytest.mark.parametrize(
    ("path", "late"),
    [
        pytest.param("/v1/messages", stream(MESSAGE_ERROR), id="B07: Anthropic, an error event"),
        pytest.param("/v1/messages", reply(b"{}", 422), id="B07: Anthropic, a 422"),
        pytest.param("/v1/responses", reply(b"{}", 422), id="B07: responses, a 422"),
    ],
)
async def test_b07_in_the_streams_own_shape(stage: Stage, path: str, late: Play) -> None:
    release = asyncio.Event()
    router, _ = await behind(stage, held(release, late), timeouts=some_timeouts(ping_seconds=0))
    async with reading(router, ANY_ROUTE, path) as answer:
        chunks = answer.aiter_raw()
        body = ping = await anext(chunks)
        release.set()
        async for chunk in chunks:
            body += chunk
    rest = body.replace(b'event: ping\ndata: {"type": "ping"}\n\n' if path == "/v1/messages" else b": ping\n", b"")
    assert ping not in rest
    assert rest.startswith(b"event: error\ndata: {")
    assert rest.count(b"\n\n") == 1
    assert b"message_stop" not in rest
    assert endings(router)[0][0] == "engine_rejected"


RAW = b'{"error":{"message":"CUDA error","code":500}}'


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param((RAW,), id="B08: no end of line"),
        pytest.param((RAW + b"\n",), id="B08: one end of line"),
        pytest.param((RAW[:20], RAW[20:]), id="B08: in two pieces"),
        pytest.param((b'data: {"choices":[{"del',), id="B08: half an event"),
        pytest.param((b"Internal Server Error",), id="B08: text"),
    ],
)
async def test_b08_raw_text_at_the_end_of_a_stream_becomes_an_error_event(
    stage: Stage, tail: tuple[bytes, ...]
) -> None:
    router, (engine,) = await behind(stage, stream(delta("A"), *tail))
    answer = await router.post(CHAT, BODY)
    assert answer.content.startswith(delta("A"))
    assert the_error(CHAT, answer.content.removeprefix(delta("A"))) == "engine_truncated"
    assert endpoints(router)[0].failures == 1
    assert len(engine.requests) == 1


async def test_b08_raw_text_instead_of_a_stream_goes_to_another_engine(stage: Stage) -> None:
    router, (one, two) = await behind(stage, in_turn(stream(RAW)), ORDINARY)
    answers = [await router.post(CHAT, BODY) for _ in range(3)]
    assert all(answer.content.endswith(DONE) for answer in answers)
    assert one.requests
    assert len(two.requests) == 3
    only, _ = await behind(stage, stream(RAW))
    answer = await only.post(CHAT, BODY)
    assert (answer.status_code, error_code(answer)) == (502, "engine_truncated")
