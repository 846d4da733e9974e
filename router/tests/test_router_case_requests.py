"""Requests, bodies and HTTP, by the ids of the reports they come from."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from hlserve_api.routing import QueueRule
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
from hlserve_router.testing.engine import ScriptedEngine
from hlserve_router.testing.running import Face, RunningRouter
from hlserve_router.testing.scripts import COMPLETION, ORDINARY
from hlserve_router.testing.stage import Stage
from hlserve_router.testing.wire import Wire, request_head
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


MIB = 1 << 20
PIECE = b"x" * 50_000


@pytest.mark.parametrize("declared", [True, False], ids=["B27: declared", "B27: in chunks"])
async def test_b27_a_body_above_the_cap_can_read_its_answer(stage: Stage, declared: bool) -> None:
    router, engine = await set_up(stage, body_max_bytes=MIB)
    wire = await stage.wire(router)
    framing = "content-length: 5000000" if declared else "transfer-encoding: chunked"
    await wire.send(request_head(CHAT, framing))
    for _ in range(100):  # a client that looks at the answer only after all of its body
        await wire.send(PIECE if declared else b"%x\r\n%b\r\n" % (len(PIECE), PIECE))
    if not declared:
        await wire.send(b"0\r\n\r\n")
    await assert_told_the_cap(wire)
    assert await wire.rest() == b""
    assert not engine.requests


@pytest.mark.parametrize(
    ("framing", "pieces"),
    [
        pytest.param("content-length: 5000000", 0, id="B27: declared, none of it sent"),
        pytest.param("content-length: 99999999999999", 1, id="B27: declared beyond all measure"),
        pytest.param("transfer-encoding: chunked", MIB // len(PIECE) + 1, id="B27: in chunks, one chunk too many"),
    ],
)
async def test_b27_is_told_before_the_rest_of_the_body_comes(stage: Stage, framing: str, pieces: int) -> None:
    router, engine = await set_up(stage, body_max_bytes=MIB)
    wire = await stage.wire(router)
    await wire.send(request_head(CHAT, framing))
    for _ in range(pieces):
        await wire.send(b"%x\r\n%b\r\n" % (len(PIECE), PIECE))
    await assert_told_the_cap(wire)
    assert not engine.requests


async def assert_told_the_cap(wire: Wire) -> None:
    status, headers, body = await wire.answer()
    assert (status, headers["connection"]) == (413, ["close"])
    assert "1048576 bytes" in json.loads(body)["error"]["message"]
    assert json.loads(body)["error"]["code"] == "body_too_large"


async def test_b27_a_body_of_exactly_the_cap_is_served(stage: Stage) -> None:
    router, engine = await set_up(stage, body_max_bytes=MIB)
    body = BODY[:-1] + b" " * (MIB - len(BODY)) + b"}"
    assert (await router.post(CHAT, body)).status_code == 200
    assert engine.requests[0].body == body
    refused = await router.post(CHAT, body + b" ")
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")


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


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/embeddings", "/v1/messages", "/tokenize"], ids=lambda path: f"B32: {path}/"
)
async def test_b32_a_slash_at_the_end_is_served_without_a_redirect(stage: Stage, path: str) -> None:
    router, engine = await set_up(stage)
    answer = await router.post(path + "/", {**NS, "input": "x", "prompt": "x", "max_tokens": 5})
    assert (answer.status_code, answer.content) == (200, COMPLETION)
    assert engine.requests[0].path == path
    assert "location" not in answer.headers


async def test_b32_models_and_health_with_a_slash_at_the_end(stage: Stage) -> None:
    router, _ = await set_up(stage)
    for path in ("/v1/models/", "/v1/models/m1/", "/healthz/", "/readyz/"):
        answer = await router.http.get(router.url + path, headers={"authorization": f"Bearer {AGENT_KEY}"})
        assert (path, answer.status_code, "location" in answer.headers) == (path, 200, False)


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
        pytest.param("APPLICATION/JSON", BODY, 200, id="B34: a type in capitals"),
        pytest.param("multipart/form-data; boundary=x", BODY, 415, id="B34: a form"),
        pytest.param("application/jsonx", BODY, 415, id="B34: a type that only begins like JSON"),
        pytest.param("application/json", b"", 400, id="B34: an empty body"),
        pytest.param("application/json", b'{"model":', 400, id="B34: a body that stops"),
        pytest.param("application/json", b"[]", 400, id="B34: a list"),
        pytest.param("application/json", b'"x"', 400, id="B34: a word"),
        pytest.param("application/json", b'{"model":5}', 400, id="B34: a number as model"),
        pytest.param("application/json", BODY + BODY, 400, id="B34: two documents"),
        pytest.param("application/json", BODY.replace(b"hi", b"\xff"), 400, id="B34: bytes that are no UTF-8"),
        pytest.param("application/json", b'{"model":"m1","n":NaN}', 400, id="B34: NaN"),
        pytest.param("application/json", BODY.replace(b"hi", b"\x00"), 400, id="B34: a NUL inside a string"),
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
    if status != 200:
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert len(answer.json()["error"]["message"]) < 400


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


@pytest.mark.parametrize("comes", [False, True], ids=["B35: no engine comes", "B35: one comes in time"])
async def test_b35_a_known_model_without_an_engine_is_waited_for(stage: Stage, comes: bool) -> None:
    engine = await stage.engine(ORDINARY)
    route = a_class("agent", "agents", queue=QueueRule(ttl_milliseconds=5_000 if comes else 300))
    router = await stage.router(a_table(a_pool("agents"), route))
    before = asyncio.get_running_loop().time()
    asking = asyncio.create_task(router.post(CHAT, NS))
    await router.until(lambda: router.router.proxy.admission.waiting == 1)
    if comes:
        router.write("table.json", a_table(a_pool("agents", engine.url), route, generation="g2"))
        assert (await asking).content == COMPLETION
        return
    answer = await asking
    assert asyncio.get_running_loop().time() - before >= 0.3
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "scaling_from_zero")
    assert 1 <= int(answer.headers["retry-after"]) <= 60


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


async def test_b39_models_come_from_the_routers_own_state(stage: Stage) -> None:
    engine = await stage.engine(ORDINARY)
    table = a_table(
        a_pool("chat", engine.url, aliases=("fast",)), a_pool("agents", "http://127.0.0.1:1", aliases=("fast", "m1")),
        a_pool("other", "http://127.0.0.1:1", model="m2"),
        a_class("interactive", "chat", "agents"), a_class("agent", "agents"), a_class("batch", "other"),
    )  # fmt: skip
    router = await stage.router(table)
    await router.until(lambda: not router.router.proxy.pools.pools["agents"].endpoints["agents-0"].reachable)

    async def get(path: str, key: str | None = INTERACTIVE_KEY) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        return await router.http.get(router.url + path, headers=headers)

    before = asyncio.get_running_loop().time()
    listed = await get("/v1/models")
    assert asyncio.get_running_loop().time() - before < 0.15
    assert listed.status_code == 200
    assert sorted(model["id"] for model in listed.json()["data"]) == ["fast", "m1"]
    assert [model["id"] for model in (await get("/v1/models", BATCH_KEY)).json()["data"]] == ["m2"]
    nobody = await get("/v1/models", None)
    assert (nobody.status_code, nobody.headers["www-authenticate"]) == (401, "Bearer")
    assert (await get("/v1/models/m1")).json()["id"] == "m1"
    for hidden in ("nope", "m2", "m1x"):
        missing = await get(f"/v1/models/{hidden}")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    assert not engine.requests


def test_b40_addresses_of_six() -> None:
    link = link_to("http://[fd00::17]:30000")
    assert (link.host, link.port, link.authority) == ("fd00::17", 30000, b"[fd00::17]:30000")
    with bind("::1", 0) as listener:
        assert url_of(listener).startswith("http://[::1]:")
    with bind("::", 0) as both:
        assert url_of(both).startswith("http://[::]:")


@pytest.mark.parametrize(
    "preface",
    [
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="B41: the preface"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", id="B41: preface and settings"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="B41: TLS on a plain port"),
    ],
)  # fmt: skip
async def test_b41_other_protocols_on_this_port_are_a_clean_400(
    stage: Stage, caplog: pytest.LogCaptureFixture, preface: bytes
) -> None:
    router, _ = await set_up(stage)
    wire = await stage.wire(router)
    await wire.send(preface)
    assert (await wire.head())[0] in (400, 505)
    assert not [record for record in caplog.records if record.exc_info]
    assert (await router.post(CHAT, NS)).status_code == 200, "others are not touched"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(
            ("connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABk"), id="B41: h2c"
        ),
        pytest.param(("connection: upgrade", "upgrade: websocket"), id="B41: websocket"),
    ],
)
async def test_b41_an_offer_to_upgrade_is_not_taken(stage: Stage, face: Face, lines: tuple[str, ...]) -> None:
    router, engine = await set_up(stage)
    wire = await stage.wire(router)
    await wire.send(request_head(CHAT, *lines, f"content-length: {len(BODY)}"), BODY)
    status, headers, body = await wire.answer()
    assert "upgrade" not in headers
    if face is Face.ASGI:  # its server drops the body of such a request
        assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_json")
        assert not engine.requests
        return
    assert (status, body) == (200, COMPLETION)
    assert engine.requests[0].body == BODY
    assert engine.requests[0].header("upgrade") is None
    assert engine.requests[0].header("http2-settings") is None


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
