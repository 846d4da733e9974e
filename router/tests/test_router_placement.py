"""Where requests go and what engines see: pools by class, spill, affinity, aliases, ids, priority, other people's engines."""

import asyncio
import re
from typing import Any

import pytest

from hlserve_api.routing import PriorityOrder, QueueRule, ShareRule, SpillRule, Target, TargetRole
from hlserve_router.testing.documents import AGENT_KEY, BATCH_KEY, INTERACTIVE_KEY, a_class, a_pool, a_table
from hlserve_router.testing.engine import ScriptedEngine
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import DONE, ORDINARY, delta, held, in_turn, reply, stream, usage_event
from hlserve_router.testing.stage import Stage

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
PRIMARY_AND_SPILL = (Target(pool="chat"), Target(pool="agents", role=TargetRole.SPILL))


async def three_classes(stage: Stage) -> tuple[RunningRouter, ScriptedEngine, ScriptedEngine]:
    chat, agents = await stage.engine(ORDINARY), await stage.engine(ORDINARY)
    table = a_table(
        a_pool("chat", chat.url), a_pool("agents", agents.url), a_class("interactive", "chat"), a_class("agent", "agents"),
        a_class("batch", "agents"),
    )  # fmt: skip
    return await stage.router(table), chat, agents


@pytest.mark.parametrize(
    ("key", "header", "class_name", "pool"),
    [
        pytest.param(INTERACTIVE_KEY, None, "interactive", "chat", id="a chat key goes to chat"),
        pytest.param(AGENT_KEY, None, "agent", "agents", id="an agent key goes to agents"),
        pytest.param(INTERACTIVE_KEY, "batch", "batch", "agents", id="a header lowers"),
        pytest.param(BATCH_KEY, "interactive", "batch", "agents", id="a header never raises"),
    ],
)
async def test_the_class_chooses_the_pool(
    stage: Stage, key: str, header: str | None, class_name: str, pool: str
) -> None:
    router, _, _ = await three_classes(stage)
    forged = {
        "x-target-pod": "10.0.0.9",
        "x-forwarded-for": "127.0.0.1",
        **({"x-hlserve-class": header} if header else {}),
    }
    answer = await router.post(CHAT, NS, key, **forged)
    assert (answer.headers["x-hlserve-class"], answer.headers["x-hlserve-pool"]) == (class_name, pool)
    clamped = router.count("hlserve_router_class_clamped_total", "batch")
    assert clamped == (1 if key == BATCH_KEY else 0)


async def test_x_api_key_serves_the_same(stage: Stage) -> None:
    router, _, _ = await three_classes(stage)
    answer = await router.post("/v1/messages", {**NS, "max_tokens": 5}, None, x_api_key=AGENT_KEY)
    assert answer.status_code == 200


ID = re.compile(r"hls-[0-9a-f]{32}")


@pytest.mark.parametrize(
    ("path", "where"),
    [
        (CHAT, "header"), ("/v1/messages", "header"), ("/generate", "header"), ("/v1/completions", "rid"),
        ("/v1/embeddings", "rid"), ("/v1/responses", "request_id"), ("/tokenize", None), ("/v1/messages/count_tokens", None),
    ],
)  # fmt: skip
async def test_the_engine_knows_a_request_by_the_routers_own_id(stage: Stage, path: str, where: str | None) -> None:
    router, _, agents = await three_classes(stage)
    body = {"model": "m1", "input": "x", "prompt": "x", "text": "x", "messages": [], "max_tokens": 3}
    answer = await router.post(path, body, AGENT_KEY, x_request_id="0", **{"x-override-rid": "0"})
    assert answer.headers["x-request-id"] == "0"
    seen = agents.requests[0]
    assert seen.path == path
    header, in_body = seen.header("x-override-rid"), {key: value for key, value in seen.json.items() if key not in body}
    if where == "header":
        assert header is not None
        assert ID.fullmatch(header)
        assert in_body == {}
    elif where is None:
        assert (header, in_body) == (None, {})
    else:
        assert header is None
        assert list(in_body) == [where]
        assert ID.fullmatch(in_body[where])
    assert seen.header("authorization") is None
    assert seen.header("x-api-key") is None


@pytest.mark.parametrize(
    ("order", "sent"),
    [(PriorityOrder.NONE, None), (PriorityOrder.HIGHER_FIRST, 7), (PriorityOrder.LOWER_FIRST, -7)],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_priority_is_the_classs_and_points_the_engines_way(
    stage: Stage, order: PriorityOrder, sent: int | None, path: str
) -> None:
    engine = await stage.engine(ORDINARY)
    table = a_table(a_pool("agents", engine.url, priority_order=order), a_class("agent", "agents", priority=7))
    router = await stage.router(table)
    await router.post(path, {"model": "m1", "messages": [], "prompt": "x", "priority": 1_000_000})
    seen = engine.requests[0]
    if path == CHAT:
        assert seen.header("x-override-priority") == (None if sent is None else str(sent))
    else:
        assert seen.json["priority"] == (1_000_000 if sent is None else sent)


async def test_an_alias_is_one_span_for_the_engine_and_listed(stage: Stage) -> None:
    engine = await stage.engine(ORDINARY)
    router = await stage.router(a_table(a_pool("agents", engine.url, aliases=("fast",)), a_class("agent", "agents")))
    body = b'{"messages":[{"role":"user","content":"say \\"model\\":\\"fast\\""}], "model" : "fast"}'
    assert (await router.post(CHAT, body)).status_code == 200
    assert engine.requests[0].body == body.replace(b' "model" : "fast"', b' "model" : "m1"')
    listed = await router.http.get(f"{router.url}/v1/models", headers={"authorization": f"Bearer {AGENT_KEY}"})
    assert [model["id"] for model in listed.json()["data"]] == ["m1", "fast"]


async def test_other_peoples_engines_get_no_id_and_are_asked_for_usage(stage: Stage) -> None:
    engine = await stage.engine(stream(delta("A"), usage_event(), DONE))
    router = await stage.router(
        a_table(a_pool("agents", engine.url, foreign=True), a_class("agent", "agents", priority=3))
    )
    answer = await router.post(CHAT, {**NS, "stream": True})
    seen = engine.requests[0]
    assert seen.header("x-override-rid") is None
    assert seen.json == {**NS, "stream": True, "stream_options": {"include_usage": True}}
    assert answer.content == delta("A") + DONE
    await router.post(CHAT, NS)
    assert "stream_options" not in engine.requests[1].json


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("data:image/png;base64,AAAA", 200), ("https://pictures.example/a.png", 200), ("https://other.example/a.png", 400),
        ("https://pictures.example.evil.example/a.png", 400), ("file:///etc/passwd", 400), ("FILE:///etc/passwd", 400),
        ("http://169.254.169.254/latest", 400), ("/etc/passwd", 400), ("http://[bad", 400),
    ],
)  # fmt: skip
async def test_media_come_only_from_where_the_pool_allows(stage: Stage, url: str, status: int) -> None:
    engine = await stage.engine(ORDINARY)
    pool = a_pool("agents", engine.url, allowed_media_domains=("pictures.example",))
    router = await stage.router(a_table(pool, a_class("agent", "agents")))
    part = {"type": "image_url", "image_url": {"url": url}}
    answer = await router.post(CHAT, {"model": "m1", "messages": [{"role": "user", "content": [part]}]})
    assert answer.status_code == status
    assert len(engine.requests) == (1 if status == 200 else 0)


async def test_a_class_spills_when_its_own_pool_is_gone(stage: Stage) -> None:
    chat, agents = await stage.engine(ORDINARY), await stage.engine(ORDINARY)
    route = a_class("interactive", targets=PRIMARY_AND_SPILL)
    router = await stage.router(a_table(a_pool("chat", chat.url), a_pool("agents", agents.url), route))
    await chat.stop()
    await router.until(lambda: not next(iter(router.router.proxy.pools.pools["chat"].endpoints.values())).reachable)
    answer = await router.post(CHAT, NS, INTERACTIVE_KEY)
    assert answer.headers["x-hlserve-pool"] == "agents"
    assert router.count("hlserve_router_spills_total", "interactive", "agents", "unavailable") == 1


async def test_a_class_spills_when_its_queue_waits_too_long(stage: Stage) -> None:
    release = asyncio.Event()
    chat, agents = await stage.engine(held(release, ORDINARY)), await stage.engine(ORDINARY)
    spill = SpillRule(enter_queue_wait_milliseconds=50, leave_queue_wait_milliseconds=20)
    route = a_class("interactive", targets=PRIMARY_AND_SPILL, spill=spill)
    router = await stage.router(a_table(a_pool("chat", chat.url, max_in_flight=1), a_pool("agents", agents.url), route))
    first = asyncio.create_task(router.post(CHAT, NS, INTERACTIVE_KEY))
    await chat.wait_for(lambda: len(chat.requests) == 1)
    second = await router.post(CHAT, NS, INTERACTIVE_KEY)
    assert second.headers["x-hlserve-pool"] == "agents"
    assert router.count("hlserve_router_spills_total", "interactive", "agents", "queue_wait") == 1
    release.set()
    assert (await first).headers["x-hlserve-pool"] == "chat"


async def test_without_a_spill_target_chat_never_leaves_its_pool(stage: Stage) -> None:
    release = asyncio.Event()
    chat, agents = await stage.engine(held(release, ORDINARY)), await stage.engine(ORDINARY)
    route = a_class("interactive", "chat", queue=QueueRule(ttl_milliseconds=150))
    table = a_table(
        a_pool("chat", chat.url, max_in_flight=1), a_pool("agents", agents.url), route, a_class("agent", "agents")
    )
    router = await stage.router(table)
    first = asyncio.create_task(router.post(CHAT, NS, INTERACTIVE_KEY))
    await chat.wait_for(lambda: len(chat.requests) == 1)
    assert (await router.post(CHAT, NS, INTERACTIVE_KEY)).json()["error"]["code"] == "queue_expired"
    release.set()
    await first
    assert not agents.requests


async def test_a_class_holds_at_most_its_maximum_share(stage: Stage) -> None:
    release = asyncio.Event()
    engine = await stage.engine(held(release, ORDINARY))
    table = a_table(
        a_pool("agents", engine.url, max_in_flight=4),
        a_class("batch", "agents", share=ShareRule(max_percent=50)),
        a_class("agent", "agents"),
    )
    router = await stage.router(table)
    asking = [asyncio.create_task(router.post(CHAT, NS, BATCH_KEY)) for _ in range(3)]
    await router.until(lambda: router.router.proxy.admission.depth("batch").count == 1)
    asking.append(asyncio.create_task(router.post(CHAT, NS, AGENT_KEY)))
    await engine.wait_for(lambda: engine.open_sessions == 3)
    release.set()
    assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}


async def test_big_requests_are_bounded_by_tokens(stage: Stage) -> None:
    release = asyncio.Event()
    engine = await stage.engine(held(release, ORDINARY))
    router = await stage.router(
        a_table(a_pool("agents", engine.url, in_flight_tokens=10_000), a_class("agent", "agents"))
    )
    big = {**NS, "messages": [{"role": "user", "content": "word " * 3200}], "max_tokens": 1}
    asking = [asyncio.create_task(router.post(CHAT, big)) for _ in range(4)]
    await router.until(lambda: router.router.proxy.admission.waiting == 2)
    await engine.wait_for(lambda: engine.open_sessions == 2)
    release.set()
    assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}


async def four_engines(stage: Stage) -> tuple[RunningRouter, list[ScriptedEngine]]:
    made = [await stage.engine(ORDINARY) for _ in range(4)]
    return await stage.router(a_table(a_pool("agents", *(e.url for e in made)), a_class("agent", "agents"))), made


@pytest.mark.parametrize("header", ["x-hlserve-session", "x-claude-code-session-id", "session_id"])
async def test_a_session_header_keeps_its_engine(stage: Stage, header: str) -> None:
    router, made = await four_engines(stage)
    for _ in range(6):
        await router.http.post(
            router.url + CHAT, json=NS, headers={"authorization": f"Bearer {AGENT_KEY}", header: "s1"}
        )
    assert sorted(len(engine.requests) for engine in made) == [0, 0, 0, 6]


async def test_a_stored_response_is_its_clients_and_on_its_engine(stage: Stage) -> None:
    made = [
        await stage.engine(reply(b'{"id":"resp_1","object":"response","usage":{"input_tokens":3,"output_tokens":2}}'))
        for _ in range(3)
    ]
    pool = a_pool("agents", *(engine.url for engine in made), response_store=True)
    router = await stage.router(a_table(pool, a_class("agent", "agents"), a_class("batch", "agents")))
    body = {"model": "m1", "input": "x"}
    assert (await router.post("/v1/responses", body)).status_code == 200
    home = next(engine for engine in made if engine.requests)
    again = await router.post("/v1/responses", {**body, "previous_response_id": "resp_1"})
    mine = await router.http.get(f"{router.url}/v1/responses/resp_1", headers={"authorization": f"Bearer {AGENT_KEY}"})
    cancelled = await router.post("/v1/responses/resp_1/cancel", b"")
    other = await router.http.get(f"{router.url}/v1/responses/resp_1", headers={"authorization": f"Bearer {BATCH_KEY}"})
    unknown = await router.http.get(
        f"{router.url}/v1/responses/resp_2", headers={"authorization": f"Bearer {AGENT_KEY}"}
    )
    assert [again.status_code, mine.status_code, cancelled.status_code] == [200, 200, 200]
    assert [other.status_code, unknown.status_code] == [404, 404]
    assert [(request.method, request.path) for request in home.requests] == [
        ("POST", "/v1/responses"), ("POST", "/v1/responses"), ("GET", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
    ]  # fmt: skip


async def test_who_must_go_to_one_busy_engine_waits_and_holds_nobody_up(stage: Stage) -> None:
    stored = reply(b'{"id":"resp_1","object":"response","usage":{"input_tokens":3,"output_tokens":2}}')
    made = [await stage.engine(in_turn(stored, reply(b"{}", 503), stored)) for _ in range(2)]
    pool = a_pool("agents", *(engine.url for engine in made), response_store=True)
    router = await stage.router(a_table(pool, a_class("agent", "agents")))
    body = {"model": "m1", "input": "x"}
    assert (await router.post("/v1/responses", body)).status_code == 200
    home, other = sorted(made, key=lambda engine: len(engine.requests), reverse=True)
    follows = asyncio.create_task(router.post("/v1/responses", {**body, "previous_response_id": "resp_1"}))
    await router.until(lambda: router.router.proxy.admission.waiting == 1)
    assert (await router.post("/v1/responses", body)).status_code == 200
    assert not follows.done(), "its engine asked to be left alone"
    assert (await follows).status_code == 200
    assert [len(engine.requests) for engine in (home, other)] == [3, 1]


async def test_generate_without_a_model_takes_the_only_one(stage: Stage) -> None:
    router, _, agents = await three_classes(stage)
    body = {"text": "hi", "sampling_params": {"max_new_tokens": 3}}
    assert (await router.post("/generate", body)).status_code == 200
    assert agents.requests[0].json == body
