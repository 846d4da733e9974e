"""What must not get where: prompts, keys and headers into logs and pages; clients' headers to engines; engines' to clients."""

import asyncio
import json
import logging
from typing import Any

import pytest

from hlserve_api.routing import EngineCredential, EngineCredentials
from hlserve_router import build
from hlserve_router.logs import on_loop_error
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_key, a_keyring, a_pool, a_table
from hlserve_router.testing.engine import Session
from hlserve_router.testing.logbook import logbook
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import DONE, ORDINARY, delta, event
from hlserve_router.testing.stage import Stage

CHAT = "/v1/chat/completions"
MARK = "Zx9marked"
PROMPT = f"{MARK}-prompt"
ENGINE_KEY = f"{MARK}-engine-key-0123"
KEY = f"hls_{MARK}_0123456789abcdef0123456789"
BODY: dict[str, Any] = {
    "model": "m1", "messages": [{"role": "user", "content": PROMPT}], "user": f"{MARK}-user", "metadata": {"user_id": f"{MARK}-meta"},
    "tools": [{"type": "function", "function": {"name": f"{MARK}-tool"}}], "prompt_cache_key": f"{MARK}-cache",
}  # fmt: skip
MARKED_HEADERS = {
    "user-agent": f"{MARK}-agent", "x-hlserve-session": f"{MARK}-session", "cookie": f"a={MARK}-cookie", "traceparent": f"{MARK}-trace",
    "anthropic-beta": f"{MARK}-beta", "x-any": f"{MARK}-any",
}  # fmt: skip


async def echoing(session: Session) -> None:
    """An engine that repeats what it was sent wherever it can, and breaks in every way."""
    text = session.request.body.decode()
    match session.request.json.get("seed"):
        case 1:
            await session.reply(json.dumps({"error": {"message": text}}).encode(), 500, [f"x-echo: {PROMPT}"])
        case 2:
            await session.head(headers=[f"x-echo: {PROMPT}"])
            await session.write(delta(PROMPT) + event({"error": {"message": text, "code": 500}}))
            await session.end()
        case 3:
            await session.raw(f"HTTP/1.1 200 {PROMPT}\r\nbad header {PROMPT}\r\n\r\n".encode())
            session.close()
        case 4:
            session.reset()
        case 5:
            await session.head()
            await session.write(delta(PROMPT))
            session.reset()
        case 6:
            await session.reply(json.dumps({"error": {"message": text}}).encode(), 422)
        case _:
            await ORDINARY(session)


class Loud:
    """A state that cannot be, whose fault quotes the request."""

    def deposit(self) -> None:
        raise ValueError(PROMPT)


async def pages(router: RunningRouter) -> str:
    paths = ("/metrics", "/v1/report", "/v1/pools", "/v1/classes", "/readyz", "/healthz")
    return "".join([(await router.http.get(router.admin_url + path)).text for path in paths])


async def test_no_prompt_key_or_header_is_in_any_log_or_page_at_any_level(stage: Stage, tmp_path: Any) -> None:
    (tmp_path / "engines.json").write_text(
        EngineCredentials(pools={"agents": EngineCredential(api_key=ENGINE_KEY)}).model_dump_json(by_alias=True)
    )
    with logbook() as book:
        engine = await stage.engine(echoing)
        router = await stage.router(
            a_table(a_pool("agents", engine.url), a_class("agent", "agents")),
            a_keyring(a_key(KEY, "coder", "agent")),
            engine_credentials=tmp_path / "engines.json",
        )
        statuses = []
        for seed in (0, 1, 2, 3, 4, 5, 6):
            body = {**BODY, "seed": seed, "stream": seed in (2, 5)}
            statuses.append((await router.post(f"{CHAT}?q={MARK}", body, KEY, **MARKED_HEADERS)).status_code)
        refused: list[tuple[str, Any, str | None, dict[str, str]]] = [
            (CHAT, BODY, f"{MARK}-wrong-key-wrong-key", {}),
            (CHAT, BODY, None, {"authorization": f"Basic {MARK}"}),
            (CHAT, BODY, KEY, {"x-api-key": f"{MARK}-another"}),
            (CHAT, {**BODY, "model": f"{MARK}-model"}, KEY, {}),
            (CHAT, BODY, KEY, {"x-hlserve-class": f"{MARK}-class"}),
            (CHAT, {**BODY, "rid": PROMPT}, KEY, {}),
            (CHAT, json.dumps(BODY).encode()[:-1], KEY, {}),
            (CHAT, BODY, KEY, {"content-type": f"text/{MARK}"}),
            (f"/v1/{MARK}", BODY, KEY, {}),
            (f"/v1/responses/{MARK}/cancel", BODY, KEY, {}),
        ]
        for path, sent, key, headers in refused:
            answer = await router.post(path, sent, key, **{**MARKED_HEADERS, **headers})
            assert 400 <= answer.status_code < 500, path
        wire = await stage.wire(router)
        await wire.send(f"GET /{MARK} HTTP/9\r\n{PROMPT}\r\n\r\n".encode())
        await wire.rest()
        if not build.compiled():  # which refuses it
            router.router.proxy.budget = Loud()  # type: ignore[assignment]  # a state that cannot be
        statuses.append((await router.post(CHAT, BODY, KEY, **MARKED_HEADERS)).status_code)
        told = await pages(router)
        log = book.getvalue()
    assert statuses == [200, 500, 200, 502, 502, 200, 422, 200 if build.compiled() else 500]
    lines = [json.loads(line) for line in log.splitlines()]
    assert sum(line["message"] == "request" for line in lines) >= len(statuses) + len(refused)
    faults = [line["traceback"] for line in lines if "traceback" in line]
    assert any(fault[0] == "builtins.ValueError" for fault in faults)
    assert all("test_router_trust.py" not in line["message"] for line in lines)
    assert MARK not in log
    assert MARK not in told


async def test_a_fault_that_nobody_caught_is_logged_without_what_it_was_given() -> None:
    loop = asyncio.get_running_loop()
    former = loop.get_exception_handler()
    loop.set_exception_handler(on_loop_error)

    def fails(data: str) -> None:
        raise RuntimeError(data)

    try:
        with logbook() as book:
            loop.call_soon(fails, PROMPT)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(former)
    line = json.loads(book.getvalue())
    assert (line["message"], line["error"]) == ("event loop fault", "RuntimeError")
    assert any(place.endswith(" fails") for place in line["traceback"])
    assert MARK not in book.getvalue()


def test_of_a_librarys_line_only_its_own_text_is_kept() -> None:
    with logbook() as book:
        logging.getLogger("somebody").warning("cannot parse %s", PROMPT)
        logging.getLogger("httpcore").debug("send_request_body %s", PROMPT)
        logging.getLogger("hlserve_router.x").warning("our own words: %d", 7)
    messages = [json.loads(line)["message"] for line in book.getvalue().splitlines()]
    assert messages == ["cannot parse %s", "our own words: 7"]


NEVER_TO_AN_ENGINE = {
    "x-hlserve-class": "agent", "x-hlserve-session": "s", "x-hlserve-pool": "p", "x-hlserve-outcome": "ok",
    "x-override-rid": "mine", "x-override-priority": "9", "x-override-anything": "1", "x-data-parallel-rank": "0",
    "x-smg-target-worker": "0", "x-smg-routing-key": "k", "x-sglext-dp": "1", "x-api-key": AGENT_KEY, "cookie": "a=b",
    "via": "1.1 client", "forwarded": "for=1.2.3.4", "x-forwarded-for": "1.2.3.4", "x-real-ip": "1.2.3.4", "te": "trailers",
    "keep-alive": "timeout=5", "proxy-authorization": "Basic x", "proxy-connection": "keep-alive", "upgrade": "h2c",
    "origin": "https://a.example", "referer": "https://a.example", "x-stainless-read-timeout": "600", "openai-organization": "o",
}  # fmt: skip


async def test_only_allowed_headers_of_a_client_reach_an_engine(stage: Stage) -> None:
    engine = await stage.engine(ORDINARY)
    router = await stage.router(a_table(a_pool("agents", engine.url), a_class("agent", "agents")))
    passed = {"accept": "application/json", "traceparent": "00-1-2-01", "anthropic-beta": "b1", "user-agent": "me/1"}
    wire = await stage.wire(router)
    body = json.dumps({"model": "m1", "messages": []}).encode()
    lines = [f"{name}: {value}" for name, value in (*NEVER_TO_AN_ENGINE.items(), *passed.items())]
    named = "connection: traceparent-not, x-named, keep-alive\r\nx-named: 1"
    head = "\r\n".join([f"POST {CHAT} HTTP/1.1", "host: router.example", "content-type: application/json",
                        f"content-length: {len(body)}", named, *lines])  # fmt: skip
    await wire.send(head.encode() + b"\r\n\r\n" + body)
    assert (await wire.head())[0] == 200
    got = dict(engine.requests[0].headers)
    assert got.keys() == {"host", "content-type", "content-length", "x-request-id", "x-override-rid", *passed}
    assert {name: got[name] for name in passed} == passed
    assert got["host"] == engine.url.removeprefix("http://")
    assert got["x-override-rid"] != "mine"


NEVER_TO_A_CLIENT = (
    "server: SGLang", "date: yesterday", "via: 1.1 engine", "set-cookie: a=b", "x-hlserve-outcome: engine", "x-hlserve-pool: other",
    "x-hlserve-class: other", "x-override-rid: 1", "x-smg-worker: 10.0.0.7", "x-sglext-rank: 3", "x-data-parallel-rank: 1",
    "x-request-id: engine", "request-id: engine", "x-should-retry: true", "keep-alive: timeout=5", "proxy-authenticate: Basic",
    "www-authenticate: Bearer", "location: http://10.0.0.7/", "access-control-allow-origin: *", "x-powered-by: x", "upgrade: h2c",
    "connection: openai-named", "openai-named: 1", "alt-svc: h3", "strict-transport-security: max-age=1",
)  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_only_allowed_headers_of_an_engine_reach_a_client(stage: Stage, *, stream: bool) -> None:
    passed = ("openai-processing-ms: 12", "x-ratelimit-limit-requests: 5", "content-language: en")

    async def play(session: Session) -> None:
        if stream:
            await session.head(headers=[*NEVER_TO_A_CLIENT, *passed])
            await session.write(delta("A") + DONE)
            await session.end()
        else:
            await session.reply(b"{}", 200, [*NEVER_TO_A_CLIENT, *passed])

    engine = await stage.engine(play)
    router = await stage.router(a_table(a_pool("agents", engine.url), a_class("agent", "agents")))
    answer = await router.post(CHAT, {"model": "m1", "messages": [], "stream": stream})
    assert answer.status_code == 200
    sent = {name.lower() for name, _ in (line.split(": ", 1) for line in passed)}
    ours = {"x-request-id", "request-id", "x-hlserve-class", "x-hlserve-pool", "content-type"}
    framing = {"x-accel-buffering", "cache-control", "transfer-encoding"} if stream else {"content-length"}
    assert set(answer.headers) == sent | ours | framing
    assert (answer.headers["x-hlserve-pool"], answer.headers["x-hlserve-class"]) == ("agents", "agent")
    assert answer.headers["x-request-id"] != "engine"
