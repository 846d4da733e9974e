"""Every reason that the router can give, over real sockets: status, shape, headers, and nothing reaches an engine."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from hlserve_api.answers import ANSWERS, Reason
from hlserve_api.routing import Budget, ClassLimits, HeaderOverride, KeyEntry, KeyLimits, QueueRule
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_key, a_keyring, a_pool, a_table, some_timeouts
from hlserve_router.testing.engine import Play, ScriptedEngine, Session
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import DONE, ORDINARY, delta, held, in_turn, reply, silent, stream
from hlserve_router.testing.stage import Stage

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
TOMORROW = datetime.now(UTC) + timedelta(days=1)
YESTERDAY = datetime.now(UTC) - timedelta(days=1)


def coder(**changes: Any) -> KeyEntry:
    return a_key(AGENT_KEY, "coder", changes.pop("class_name", "agent"), **changes)


async def reset(session: Session) -> None:
    session.reset()


async def close_early(session: Session) -> None:
    await session.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
    session.close()


async def two_lengths(session: Session) -> None:
    await session.raw(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nTransfer-Encoding: chunked\r\ncontent-length: 10\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    )


@dataclass(frozen=True)
class Case:
    id: str
    reason: Reason
    body: Any = None
    path: str = CHAT
    method: str = "POST"
    key: str | None = AGENT_KEY
    headers: dict[str, str] = field(default_factory=dict)
    entry: KeyEntry = field(default_factory=coder)
    route: dict[str, Any] = field(default_factory=dict)
    pool: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    play: Play = ORDINARY
    engines: int = 1
    reaches_engine: bool = False


FILE = {
    **NS,
    "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
}
R = Reason
CASES = [
    Case("a body that is no JSON", R.INVALID_JSON, b"{"),
    Case("no model", R.MISSING_MODEL, {"messages": []}),
    Case("model twice", R.DUPLICATE_FIELD, b'{"model":"m1","model":"m2"}'),
    Case("a rid of the client's", R.RESERVED_FIELD, {**NS, "rid": "0"}),
    Case("an unknown class", R.UNKNOWN_CLASS, headers={"x-hlserve-class": "nope"}),
    Case("a file as a picture", R.MEDIA_NOT_ALLOWED, FILE),
    Case(
        "previous_response_id without a store",
        R.RESPONSE_STORE_OFF,
        {"model": "m1", "input": "x", "previous_response_id": "resp_1"},
        "/v1/responses",
    ),
    Case(
        "background without a store",
        R.RESPONSE_STORE_OFF,
        {"model": "m1", "input": "x", "background": True},
        "/v1/responses",
    ),
    Case("a stored response without a store", R.RESPONSE_STORE_OFF, path="/v1/responses/resp_1", method="GET"),
    Case("no key", R.MISSING_KEY, key=None),
    Case("an unknown key", R.INVALID_KEY, key="hls_unknown"),
    Case("a key that tries SQL", R.INVALID_KEY, key="' OR 1=1--"),
    Case("an expired key", R.KEY_EXPIRED, entry=coder(not_after=YESTERDAY)),
    Case("a key of tomorrow", R.KEY_NOT_YET_VALID, entry=coder(not_before=TOMORROW)),
    Case("two different keys", R.CONFLICTING_KEYS, headers={"x-api-key": "other"}),
    Case(
        "a lower class that is not allowed",
        R.CLASS_NOT_ALLOWED,
        headers={"x-hlserve-class": "batch"},
        entry=coder(allowed_classes=("agent",)),
    ),
    Case(
        "a class that denies the header",
        R.CLASS_NOT_ALLOWED,
        headers={"x-hlserve-class": "batch"},
        route={"header_override": HeaderOverride.DENY},
    ),
    Case("a suspended client", R.KEY_SUSPENDED, entry=coder(suspended=True)),
    Case("an unknown model", R.MODEL_NOT_FOUND, {**NS, "model": "nope"}),
    Case("a model that the key may not use", R.MODEL_NOT_FOUND, entry=coder(models=("other",))),
    Case("a doubled prefix", R.UNKNOWN_PATH, path="/v1/v1/chat/completions"),
    Case("a path without its prefix", R.UNKNOWN_PATH, path="/chat/completions"),
    Case("an engine's own path", R.UNKNOWN_PATH, path="/flush_cache"),
    Case("a GET", R.METHOD_NOT_ALLOWED, method="GET"),
    Case("a form", R.UNSUPPORTED_MEDIA_TYPE, headers={"content-type": "text/plain"}),
    Case("a body above the cap", R.BODY_TOO_LARGE, b"x" * 3000, settings={"body_max_bytes": 2000}),
    Case(
        "a prompt above the class's limit",
        R.INPUT_TOO_LARGE,
        {**NS, "messages": [{"role": "user", "content": "x" * 4000}]},
        route={"limits": ClassLimits(max_input_tokens=500)},
    ),
    Case(
        "token ids above the context",
        R.INPUT_TOO_LARGE,
        {"model": "m1", "prompt": list(range(200))},
        "/v1/completions",
        pool={"context_length": 100},
    ),
    Case(
        "a longer reply than the class gives",
        R.OUTPUT_TOO_LARGE,
        {**NS, "max_tokens": 5, "max_completion_tokens": 101},
        route={"limits": ClassLimits(max_output_tokens=100)},
    ),
    Case(
        "a reply without a limit where the class has one",
        R.OUTPUT_TOO_LARGE,
        {"text": "hi", "sampling_params": {"temperature": 0}},
        "/generate",
        route={"limits": ClassLimits(max_output_tokens=100)},
    ),
    Case("a used-up budget", R.BUDGET_EXHAUSTED, entry=coder(budget=Budget(tokens=0))),
    Case(
        "no engine listening",
        R.NO_ENDPOINT,
        pool={"draining": ()},
        engines=0,
        route={"targets": a_class("agent", "dead").targets},
    ),
    Case("no engine yet", R.SCALING_FROM_ZERO, engines=0, route={"queue": QueueRule(ttl_milliseconds=100)}),
    Case("all engines draining", R.DRAINING, pool={"draining": ("agents-0",)}),
    Case("the key's class gone", R.CLASS_MISSING, entry=coder(class_name="gone")),
    Case("an engine that resets", R.ENGINE_RESET, play=reset, reaches_engine=True),
    Case("an engine that stops in its answer", R.ENGINE_TRUNCATED, play=close_early, reaches_engine=True),
    Case("an engine with two framings", R.ENGINE_PROTOCOL, play=two_lengths, reaches_engine=True),
    Case(
        "a busy engine",
        R.ENGINE_BUSY,
        play=reply(b"{}", 503),
        route={"queue": QueueRule(ttl_milliseconds=200)},
        reaches_engine=True,
    ),
    Case(
        "an engine that never answers",
        R.TOTAL_TIMEOUT,
        play=silent,
        route={"timeouts": some_timeouts(total_seconds=1)},
        reaches_engine=True,
    ),
    Case(
        "an engine that never begins a stream",
        R.ENGINE_SILENT,
        {**NS, "stream": True},
        play=silent,
        route={"timeouts": some_timeouts(start_seconds=1)},
        reaches_engine=True,
    ),
]
ELSEWHERE = {
    R.BODY_TIMEOUT: "test_a_body_that_does_not_come",
    R.HEADERS_TOO_LARGE: "test_headers_above_the_bound",
    R.KEY_REQUESTS: "test_limits_of_the_key",
    R.KEY_TOKENS: "test_limits_of_the_key",
    R.KEY_CONCURRENCY: "test_limits_of_the_key",
    R.QUEUE_FULL: "test_a_full_queue",
    R.QUEUE_EXPIRED: "test_waiting_too_long",
    R.INTERNAL_ERROR: "test_a_fault_of_our_own",
    R.ENGINE_CONNECT: "test_an_engine_that_just_died",
}
"""Reasons that one request cannot show, each with its test below."""


def test_every_reason_is_shown() -> None:
    shown = {case.reason for case in CASES} | set(ELSEWHERE)
    assert shown == set(Reason)
    assert all(name in globals() for name in ELSEWHERE.values())


def assert_refused(answer: httpx.Response, reason: Reason) -> None:
    rule = ANSWERS[reason]
    assert answer.json()["error"]["code"] == reason.value, answer.text
    assert answer.status_code == rule.status
    assert answer.headers["x-hlserve-outcome"] == rule.outcome.value
    assert answer.headers["x-hlserve-reason"] == reason.value
    assert answer.headers["x-request-id"]
    assert ("retry-after" in answer.headers) is rule.retry_after
    message = answer.json()["error"]["message"]
    assert 10 < len(message) < 400
    assert AGENT_KEY not in answer.text


async def set_up(stage: Stage, case: Case) -> tuple[RunningRouter, ScriptedEngine]:
    engine = await stage.engine(case.play)
    table = a_table(
        a_pool("agents", *[engine.url] * case.engines, **case.pool),
        a_pool("dead", "http://127.0.0.1:1"),
        a_class("agent", **{"targets": a_class("agent", "agents").targets, **case.route}),
        a_class("batch", "agents"),
    )
    router = await stage.router(table, a_keyring(case.entry), **case.settings)
    if case.reason is Reason.NO_ENDPOINT:
        await router.until(lambda: not router.router.proxy.pools.pools["dead"].endpoints["dead-0"].reachable)
    return router, engine


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
async def test_refusal(stage: Stage, case: Case) -> None:
    router, engine = await set_up(stage, case)
    headers = {"content-type": "application/json", **case.headers}
    if case.key is not None:
        headers["authorization"] = f"Bearer {case.key}"
    body = case.body if case.body is not None else NS
    content = body if isinstance(body, bytes) else httpx.Request("POST", router.url, json=body).read()
    answer = await router.http.request(
        case.method, router.url + case.path, content=content if case.method == "POST" else None, headers=headers
    )
    assert_refused(answer, case.reason)
    assert bool(engine.requests) is case.reaches_engine
    metrics = await router.metrics()
    assert f'reason="{case.reason.value}"' in metrics
    assert router.count("hlserve_router_requests_total") == 1
    assert router.router.proxy.limits.concurrent("coder") == 0
    assert all(endpoint.in_flight == 0 for endpoint in router.router.proxy.pools.endpoints())


def plain(agent: str, **changes: Any) -> Any:
    return a_table(a_pool("agents", agent), a_class("agent", "agents", **changes))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (KeyLimits(requests_per_minute=1), Reason.KEY_REQUESTS),
        (KeyLimits(tokens_per_minute=10), Reason.KEY_TOKENS),
        (KeyLimits(max_concurrent=1), Reason.KEY_CONCURRENCY),
    ],
)
async def test_limits_of_the_key(stage: Stage, limits: KeyLimits, reason: Reason) -> None:
    release = asyncio.Event()
    engine = await stage.engine(held(release, ORDINARY))
    router = await stage.router(plain(engine.url), a_keyring(coder(limits=limits)))
    first = asyncio.create_task(router.post(CHAT, NS))
    await engine.wait_for(lambda: bool(engine.requests))
    assert_refused(await router.post(CHAT, NS), reason)
    release.set()
    assert (await first).status_code == 200
    again = await router.post(CHAT, NS)
    assert again.status_code == (200 if reason is Reason.KEY_CONCURRENCY else 429)


async def test_a_full_queue(stage: Stage) -> None:
    release = asyncio.Event()
    engine = await stage.engine(held(release, ORDINARY))
    table = a_table(
        a_pool("agents", engine.url, max_in_flight=1),
        a_class("agent", "agents", queue=QueueRule(max_depth=1, ttl_milliseconds=9000)),
    )
    router = await stage.router(table)
    waiting = [asyncio.create_task(router.post(CHAT, NS)) for _ in range(2)]
    await router.until(lambda: router.router.proxy.admission.waiting == 1)
    assert_refused(await router.post(CHAT, NS), Reason.QUEUE_FULL)
    release.set()
    assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200]


async def test_waiting_too_long(stage: Stage) -> None:
    release = asyncio.Event()
    engine = await stage.engine(held(release, ORDINARY))
    table = a_table(
        a_pool("agents", engine.url, max_in_flight=1, queue_ttl_milliseconds=100), a_class("agent", "agents")
    )
    router = await stage.router(table)
    first = asyncio.create_task(router.post(CHAT, NS))
    await engine.wait_for(lambda: bool(engine.requests))
    assert_refused(await router.post(CHAT, NS), Reason.QUEUE_EXPIRED)
    release.set()
    assert (await first).status_code == 200
    assert len(engine.requests) == 1


async def test_an_engine_that_just_died(stage: Stage) -> None:
    engine = await stage.engine(ORDINARY)
    router = await stage.router(plain(engine.url), probe_seconds=60)
    await router.until(lambda: router.router.proxy.pools.table is not None)
    await asyncio.sleep(0.05)
    await engine.stop()
    assert_refused(await router.post(CHAT, NS), Reason.ENGINE_CONNECT)
    assert_refused(await router.post(CHAT, NS), Reason.NO_ENDPOINT)


async def raw_exchange(url: str, *pieces: bytes) -> bytes:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    async with asyncio.timeout(5):
        data = await reader.read(65536)
    writer.close()
    return data


def head_of(**headers: str) -> bytes:
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: x",
        f"authorization: Bearer {AGENT_KEY}",
        "content-type: application/json",
    ]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


async def test_a_body_that_does_not_come(stage: Stage) -> None:
    engine = await stage.engine(ORDINARY)
    router = await stage.router(plain(engine.url), body_timeout_seconds=0.1)
    data = await raw_exchange(router.url, head_of(content_length="100"), b"{")
    assert data.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"body_timeout"' in data


async def test_a_declared_length_above_the_cap_is_refused_before_the_body_comes(stage: Stage) -> None:
    engine = await stage.engine(ORDINARY)
    router = await stage.router(plain(engine.url), body_max_bytes=1000)
    data = await raw_exchange(router.url, head_of(content_length="5000000"))
    assert data.startswith(b"HTTP/1.1 413 ")
    assert b"1000 bytes" in data


async def test_a_wrong_key_is_refused_before_the_body_comes(stage: Stage) -> None:
    engine = await stage.engine(ORDINARY)
    router = await stage.router(plain(engine.url))
    head = head_of(content_length="2000000", expect="100-continue").replace(AGENT_KEY.encode(), b"wrong")
    data = await raw_exchange(router.url, head)
    assert data.startswith(b"HTTP/1.1 401 ")


async def test_headers_above_the_bound(stage: Stage) -> None:
    engine = await stage.engine(ORDINARY)
    router = await stage.router(plain(engine.url))
    answer = await router.post(CHAT, NS, x_big="y" * 70_000)
    assert_refused(answer, Reason.HEADERS_TOO_LARGE)
    assert not engine.requests


class Broken(dict[str, int]):
    """A state that cannot be."""

    def __setitem__(self, *_: Any) -> None:
        raise RuntimeError("broken")


async def test_a_fault_of_our_own(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    engine = await stage.engine(ORDINARY)
    router = await stage.router(plain(engine.url))
    router.router.proxy.pools.pools["agents"].in_flight_by_class = Broken()
    answer = await router.post(CHAT, NS)
    assert_refused(answer, Reason.INTERNAL_ERROR)
    assert router.count("hlserve_router_internal_errors_total") >= 1
    assert "Traceback" in caplog.text or any(record.exc_info for record in caplog.records)


async def test_messages_get_anthropic_errors(stage: Stage) -> None:
    engine = await stage.engine(ORDINARY)
    router = await stage.router(plain(engine.url))
    answer = await router.post("/v1/messages", {"model": "nope", "messages": [], "max_tokens": 1})
    assert answer.status_code == 404
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "not_found_error"
    assert answer.json()["error"]["details"]["error_code"] == "model_not_found"
    assert answer.headers["request-id"] == answer.json()["request_id"]


async def test_a_slash_at_the_end_is_no_redirect(stage: Stage) -> None:
    engine = await stage.engine(ORDINARY)
    router = await stage.router(plain(engine.url))
    assert (await router.post(CHAT + "/", NS)).status_code == 200
    assert (await router.post("//v1/models", NS)).status_code == 404


async def test_nothing_of_a_refused_request_is_lost_for_the_next_one(stage: Stage) -> None:
    engine = await stage.engine(in_turn(stream(delta("a"), DONE)))
    router = await stage.router(plain(engine.url))
    for _ in range(3):
        assert_refused(await router.post(CHAT, b"{"), Reason.INVALID_JSON)
        assert (await router.post(CHAT, {**NS, "stream": True})).content.endswith(DONE)
