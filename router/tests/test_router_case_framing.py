"""Where a message ends, on both sides: one framing header each way, and no answer whose end is in doubt."""

import asyncio
import json

import pytest

from hlserve_router.testing.cases import BODY, CHAT, NS, behind, endings, endpoints, error_code, still_held
from hlserve_router.testing.documents import AGENT_KEY
from hlserve_router.testing.engine import Play, Session
from hlserve_router.testing.scripts import COMPLETION, DONE, ORDINARY, delta, event, passed_on
from hlserve_router.testing.stage import Stage
from hlserve_router.testing.wire import request_head

SENT = json.dumps(NS).encode()
BIG = b'{"x":"%b"}' % (b"y" * 2040)
CHUNKED_BIG = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BIG), BIG)
HOP_BY_HOP = {
    "connection", "x-private", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "upgrade", "transfer-encoding",
}  # fmt: skip


def answers(*lines: str, body: bytes, then_close: bool = False) -> Play:
    """An engine that answers 200 with exactly these header lines and bytes."""

    async def play(session: Session) -> None:
        head = "\r\n".join(["HTTP/1.1 200 OK", "content-type: application/json", *lines])
        await session.raw(head.encode("latin-1") + b"\r\n\r\n" + body)
        if then_close:
            await passed_on()
            session.close()

    return play


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        pytest.param(("tRaNsFeR-eNcOdInG: chunked", "Content-Length: 10"), CHUNKED_BIG, id="B29: chunked and a length"),
        pytest.param(("Content-Length: 10", "Transfer-Encoding: chunked"), CHUNKED_BIG, id="B29: a length and chunked"),
        pytest.param(("Content-Length: 10", "content-length: 2048"), BIG, id="B29: two lengths"),
        pytest.param(("Content-Length: 2048", "content-length: 2048"), BIG, id="B29: one length said twice"),
        pytest.param(("Content-Length: 10, 2048",), BIG, id="B29: two lengths in one header"),
        pytest.param(("Content-Length: -1",), BIG, id="B29: a negative length"),
        pytest.param(("Content-Length: 0x800",), BIG, id="B29: a length in hexadecimal"),
        pytest.param(("Content-Length: 99999999999999999999999",), BIG, id="B29: a length beyond all measure"),
        pytest.param(("Transfer-Encoding: chunked",), b"zz\r\n" + BIG, id="B29: a chunk size that is no number"),
        pytest.param(("Transfer-Encoding: chunked",), b"fffffffffffffffffff\r\n" + BIG, id="B29: a chunk size beyond all measure"),
        pytest.param(("Transfer-Encoding: chunked", "bad header : x"), CHUNKED_BIG, id="B29: a space before the colon"),
        pytest.param(("Transfer-Encoding: chunked", "x: a\x00b"), CHUNKED_BIG, id="B29: a NUL in a header"),
    ],
)  # fmt: skip
async def test_b29_an_answer_whose_end_is_in_doubt_is_a_502_and_no_hang(
    stage: Stage, lines: tuple[str, ...], body: bytes
) -> None:
    router, engines = await behind(stage, *[answers(*lines, body=body)] * 2, pool={"aliases": ("a-much-longer-name",)})
    answer = await router.post(CHAT, {**NS, "model": "a-much-longer-name"})
    assert (answer.status_code, error_code(answer)) == (502, "engine_protocol")
    assert endings(router) == [("engine_error", "engine_protocol")]
    assert all(state.failures for state in endpoints(router) if state.failures)
    assert not [link for link in (state.link for state in endpoints(router)) if link.idle], (
        "no such connection is used again"
    )
    assert all(engine.requests[0].json["model"] == "m1" for engine in engines if engine.requests)
    assert still_held(router) == {}


@pytest.mark.parametrize(
    ("lines", "body", "then_close"),
    [
        pytest.param(("Transfer-Encoding: Chunked",), CHUNKED_BIG, False, id="B29: chunked in mixed case"),
        pytest.param(("Transfer-Encoding: chunked", "Trailer: x-t"), CHUNKED_BIG[:-2] + b"x-t: 1\r\n\r\n", False, id="B29: a trailer"),
        pytest.param(("Transfer-Encoding: chunked",), b"800;a=b\r\n" + BIG + b"\r\n0;c\r\n\r\n", False, id="B29: chunk extensions"),
        pytest.param(("Content-Length: 002048",), BIG, False, id="B29: a length with zeros before it"),
        pytest.param((), BIG, True, id="B29: the end of the connection"),
        pytest.param(("Connection: close", "Content-Length: 2048"), BIG, True, id="B29: a length, then the end"),
    ],
)  # fmt: skip
async def test_b29_the_client_gets_one_framing_header_and_the_right_length(
    stage: Stage, lines: tuple[str, ...], body: bytes, then_close: bool
) -> None:
    assert len(BIG) == 2048
    router, _ = await behind(stage, answers(*lines, body=body, then_close=then_close))
    wire = await stage.wire(router)
    for _ in range(2):
        await wire.send(request_head(CHAT, f"content-length: {len(SENT)}"), SENT)
        status, headers, got = await wire.answer()
        assert (status, got) == (200, BIG)
        assert headers["content-length"] == ["2048"]
        assert not HOP_BY_HOP & set(headers)


async def test_b29_an_alias_changes_the_length_and_the_engine_is_told_the_new_one(stage: Stage) -> None:
    router, (engine,) = await behind(stage, ORDINARY, pool={"aliases": ("a-much-longer-name",)})
    body = json.dumps({**NS, "model": "a-much-longer-name"}).encode()
    wire = await stage.wire(router)
    pieces = (body[:7], body[7:])
    await wire.send(
        request_head(CHAT, "transfer-encoding: chunked"), *(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces), b"0\r\n\r\n"
    )
    assert (await wire.answer())[0] == 200
    (seen,) = engine.requests
    want = body.replace(b"a-much-longer-name", b"m1")
    assert seen.body == want
    assert [header for header in seen.headers if header[0] in ("content-length", "transfer-encoding")] == [
        ("content-length", str(len(want)))
    ]


async def test_b29_headers_of_one_hop_stay_on_it(stage: Stage) -> None:
    hop = ("Connection: X-Private, keep-alive, Vary", "X-Private: 1", "Vary: x", "Keep-Alive: timeout=5", "TE: x",
           "Proxy-Authenticate: Basic", "Proxy-Connection: close", "Trailer: x", "Upgrade: h2c", "Transfer-Encoding: Chunked",
           "etag: 1")  # fmt: skip
    router, (engine,) = await behind(
        stage, answers(*hop, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(COMPLETION), COMPLETION))
    )
    wire = await stage.wire(router)
    sent = ("connection: x-private, traceparent", "x-private: 1", "te: trailers", "proxy-authorization: Basic x",
            "keep-alive: 5", "traceparent: 00-0-0-00", "trailer: x")  # fmt: skip
    await wire.send(request_head(CHAT, *sent, f"content-length: {len(SENT)}"), SENT)
    status, headers, body = await wire.answer()
    assert (status, body, headers["etag"]) == (200, COMPLETION, ["1"])
    assert not (HOP_BY_HOP | {"vary"}) & set(headers)
    assert headers["content-length"] == [str(len(COMPLETION))]
    assert not HOP_BY_HOP & {name for name, _ in engine.requests[0].headers}


@pytest.mark.parametrize(
    "status", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"]
)
async def test_b29_an_interim_answer_of_the_engine_is_not_the_answer(stage: Stage, status: bytes) -> None:
    async def play(session: Session) -> None:
        await session.raw(status)
        await passed_on()
        await ORDINARY(session)

    router, (engine,) = await behind(stage, play)
    for body in (NS, BODY):
        answer = await router.post(CHAT, body)
        assert (answer.status_code, "link" in answer.headers) == (200, False)
        assert answer.content == COMPLETION or answer.content.endswith(DONE)
    assert len(engine.requests) == 2


@pytest.mark.parametrize("size", [1, 7, 4096, 70_000], ids=lambda size: f"B28: chunks of {size}")
async def test_b28_a_body_in_chunks(stage: Stage, size: int) -> None:
    router, (engine,) = await behind(stage, ORDINARY)
    wire = await stage.wire(router)
    body = json.dumps({**NS, "pad": "é" * (300 if size == 1 else 40_000)}).encode()
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    await wire.send(
        request_head(CHAT, "Transfer-Encoding: chunked", "trailer: x-digest"),
        b"".join(b"%X;ext=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces),
        b"0\r\nx-digest: abc\r\nauthorization: Bearer other\r\n\r\n",
    )
    assert (await wire.answer())[0] == 200
    (seen,) = engine.requests
    assert seen.body == body
    framing = ("content-length", "transfer-encoding", "trailer", "x-digest", "authorization")
    assert [header for header in seen.headers if header[0] in framing] == [("content-length", str(len(body)))]
    await wire.send(request_head(CHAT, f"content-length: {len(SENT)}"), SENT)
    assert (await wire.answer())[0] == 200, "the connection is at the next request"


async def test_b28_odd_chunks_in_segments_of_their_own(stage: Stage) -> None:
    router, (engine,) = await behind(stage, ORDINARY)
    wire = await stage.wire(router)
    body = json.dumps({**NS, "pad": "x" * 4096}).encode()
    await wire.send(request_head(CHAT, "transfer-encoding: chunked"))
    for piece in (body[:1], body[1:8], body[8:4104], body[4104:]):
        for segment in (b"%x" % len(piece), b"\r", b"\n" + piece, b"\r\n"):
            await wire.send(segment)
            await passed_on()
    await wire.send(b"0\r\nx-digest: abc\r\n\r\n")
    assert (await wire.answer())[0] == 200
    assert engine.requests[0].body == body


async def test_a_stream_of_an_engine_that_closes_at_its_end_is_chunked_for_the_client(stage: Stage) -> None:
    async def play(session: Session) -> None:
        await session.raw(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + delta("A"))
        await asyncio.sleep(0.01)
        await session.raw(event({"choices": []}) + DONE)
        session.close()

    router, _ = await behind(stage, play)
    wire = await stage.wire(router)
    body = json.dumps(BODY).encode()
    await wire.send(request_head(CHAT, f"content-length: {len(body)}", f"x-api-key: {AGENT_KEY}"), body)
    status, headers = await wire.head()
    assert (status, headers["transfer-encoding"], "content-length" in headers) == (200, ["chunked"], False)
    async with asyncio.timeout(5):
        assert (await wire.reader.readuntil(b"\r\n0\r\n\r\n")).count(DONE) == 1
