"""A client's connection: requests sent ahead, their order, keep-alive, limits in time and size, slow readers, the end.

What the server under the ASGI face decides by itself is asked of the splice face alone.
"""

import asyncio
import gc
import json
import socket
from contextlib import suppress
from typing import Any, cast

import pytest

from hlserve_api.answers import Outcome
from hlserve_router import build
from hlserve_router.relay import Relay
from hlserve_router.splice import MAX_AHEAD, READ_BYTES, WRITE_HIGH_BYTES
from hlserve_router.splice_connection import UNPARSED_BYTES
from hlserve_router.splice_request import SplicedRequest
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_pool, a_table, some_timeouts
from hlserve_router.testing.engine import Play, ScriptedEngine, Session
from hlserve_router.testing.running import Face, RunningRouter
from hlserve_router.testing.scripts import (
    COMPLETION,
    DONE,
    ORDINARY,
    begun_until,
    delta,
    held,
    in_turn,
    reply,
    silent,
    stream,
)
from hlserve_router.testing.stage import Stage
from hlserve_router.testing.wire import Wire, request_head

BODY = b'{"model":"m1","messages":[{"role":"user","content":"hi"}]}'
STREAMED = BODY[:-1] + b',"stream":true}'
source_only = pytest.mark.skipif(build.compiled(), reason="its fault is a state that compiled code refuses to take")
splice_only = pytest.mark.parametrize("face", [Face.SPLICE], ids=["face splice"])


def post(body: bytes = BODY, *lines: str, target: str = "/v1/chat/completions") -> bytes:
    """A whole request."""
    return request_head(target, f"content-length: {len(body)}", *lines) + body


async def set_up(stage: Stage, play: Play = ORDINARY, **settings: Any) -> tuple[RunningRouter, ScriptedEngine, Wire]:
    engine = await stage.engine(play)
    table = a_table(a_pool("agents", engine.url), a_class("agent", "agents", timeouts=some_timeouts(total_seconds=3)))
    router = await stage.router(table, **settings)
    return router, engine, await stage.wire(router)


def numbered(count: int) -> Play:
    """Each request gets an answer with its own number."""
    return in_turn(*(reply(b'{"number":%d}' % number) for number in range(count)))


async def test_requests_sent_ahead_are_answered_in_order(stage: Stage) -> None:
    _, engine, wire = await set_up(stage, numbered(5))
    await wire.send(post() * 5)
    assert [json.loads((await wire.answer())[2])["number"] for _ in range(5)] == list(range(5))
    assert len(engine.requests) == 5


async def test_large_bodies_among_requests_sent_ahead_end_where_they_say(stage: Stage) -> None:
    """Most of a large body goes past the parser, which reads on behind it."""
    sizes = (UNPARSED_BYTES - 1, 3 * READ_BYTES, 60, READ_BYTES + UNPARSED_BYTES, 60, 2 * READ_BYTES)
    bodies = [BODY.replace(b"hi", b"%d " % number * (size // 2)) for number, size in enumerate(sizes)]
    _, engine, wire = await set_up(stage, numbered(len(sizes)))
    await wire.send(b"".join(map(post, bodies[:-1])) + post(bodies[-1], "connection: close") + b"left over")
    assert [json.loads((await wire.answer())[2])["number"] for _ in sizes] == list(range(len(sizes)))
    assert [request.body for request in engine.requests] == bodies
    assert await wire.reader.read() == b""


async def test_own_paths_and_refusals_keep_their_place_among_relayed_requests(stage: Stage) -> None:
    _, _, wire = await set_up(stage, numbered(2))
    health = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    await wire.send(post() + health + post(b"{}", target="/v1/nothing") + health + post())
    answers = [await wire.answer() for _ in range(5)]
    assert [status for status, _, _ in answers] == [200, 200, 404, 200, 200]
    assert [json.loads(answers[index][2])["number"] for index in (0, 4)] == [0, 1]
    assert json.loads(answers[1][2]) == {"status": "ok"}


async def test_a_request_behind_a_stream_waits_for_its_end(stage: Stage) -> None:
    release = asyncio.Event()
    _, engine, wire = await set_up(stage, begun_until(release))
    await wire.send(post(STREAMED) + post())
    await wire.reader.readuntil(b'"A"')
    assert len(engine.requests) == 1
    release.set()
    await wire.reader.readuntil(b"0\r\n\r\n")
    status, _, body = await wire.answer()
    assert (status, body) == (200, COMPLETION)


@splice_only
async def test_more_requests_ahead_than_are_kept_end_the_connection_after_the_kept_ones(stage: Stage) -> None:
    router, engine, wire = await set_up(stage)
    await wire.send(post() * (MAX_AHEAD + 40))
    answers = [await wire.answer() for _ in range(MAX_AHEAD + 1)]
    assert {status for status, _, _ in answers} == {200}
    assert [headers.get("connection") for _, headers, _ in answers[-2:]] == [None, ["close"]]
    assert await wire.rest() == b""
    assert len(engine.requests) == MAX_AHEAD + 1
    assert router.count("hlserve_router_requests_total") == MAX_AHEAD + 1


@splice_only
async def test_a_client_that_reads_no_answers_gets_no_further_ones_made(stage: Stage) -> None:
    """Else a client that only sends would fill the router's memory with small answers."""
    router, _, wire = await set_up(stage, linger_seconds=0.05, keep_alive_seconds=0.1)
    client = cast("asyncio.Transport", wire.writer.transport)
    client.pause_reading()
    await router.until(lambda: len(router.router.splice.connections) == 1)
    (connection,) = router.router.splice.connections
    connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    missing = post(b"{}", "x-fill: " + "y" * 8000, target="/v1/nothing")

    async def flood() -> None:
        while True:
            await wire.send(missing)

    flooding = asyncio.create_task(flood())
    await router.until(lambda: connection.flow.write_paused)
    made = router.count("hlserve_router_requests_total")
    assert connection.transport.get_write_buffer_size() < WRITE_HIGH_BYTES + 4096
    await asyncio.sleep(0.05)
    assert router.count("hlserve_router_requests_total") == made
    await router.until(lambda: not router.router.splice.connections)
    flooding.cancel()
    await asyncio.gather(flooding, return_exceptions=True)


async def test_a_connection_is_kept_for_the_next_request_and_closed_when_asked(stage: Stage) -> None:
    _, engine, wire = await set_up(stage)
    for _ in range(3):
        await wire.send(post())
        status, headers, _ = await wire.answer()
        assert (status, headers.get("connection")) == (200, None)
    await wire.send(post(BODY, "connection: close"))
    status, headers, _ = await wire.answer()
    assert (status, headers["connection"]) == (200, ["close"])
    assert await wire.rest() == b""
    assert len(engine.requests) == 4
    assert engine.carriers == 1


@splice_only
async def test_an_idle_connection_is_closed_after_its_time(stage: Stage) -> None:
    _, _, wire = await set_up(stage, keep_alive_seconds=0.05, header_timeout_seconds=60)
    await wire.send(post())
    assert (await wire.answer())[0] == 200
    assert await wire.rest() == b""


@splice_only
@pytest.mark.parametrize(
    "begun", [b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n", b"POST /v1/chat/com", post()[:60]],
    ids=["headers that do not end", "a target that does not end", "a header that does not end"],
)  # fmt: skip
async def test_a_head_that_does_not_come_is_a_408(stage: Stage, begun: bytes) -> None:
    router, engine, wire = await set_up(stage, header_timeout_seconds=0.05)
    await wire.send(begun)
    status, headers, body = await wire.answer()
    assert (status, headers["connection"]) == (408, ["close"])
    assert json.loads(body)["error"]["code"] == "body_timeout"
    await router.until(lambda: router.count("hlserve_router_requests_total") == 1)
    assert not engine.requests


@splice_only
async def test_a_head_that_trickles_in_is_a_408_however_steady(stage: Stage) -> None:
    _, _, wire = await set_up(stage, header_timeout_seconds=0.1)

    async def trickle() -> None:
        for byte in post():
            await wire.send(bytes((byte,)))
            await asyncio.sleep(0.02)

    trickling = asyncio.create_task(trickle())
    assert (await wire.answer())[0] == 408
    trickling.cancel()
    await asyncio.gather(trickling, return_exceptions=True)


@splice_only
async def test_a_connection_that_says_nothing_is_closed(stage: Stage) -> None:
    _, _, wire = await set_up(stage, header_timeout_seconds=0.05)
    assert await wire.rest() == b""


@splice_only
async def test_a_header_that_does_not_end_is_refused_while_it_grows(stage: Stage) -> None:
    router, engine, wire = await set_up(stage, header_max_bytes=2000)
    piece = b"y" * 64 * 1024

    async def grow() -> None:
        await wire.send(request_head()[:-2] + b"x-big: ")
        while True:
            await wire.send(piece)

    growing = asyncio.create_task(grow())
    status, _, body = await wire.answer()
    assert (status, json.loads(body)["error"]["code"]) == (431, "headers_too_large")
    growing.cancel()
    await asyncio.gather(growing, return_exceptions=True)
    assert router.count("hlserve_router_requests_total") == 1
    assert not engine.requests


async def test_a_long_target_counts_as_header(stage: Stage) -> None:
    _, engine, wire = await set_up(stage, header_max_bytes=2000)
    await wire.send(post(target="/v1/chat/completions?" + "q" * 3000))
    status, _, body = await wire.answer()
    assert (status, json.loads(body)["error"]["code"]) == (431, "headers_too_large")
    assert not engine.requests


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/models"], ids=["relayed", "answered by the router"])
async def test_headers_are_bounded_in_count_too(stage: Stage, target: str) -> None:
    router, engine, wire = await set_up(stage, header_max_count=20)
    method = "GET" if target == "/v1/models" else "POST"
    usual = post(target=target).count(b"\r\n") - 2
    fits = [f"x-{number}: y" for number in range(20 - usual)]
    await wire.send(post(BODY, *fits, target=target).replace(b"POST", method.encode(), 1))
    assert (await wire.answer())[0] == 200
    await wire.send(post(BODY, *fits, "x-more: y", target=target).replace(b"POST", method.encode(), 1))
    status, headers, body = await wire.answer()
    assert (status, headers["connection"]) == (431, ["close"])
    assert json.loads(body)["error"]["code"] == "headers_too_large"
    assert "and 20 headers" in json.loads(body)["error"]["message"]
    assert await wire.rest() == b""
    assert len(engine.requests) == (method == "POST")
    assert router.count("hlserve_router_requests_total") == 2


async def test_a_head_of_too_many_headers_is_not_read_to_its_end(stage: Stage) -> None:
    router, engine, wire = await set_up(stage, header_max_count=20)
    await wire.send(request_head("/v1/chat/completions", *["a: b"] * 20)[:-2])
    status, _, body = await wire.answer()
    assert (status, json.loads(body)["error"]["code"]) == (431, "headers_too_large")
    assert not engine.requests
    assert router.count("hlserve_router_requests_total") == 1


@splice_only
async def test_the_body_of_a_call_that_needs_none_is_not_kept(stage: Stage) -> None:
    router, engine, wire = await set_up(stage)
    target = "/v1/responses/resp_1/cancel"
    size = 1024 * 1024
    await wire.send(request_head(target, f"content-length: {size}"), b"x" * (size // 2))

    (connection,) = router.router.splice.connections
    await router.until(lambda: connection._current is not None and connection._current.body_bytes == size // 2)
    assert connection._current is not None
    assert sum(map(len, connection._current.parts)) == 0
    await wire.send(b"x" * (size // 2))
    assert (await wire.answer())[0] in (404, 400)
    assert not engine.requests


@splice_only
async def test_a_trailer_that_does_not_end_is_refused(stage: Stage) -> None:
    router, engine, wire = await set_up(stage, header_max_bytes=2000)
    chunked = request_head("/v1/chat/completions", "transfer-encoding: chunked") + b"%x\r\n%b\r\n0\r\nx-t: " % (
        len(BODY),
        BODY,
    )

    async def grow() -> None:
        await wire.send(chunked)
        while True:
            await wire.send(b"y" * 64 * 1024)

    growing = asyncio.create_task(grow())
    assert (await wire.answer())[0] == 431
    growing.cancel()
    await asyncio.gather(growing, return_exceptions=True)
    assert not engine.requests
    assert not router.router.intake.relays


async def test_a_body_that_does_not_come_frees_what_it_held(stage: Stage) -> None:
    router, engine, wire = await set_up(stage, body_timeout_seconds=0.05, linger_seconds=0.05)
    await wire.send(request_head("/v1/chat/completions", "content-length: 100"), b"{")
    status, headers, body = await wire.answer()
    assert (status, json.loads(body)["error"]["code"]) == (408, "body_timeout")
    assert headers["connection"] == ["close"]
    await router.until(lambda: not router.router.intake.relays)
    assert not engine.requests


async def test_a_refused_request_may_send_its_body_and_the_connection_goes_on(stage: Stage) -> None:
    """The answer does not wait for the body, and the body is not taken for the next request."""
    _, engine, wire = await set_up(stage)
    await wire.send(request_head("/v1/nothing", f"content-length: {len(post())}"))
    assert (await wire.answer())[0] == 404
    await wire.send(post(), post())
    assert (await wire.answer())[0] == 200
    assert len(engine.requests) == 1


NO_KEY = b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\n"
OWN = b"POST /v1/models HTTP/1.1\r\nhost: r\r\n"
PIECE = b"%x\r\n%b\r\n" % (64 * 1024, b"y" * 64 * 1024)


@pytest.mark.parametrize(
    ("head", "statuses"),
    [pytest.param(NO_KEY, {401}, id="without a key"), pytest.param(OWN, {405, 408, 413}, id="to what FastAPI answers")],
)
@pytest.mark.parametrize(
    ("cap", "seconds", "pause"),
    [pytest.param(1_000_000, 60.0, 0.0, id="bounded in bytes"), pytest.param(2**40, 0.5, 0.05, id="bounded in time")],
)
async def test_a_body_that_never_ends_behind_its_answer_ends_the_connection(
    stage: Stage, head: bytes, statuses: set[int], cap: int, seconds: float, pause: float
) -> None:
    """Else whoever can reach the port could hold a connection for ever, without a key."""
    _, _, wire = await set_up(
        stage, body_max_bytes=cap, body_timeout_seconds=seconds, linger_seconds=0.3, keep_alive_seconds=60.0
    )
    await wire.send(head + b"transfer-encoding: chunked\r\n\r\n")
    answer = asyncio.create_task(wire.answer())
    async with asyncio.timeout(20):
        with suppress(ConnectionError):
            while True:
                await wire.send(PIECE)
                await asyncio.sleep(pause)
    assert (await answer)[0] in statuses


@pytest.mark.parametrize("close", [b"", b"connection: close\r\n"], ids=["kept alive", "to be closed"])
async def test_a_client_that_first_sends_all_of_a_refused_body_reads_the_refusal(stage: Stage, close: bytes) -> None:
    """A connection that is closed on unread bytes is reset, and a reset takes along what the client has not read yet."""
    _, _, wire = await set_up(stage)
    client = cast("asyncio.Transport", wire.writer.transport)
    client.pause_reading()
    body = b"z" * 3_000_000
    await wire.send(NO_KEY + close + b"content-length: %d\r\n\r\n" % len(body))
    for start in range(0, len(body), 100_000):
        await wire.send(body[start : start + 100_000])
        await asyncio.sleep(0)
    client.resume_reading()
    status, _, told = await wire.answer()
    assert (status, json.loads(told)["error"]["code"]) == (401, "missing_key")


async def test_a_head_that_never_ends_is_told_so_before_the_connection_ends(stage: Stage) -> None:
    _, _, wire = await set_up(stage)
    client = cast("asyncio.Transport", wire.writer.transport)
    client.pause_reading()
    await wire.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\n")
    with suppress(ConnectionError):
        for number in range(40):
            await wire.send(b"x-%d: %b\r\n" % (number, b"y" * 60_000))
    client.resume_reading()
    assert (await wire.answer())[0] == 431


async def test_a_client_of_http_1_0_is_not_told_to_go_on(stage: Stage) -> None:
    """It knows no answer before the answer."""
    _, _, wire = await set_up(stage)
    head = post().partition(b"\r\n\r\n")[0].replace(b"HTTP/1.1", b"HTTP/1.0")
    await wire.send(head + b"\r\nexpect: 100-continue\r\n\r\n" + post().partition(b"\r\n\r\n")[2])
    assert (await wire.head())[0] == 200


@pytest.mark.parametrize(
    "target",
    ["http://router:8080/v1/chat/completions", "/v1/chat%2Fcompletions", "/v1/chat/completions?beta=true", "/%761/chat/completions/"],
    ids=["absolute form", "an encoded slash", "a query", "an encoded letter and a slash at the end"],
)  # fmt: skip
async def test_targets_in_other_spellings(stage: Stage, target: str) -> None:
    _, engine, wire = await set_up(stage)
    await wire.send(post(target=target))
    assert (await wire.answer())[0] == 200
    assert engine.requests[0].path == "/v1/chat/completions"


async def test_an_http_1_0_client_gets_a_stream_that_ends_with_the_connection(stage: Stage) -> None:
    _, _, wire = await set_up(stage, stream(delta("A"), DONE))
    await wire.send(post(STREAMED).replace(b"HTTP/1.1", b"HTTP/1.0"))
    status, headers = await wire.head()
    assert (status, headers["connection"]) == (200, ["close"])
    assert "transfer-encoding" not in headers
    assert await wire.rest() == delta("A") + DONE


async def test_an_http_1_0_stream_that_breaks_between_events_is_reset(stage: Stage) -> None:
    """The end of the connection would say that the stream is complete."""

    async def breaks(session: Session) -> None:
        await session.head()
        await session.write(delta("A") + b"x" * 100_000)
        session.reset()

    _, _, wire = await set_up(stage, breaks)
    await wire.send(post(STREAMED).replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert (await wire.head())[0] == 200
    with pytest.raises(ConnectionResetError):
        await wire.rest()


async def test_a_head_request_gets_no_body(stage: Stage) -> None:
    _, _, wire = await set_up(stage)
    await wire.send(b"HEAD /v1/chat/completions HTTP/1.1\r\nhost: x\r\n\r\n")
    status, headers = await wire.head()
    assert (status, int(headers["content-length"][0]) > 0) == (405, True)
    await wire.send(post())
    assert (await wire.answer())[0] == 200


@splice_only
@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_body_behind_a_wish_for_another_protocol_is_the_requests_own(stage: Stage, framing: str) -> None:
    """Else a body could hold a request that nobody checked, in front of the next client's request of a proxy."""
    _, engine, wire = await set_up(stage)
    wish = ("connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAAP__")
    if framing == "length":
        await wire.send(post(BODY, *wish), post())
    else:
        head = request_head("/v1/chat/completions", "transfer-encoding: chunked", *wish)
        await wire.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY) + post())
    assert [(await wire.answer())[0] for _ in range(2)] == [200, 200]
    assert [request.body for request in engine.requests] == [BODY, BODY]


@splice_only
async def test_what_is_no_http_behind_a_stream_does_not_break_it(stage: Stage) -> None:
    release = asyncio.Event()
    _, _, wire = await set_up(stage, begun_until(release))
    await wire.send(post(STREAMED))
    await wire.reader.readuntil(b'"A"')
    await wire.send(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
    release.set()
    assert (await wire.rest()).split(b"0\r\n\r\n")[1].startswith(b"HTTP/1.1 400 Bad Request\r\n")


async def test_a_client_that_ends_its_half_has_left(stage: Stage) -> None:
    router, engine, wire = await set_up(stage, silent)
    await wire.send(post())
    await engine.wait_for(lambda: engine.open_sessions == 1)
    wire.writer.write_eof()
    await engine.wait_for(lambda: engine.open_sessions == 0)
    await router.until(lambda: router.count("hlserve_router_client_gone_total") == 1)


async def test_a_slow_reader_holds_back_the_engine_and_loses_nothing(stage: Stage) -> None:
    events = [delta("x" * 8000) for _ in range(1000)]
    router, engine, wire = await set_up(stage, stream(*events, DONE))
    client = cast("asyncio.Transport", wire.writer.transport)
    client.pause_reading()
    await wire.send(post(STREAMED))
    await router.until(lambda: any(relay._paused for relay in router.router.intake.relays))
    for connection in router.router.splice.connections:
        assert connection.transport.get_write_buffer_size() <= WRITE_HIGH_BYTES + 300 * 1024
    client.resume_reading()
    await wire.head()
    async with asyncio.timeout(20):
        got = bytearray()
        while (size := int(await wire.reader.readline(), 16)) > 0:
            got += await wire.reader.readexactly(size)
            await wire.reader.readexactly(2)
    assert bytes(got) == b"".join(events) + DONE
    assert engine.open_sessions == 0


@splice_only
async def test_each_piece_of_a_stream_is_one_chunk(stage: Stage) -> None:
    gate = asyncio.Event()

    async def play(session: Session) -> None:
        await session.head()
        await session.write(delta("A"))
        await session.until(gate)
        await session.write(delta("B"))
        await session.write(DONE)
        await session.end()

    _, _, wire = await set_up(stage, play)
    await wire.send(post(STREAMED))
    await wire.head()
    first = delta("A")
    assert await wire.reader.readexactly(len(first) + 6) == b"%x\r\n%b\r\n" % (len(first), first)
    gate.set()
    assert (await wire.reader.readuntil(b"0\r\n\r\n")).count(b"\r\n") in (4, 6)


@splice_only
async def test_the_servers_end_lets_a_stream_finish_and_closes_idle_connections(stage: Stage) -> None:
    release = asyncio.Event()
    router, _, wire = await set_up(stage, begun_until(release))
    idle = await stage.wire(router)
    await idle.send(post())
    assert (await idle.answer())[0] == 200
    await wire.send(post(STREAMED) + post())
    await wire.reader.readuntil(b'"A"')
    for connection in tuple(router.router.splice.connections):
        connection.shutdown()
    assert await idle.rest() == b""
    release.set()
    rest = await wire.rest()
    assert rest.endswith(DONE + b"\r\n0\r\n\r\n")
    assert router.router.proxy.metrics.value(
        "hlserve_router_requests_total", ("agent", "agents", Outcome.OK.value, "")
    ) == 2  # fmt: skip


@source_only
@splice_only
async def test_a_fault_in_the_face_is_a_500_and_leaves_others_alone(stage: Stage) -> None:
    router, engine, wire = await set_up(stage)
    other = await stage.wire(router)
    keyrings, router.router.proxy.keyrings = router.router.proxy.keyrings, None  # type: ignore[assignment]
    await wire.send(post())
    status, _, body = await wire.answer()
    router.router.proxy.keyrings = keyrings
    assert (status, json.loads(body)["error"]["code"]) == (500, "internal_error")
    assert router.count("hlserve_router_internal_errors_total") == 1
    await other.send(post())
    assert (await other.answer())[0] == 200
    assert len(engine.requests) == 1
    assert AGENT_KEY.encode() not in body


async def test_a_client_that_comes_and_goes_leaves_nothing(stage: Stage) -> None:
    router, engine, _ = await set_up(stage, held(asyncio.Event(), ORDINARY))
    for _ in range(20):
        wire = await stage.wire(router)
        await wire.send(post())
        await engine.wait_for(lambda: engine.open_sessions == 1)
        wire.hang_up()
        await engine.wait_for(lambda: engine.open_sessions == 0)
    await router.until(lambda: not router.router.intake.relays)
    await router.until(lambda: len(router.router.splice.connections) <= 1)


async def test_a_request_that_is_over_is_freed_without_the_garbage_collector(stage: Stage) -> None:
    """A ring of references per request would fill the caches with the dead and make the collector stop the streams."""
    router, _, wire = await set_up(stage)
    gc.collect()
    gc.disable()
    try:
        for body in (BODY, STREAMED, b"{}") * 5:
            await wire.send(post(body))
            await wire.message()
        await router.until(lambda: not any(isinstance(thing, Relay | SplicedRequest) for thing in gc.get_objects()))
    finally:
        gc.enable()
