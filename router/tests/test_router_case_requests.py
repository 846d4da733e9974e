"""Requests, bodies, HTTP and trust, by the ids of the reports they come from."""

import asyncio
import json
import logging
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hlserve_api.answers import Reason
from hlserve_router.errors import Refusal
from hlserve_router.proxy import Clocks, Proxy
from hlserve_router.server import bind, url_of
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
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import COMPLETION, ORDINARY, held
from hlserve_router.testing.stage import Stage
from hlserve_router.testing.wire import request_head
from hlserve_router.upstream import link_to

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
BODY = json.dumps(NS).encode()


async def set_up(stage: Stage, play: Any = ORDINARY, **settings: Any) -> tuple[RunningRouter, ScriptedEngine]:
    engine = await stage.engine(play)
    table = a_table(
        a_pool("chat", engine.url), a_pool("agents", engine.url), a_class("interactive", "chat"), a_class("agent", "agents"),
        a_class("batch", "agents"),
    )  # fmt: skip
    return await stage.router(table, **settings), engine


async def test_b19_a_client_that_leaves_is_no_error_in_the_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    router, engine = await set_up(stage, held(asyncio.Event(), ORDINARY))
    wire = await stage.wire(router)
    await wire.send(request_head(CHAT, f"content-length: {len(BODY)}"), BODY)
    await engine.wait_for(lambda: engine.open_sessions == 1)
    wire.hang_up()
    await engine.wait_for(lambda: engine.open_sessions == 0, 1.0)
    await router.until(lambda: not router.router.face.relays)
    ours = [r for r in caplog.records if r.name.startswith(("hlserve", "uvicorn"))]
    assert [record.getMessage() for record in ours if record.levelno > logging.INFO] == []
    assert next(r for r in ours if r.getMessage() == "request").__dict__["fields"]["outcome"] == "client_gone"


@pytest.mark.parametrize("declared", [True, False], ids=["B27: declared", "B27: in chunks"])
async def test_b27_a_body_above_the_cap_can_read_its_answer(stage: Stage, declared: bool) -> None:
    router, engine = await set_up(stage, body_max_bytes=1 << 20)
    wire = await stage.wire(router)
    framing = "content-length: 5000000" if declared else "transfer-encoding: chunked"
    await wire.send(request_head(CHAT, framing))
    piece = b"x" * 50_000
    for _ in range(100):  # a client that looks at the answer only after all of its body
        await wire.send(piece if declared else b"%x\r\n%b\r\n" % (len(piece), piece))
    if not declared:
        await wire.send(b"0\r\n\r\n")
    status, headers, body = await wire.answer()
    assert status == 413
    assert headers["connection"] == ["close"]
    assert "1048576 bytes" in json.loads(body)["error"]["message"]
    assert json.loads(body)["error"]["code"] == "body_too_large"
    assert await wire.rest() == b""
    assert not engine.requests


async def test_b28_odd_chunks_and_a_trailer(stage: Stage) -> None:
    router, engine = await set_up(stage)
    wire = await stage.wire(router)
    body = json.dumps({**NS, "pad": "x" * 4096}).encode()
    pieces = [body[:1], body[1:8], body[8:4104], body[4104:]]
    await wire.send(
        request_head(CHAT, "transfer-encoding: chunked", "trailer: x-digest"),
        *(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces),
        b"0\r\nx-digest: abc\r\n\r\n",
    )
    assert (await wire.answer())[0] == 200
    seen = engine.requests[0]
    assert seen.body == body
    assert [header for header in seen.headers if header[0] in ("content-length", "transfer-encoding", "trailer")] == [
        ("content-length", str(len(body)))
    ]
    assert seen.header("x-digest") is None


async def test_b29_headers_of_one_hop_stay_on_it(stage: Stage) -> None:
    async def play(session: Session) -> None:
        hop = ["Connection: X-Private, keep-alive", "X-Private: 1", "Keep-Alive: timeout=5", "Proxy-Authenticate: Basic", "TE: x",
               "Trailer: x", "Upgrade: h2c", "Transfer-Encoding: Chunked", "x-kept: 1"]  # fmt: skip
        head = "\r\n".join(["HTTP/1.1 200 OK", "content-type: application/json", *hop]) + "\r\n\r\n"
        await session.raw(head.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(COMPLETION), COMPLETION))

    router, engine = await set_up(stage, play)
    wire = await stage.wire(router)
    hop_by_hop = ("connection: x-private", "x-private: 1", "te: trailers", "proxy-authorization: Basic x")
    await wire.send(request_head(CHAT, *hop_by_hop, f"content-length: {len(BODY)}"), BODY)
    status, headers, body = await wire.answer()
    assert (status, body, headers["x-kept"]) == (200, COMPLETION, ["1"])
    gone = {
        "connection",
        "x-private",
        "keep-alive",
        "proxy-authenticate",
        "te",
        "trailer",
        "upgrade",
        "transfer-encoding",
    }
    assert not gone & set(headers)
    assert headers["content-length"] == [str(len(COMPLETION))]
    sent = {name for name, _ in engine.requests[0].headers}
    assert not sent & {"connection", "x-private", "te", "proxy-authorization"}


async def test_b31_expect_100_continue(stage: Stage) -> None:
    router, engine = await set_up(stage)
    wire = await stage.wire(router)
    body = json.dumps({**NS, "pad": "x" * 2_000_000}).encode()
    before = asyncio.get_running_loop().time()
    await wire.send(request_head(CHAT, f"content-length: {len(body)}", "expect: 100-continue"))
    assert (await wire.head())[0] == 100
    assert asyncio.get_running_loop().time() - before < 0.15
    await wire.send(body)
    assert (await wire.answer())[0] == 200
    assert engine.requests[0].body == body
    assert engine.requests[0].header("expect") is None


async def test_b31_a_wrong_key_is_told_instead_of_100_and_ends_the_connection(stage: Stage) -> None:
    router, engine = await set_up(stage)
    wire = await stage.wire(router)
    await wire.send(request_head(CHAT, "content-length: 2000000", "expect: 100-continue", key="wrong-key-wrong-key"))
    status, headers, _ = await wire.answer()
    assert (status, headers["www-authenticate"], headers["connection"]) == (401, ["Bearer"], ["close"])
    assert await wire.rest() == b""
    assert not engine.requests


@pytest.mark.parametrize(
    ("path", "named"),
    [
        pytest.param("/v1/v1/chat/completions", "/v1/chat/completions", id="B32: the prefix twice"),
        pytest.param("/chat/completions", "/v1/chat/completions", id="B32: no prefix"),
        pytest.param("//v1/models", "/v1/models", id="B32: two slashes"),
        pytest.param("/models", "/v1/models", id="B32: models without prefix"),
    ],
)
async def test_b32_a_wrong_path_is_told_the_right_one(stage: Stage, path: str, named: str) -> None:
    router, engine = await set_up(stage)
    answer = await router.post(path, NS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_path")
    assert f"did you mean {named}?" in answer.json()["error"]["message"]
    assert not engine.requests


async def test_b32_a_slash_at_the_end_is_served_without_a_redirect(stage: Stage) -> None:
    router, engine = await set_up(stage)
    assert (await router.post(CHAT + "/", NS)).content == COMPLETION
    assert engine.requests[0].path == CHAT


@pytest.mark.parametrize("method", ["OPTIONS", "HEAD", "PUT"])
async def test_b33_no_cors_header_comes_unasked(stage: Stage, method: str) -> None:
    router, _ = await set_up(stage)
    headers = {"origin": "https://app.example", "access-control-request-headers": "authorization,x-session-id"}
    answers = [await router.http.request(method, router.url + CHAT, headers=headers)]
    answers.append(await router.http.post(router.url + CHAT, json=NS, headers={"origin": "https://app.example"}))
    assert [answer.status_code for answer in answers] == [405, 401]
    assert not [name for answer in answers for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        pytest.param("application/json; charset=utf-8", BODY, 200, id="B34: a charset"),
        pytest.param("application/vnd.api+json", BODY, 200, id="B34: another kind of JSON"),
        pytest.param(None, BODY, 200, id="B34: no type at all"),
        pytest.param("text/plain", BODY, 415, id="B34: text"),
        pytest.param("application/json", b"", 400, id="B34: an empty body"),
        pytest.param("application/json", b"\xef\xbb\xbf" + BODY, 400, id="B34: a byte order mark"),
        pytest.param("application/json", BODY.decode().encode("utf-16"), 400, id="B34: UTF-16"),
        pytest.param("application/json", b"[" * 100_000, 400, id="B34: a hundred thousand brackets"),
        pytest.param("application/json", b'{"model":"m1","x":' + b"[" * 100_000, 400, id="B34: brackets inside"),
        pytest.param("application/json", b'{"model":"m1","model":"other"}', 400, id="B34: model twice"),
    ],
)
async def test_b34_bodies_and_types(stage: Stage, content_type: str | None, body: bytes, status: int) -> None:
    router, engine = await set_up(stage)
    headers = {"authorization": f"Bearer {AGENT_KEY}", **({"content-type": content_type} if content_type else {})}
    answer = await router.http.post(router.url + CHAT, content=body, headers=headers)
    assert answer.status_code == status
    assert len(engine.requests) == (1 if status == 200 else 0)
    if status == 400:
        assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_b35_unknown_and_forbidden_models_cannot_be_told_apart(stage: Stage) -> None:
    engine = await stage.engine(ORDINARY)
    keys = a_keyring(a_key(AGENT_KEY, "coder", "agent", models=("other",)), a_key(BATCH_KEY, "nightly", "agent"))
    router = await stage.router(a_table(a_pool("agents", engine.url), a_class("agent", "agents")), keys)
    forbidden = await router.post(CHAT, NS, AGENT_KEY)
    unknown = await router.post(CHAT, {**NS, "model": "m9"}, BATCH_KEY)
    assert forbidden.status_code == unknown.status_code == 404
    assert forbidden.text.replace("'m1'", "X") == unknown.text.replace("'m9'", "X")
    missing = await router.post(CHAT, {"messages": []}, BATCH_KEY)
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "model")
    assert not engine.requests


async def test_b36_the_answer_names_the_real_model(stage: Stage) -> None:
    engine = await stage.engine(ORDINARY)
    router = await stage.router(
        a_table(a_pool("agents", engine.url, aliases=("gpt-fast",)), a_class("agent", "agents"))
    )
    whole = await router.post(CHAT, {**NS, "model": "gpt-fast"})
    assert whole.content == COMPLETION
    streamed = await router.post(CHAT, {**NS, "model": "gpt-fast", "stream": True})
    assert streamed.content.count(b'"model": "m1"') == 3
    embedded = await router.post("/v1/embeddings", {"model": "gpt-fast", "input": "x"})
    assert embedded.status_code == 200
    assert [request.json["model"] for request in engine.requests] == ["m1"] * 3


@pytest.mark.parametrize(
    "fields", [{"max_completion_tokens": 50}, {"max_tokens": 5, "max_completion_tokens": 9}, {"max_tokens": -1}]
)
async def test_b38_output_limits_pass_as_they_are(stage: Stage, fields: dict[str, int]) -> None:
    router, engine = await set_up(stage)
    sent = json.dumps({**NS, **fields}).encode()
    await router.post(CHAT, sent)
    assert engine.requests[0].body == sent


def test_b40_addresses_of_six() -> None:
    link = link_to("http://[fd00::17]:30000")
    assert (link.host, link.port, link.authority) == ("fd00::17", 30000, b"[fd00::17]:30000")
    with bind("::1", 0) as listener:
        assert url_of(listener).startswith("http://[::1]:")
    with bind("::", 0) as both:
        assert url_of(both).startswith("http://[::]:")


async def test_b41_http_2_on_this_port_is_a_clean_400(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    router, _ = await set_up(stage)
    wire = await stage.wire(router)
    await wire.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert (await wire.head())[0] in (400, 505)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("lines", "path", "status"),
    [
        pytest.param([f"authorization: bearer {AGENT_KEY}"], CHAT, 200, id="B42: bearer in lower case"),
        pytest.param([f"authorization: BEARER  {AGENT_KEY}"], CHAT, 200, id="B42: two spaces"),
        pytest.param(["authorization: Bearer"], CHAT, 401, id="B42: nothing behind the word"),
        pytest.param(["authorization: Basic c2s="], CHAT, 401, id="B42: Basic"),
        pytest.param([f"authorization: Bearer {AGENT_KEY}"] * 2, CHAT, 401, id="B42: Authorization twice"),
        pytest.param([f"x-api-key: {AGENT_KEY}"], "/v1/messages", 200, id="B42: x-api-key"),
        pytest.param([f"x-api-key: {AGENT_KEY}", "authorization: Bearer other"], CHAT, 401, id="B42: two keys"),
        pytest.param(["authorization: Bearer sk-Bearer x"], CHAT, 401, id="B42: the word inside a key"),
        pytest.param(["authorization: Bearer schl\xfcssel"], CHAT, 401, id="B45: a key that is not ASCII"),
        pytest.param(["authorization: Bearer " + "k" * 5000], CHAT, 401, id="B45: a key of 5 KB"),
        pytest.param(["authorization: Bearer " + "k" * 1_000_000], CHAT, 431, id="B45: a key of a megabyte"),
        pytest.param(["authorization: Bearer ' OR 1=1--"], CHAT, 401, id="B48: SQL"),
        pytest.param(["authorization: Bearer {{7*7}}"], CHAT, 401, id="B48: a template"),
        pytest.param(["authorization: Bearer ../../etc/passwd"], CHAT, 401, id="B48: a path"),
        pytest.param(["authorization: Bearer sk-\x00x"], CHAT, 400, id="B48: a NUL is no HTTP"),
    ],
)
async def test_b42_b45_b48_keys_on_the_wire(stage: Stage, lines: list[str], path: str, status: int) -> None:
    router, engine = await set_up(stage)
    wire = await stage.wire(router)
    first = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {len(BODY)}"]
    await wire.send("\r\n".join([*first, *lines]).encode("latin-1") + b"\r\n\r\n" + BODY)
    got, headers, _ = await wire.answer()
    assert got == status
    assert headers.get("www-authenticate") == (["Bearer"] if status == 401 else None)
    assert len(engine.requests) == (1 if status == 200 else 0)


async def test_b44_two_credentials_overlap_count_together_and_the_old_one_expires(stage: Stage) -> None:
    engine = await stage.engine(ORDINARY)
    new, limits = "hls_rotated_0123456789abcdef0123456789abcde", {"requestsPerMinute": 3}
    soon = datetime.now(UTC) + timedelta(minutes=10)

    def keys(until: datetime, generation: str) -> Any:
        return a_keyring(
            a_key(AGENT_KEY, "team-a", "agent", credential="old", not_after=until, limits=limits),
            a_key(new, "team-a", "agent", credential="new", limits=limits), generation=generation,
        )  # fmt: skip

    router = await stage.router(a_table(a_pool("agents", engine.url), a_class("agent", "agents")), keys(soon, "k1"))
    assert [(await router.post(CHAT, NS, key)).status_code for key in (AGENT_KEY, new, AGENT_KEY)] == [200] * 3
    assert (await router.post(CHAT, NS, new)).json()["error"]["code"] == "key_requests"
    router.write("keyring.json", keys(soon - timedelta(hours=1), "k2"))
    await router.until(lambda: list(router.router.proxy.keyrings.generations.values()) == ["k2"])
    expired = await router.post(CHAT, NS, AGENT_KEY)
    assert (expired.status_code, expired.json()["error"]["code"]) == (401, "key_expired")
    assert router.count("hlserve_router_client_requests_total", "team-a", "agent", "ok") == 3


def a_proxy() -> Proxy:
    proxy = Proxy(Clocks(lambda: 0.0, lambda: 0.0), random.Random(1))
    proxy.keyrings.apply("k", a_keyring())
    return proxy


def test_b48_keys_that_nobody_has_leave_nothing_behind() -> None:
    proxy, made = a_proxy(), random.Random(2)
    for _ in range(10_000):
        with pytest.raises(Refusal) as refusal:
            proxy.authenticate(made.randbytes(32))
        assert refusal.value.reason is Reason.INVALID_KEY
    assert (len(proxy.keyrings), len(proxy.limits), len(proxy.pools.sessions)) == (3, 0, 0)


@pytest.mark.parametrize(
    ("key", "asked", "effective", "clamped"),
    [
        pytest.param(BATCH_KEY, "interactive", "batch", 1, id="B47: never raised"),
        pytest.param(INTERACTIVE_KEY, "batch", "batch", 0, id="B47: lowered"),
    ],
)
async def test_b47_forged_headers_and_targets(stage: Stage, key: str, asked: str, effective: str, clamped: int) -> None:
    router, engine = await set_up(stage)
    wire = await stage.wire(router)
    forged = ("x-target-pod: 10.0.0.9", "x-client-id: admin", "x-forwarded-for: 127.0.0.1", f"x-hlserve-class: {asked}",
              "x-hlserve-pool: chat", "x-override-priority: 9", "x-override-rid: 0")  # fmt: skip
    head = request_head(f"http://169.254.169.254{CHAT}", *forged, f"content-length: {len(BODY)}", key=key)
    await wire.send(head.replace(b"host: router", b"host: 169.254.169.254"), BODY)
    status, headers, _ = await wire.answer()
    assert (status, headers["x-hlserve-class"], headers["x-hlserve-pool"]) == (200, [effective], ["agents"])
    assert router.count("hlserve_router_class_clamped_total") == clamped
    seen = engine.requests[0]
    assert (seen.path, seen.header("host")) == (CHAT, engine.url.removeprefix("http://"))
    rid = seen.header("x-override-rid")
    assert rid is not None
    assert rid.startswith("hls-")
    ours = {
        "x-target-pod",
        "x-client-id",
        "x-forwarded-for",
        "x-hlserve-class",
        "x-hlserve-pool",
        "x-override-priority",
    }
    assert not {name for name, _ in seen.headers} & ours
