"""Limits that are kept in a store, seen from a client, on every face."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hlserve_api.routing import Budget, KeyEntry, KeyLimits, OnExhausted, RoutingTable
from hlserve_router.testing.documents import AGENT_KEY, BATCH_KEY, a_class, a_key, a_keyring, a_pool, a_table
from hlserve_router.testing.engine import ScriptedEngine
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import DONE, ORDINARY, STOP, delta, either, reply, stream, usage_event
from hlserve_router.testing.stage import Stage
from hlserve_router.testing.valkey_server import valkey_server
from hlserve_router.testing.wire import request_head

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 190}
USING_200 = either(stream(delta("a"), STOP, usage_event(10, 190), DONE), reply(
    b'{"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 190, "total_tokens": 200}}'
))  # fmt: skip


def table(engine: ScriptedEngine) -> RoutingTable:
    return a_table(a_pool("agents", engine.url), a_class("agent", "agents"), a_class("batch", "agents"))


def coder(budget: Budget | None = None, **limits: int) -> KeyEntry:
    return a_key(AGENT_KEY, "coder", "agent", limits=KeyLimits(**limits), budget=budget)


def sqlite(folder: Path) -> dict[str, Any]:
    return {"limits_store": f"sqlite:{folder / 'limits.db'}", "limits_store_timeout_seconds": 5.0}


async def statuses(router: RunningRouter, body: dict[str, Any], count: int) -> list[int]:
    answers = await asyncio.gather(*(router.post(CHAT, body) for _ in range(count)))
    return sorted(answer.status_code for answer in answers)


def quiet(router: RunningRouter) -> bool:
    limits = router.router.proxy.limits
    return limits.quiet and not limits.leased("coder")


async def test_b44_two_credentials_share_one_account_of_the_store(stage: Stage, tmp_path: Path) -> None:
    engine = await stage.engine(ORDINARY)
    new = "hls_rotated_0123456789abcdef0123456789abcde"
    limits = KeyLimits(requests_per_minute=3)
    keyring = a_keyring(coder(requests_per_minute=3), a_key(new, "coder", "agent", credential="new", limits=limits))
    router = await stage.router(table(engine), keyring, **sqlite(tmp_path))
    answers = [await router.post(CHAT, NS, key) for key in (AGENT_KEY, new, AGENT_KEY, new)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[3].json()["error"]["code"] == "key_requests"
    assert answers[3].headers["x-ratelimit-limit-requests"] == "3"
    assert router.count("hlserve_router_limits_waits_total", "agent") >= 1


async def test_b69_a_token_limit_of_the_store_holds_for_parallel_calls_and_streams(
    stage: Stage, tmp_path: Path
) -> None:
    engine = await stage.engine(USING_200)
    router = await stage.router(table(engine), a_keyring(coder(tokens_per_minute=1000)), **sqlite(tmp_path))
    assert await statuses(router, NS, 20) == [200] * 5 + [429] * 15
    await router.until(lambda: quiet(router))
    assert await statuses(router, {**NS, "stream": True}, 20) == [429] * 20


async def test_b69_streams_are_charged_to_the_store_as_used(stage: Stage, tmp_path: Path) -> None:
    engine = await stage.engine(USING_200)
    router = await stage.router(table(engine), a_keyring(coder(Budget(tokens=10_000))), **sqlite(tmp_path))
    assert await statuses(router, {**NS, "stream": True, "max_tokens": 50}, 4) == [200] * 4
    await router.until(lambda: quiet(router))
    router.router.proxy.limits.refresh("coder")
    await router.until(lambda: router.router.proxy.limits.used("coder") == 800)


async def test_a_budget_that_is_used_up_demotes_in_a_router_that_did_not_spend_it(stage: Stage, tmp_path: Path) -> None:
    engine = await stage.engine(USING_200)
    budget = Budget(tokens=100, on_exhausted=OnExhausted.DEMOTE)
    key = a_key(AGENT_KEY, "coder", "agent", budget=budget, allowed_classes=("batch",))
    first = await stage.router(table(engine), a_keyring(key), **sqlite(tmp_path))
    assert (await first.post(CHAT, NS)).headers["x-hlserve-class"] == "agent"
    second = await stage.router(table(engine), a_keyring(key), **sqlite(tmp_path))
    assert (await second.post(CHAT, NS)).headers["x-hlserve-class"] == "batch"
    assert (await first.post(CHAT, NS)).headers["x-hlserve-class"] == "batch"


async def test_a_store_that_dies_and_returns_is_said_and_refuses_nobody(stage: Stage, tmp_path: Path) -> None:
    engine = await stage.engine(ORDINARY)
    async with valkey_server(tmp_path) as server:
        router = await stage.router(
            table(engine), a_keyring(coder(requests_per_minute=100)), limits_store=server.address,
            limits_store_timeout_seconds=0.2, limits_store_retry_seconds=0.05,
        )  # fmt: skip
        assert await statuses(router, NS, 5) == [200] * 5
        await server.kill()
        assert await statuses(router, NS, 5) == [200] * 5
        await router.until(lambda: router.router.proxy.limits.away)
        ready = await router.http.get(f"{router.admin_url}/readyz")
        assert ready.status_code == 200
        assert ready.json()["limits"]["status"] == "away"
        assert "limit over the routers" in ready.json()["limits"]["rule"]
        assert "hlserve_router_limits_store_up 0.0" in await router.metrics()
        await server.start()
        await router.until(lambda: not router.router.proxy.limits.away)
        assert await statuses(router, NS, 5) == [200] * 5
        assert (await router.http.get(f"{router.admin_url}/readyz")).json()["limits"]["status"] == "ok"


async def test_a_slow_store_holds_up_only_those_who_need_it_and_not_for_long(stage: Stage, tmp_path: Path) -> None:
    engine = await stage.engine(ORDINARY)
    async with valkey_server(tmp_path) as server:
        keyring = a_keyring(coder(requests_per_minute=10), a_key(BATCH_KEY, "nightly", "batch"))
        router = await stage.router(
            table(engine), keyring, limits_store=server.address, limits_store_timeout_seconds=1.0
        )
        await router.until(lambda: router.router.proxy.limits.members == 1)
        server.stall()
        slow = asyncio.create_task(router.post(CHAT, NS))
        await router.until(lambda: router.router.proxy.limits.waiting == 1)
        free = await router.post(CHAT, NS, BATCH_KEY)
        assert free.status_code == 200
        assert not slow.done()
        assert (await slow).status_code == 200
        assert router.router.proxy.limits.away


async def test_a_client_that_leaves_while_it_waits_for_the_store_holds_nothing(stage: Stage, tmp_path: Path) -> None:
    engine = await stage.engine(ORDINARY)
    async with valkey_server(tmp_path) as server:
        router = await stage.router(
            table(engine), a_keyring(coder(max_concurrent=1)), limits_store=server.address,
            limits_store_timeout_seconds=5.0,
        )  # fmt: skip
        server.stall()
        wire = await stage.wire(router)
        body = b'{"model": "m1", "messages": []}'
        await wire.send(request_head(CHAT, f"content-length: {len(body)}"), body)
        await router.until(lambda: router.router.proxy.limits.waiting == 1)
        wire.hang_up()
        await router.until(lambda: router.count("hlserve_router_requests_total") == 1)
        server.go_on()
        await router.until(lambda: router.router.proxy.limits.waiting == 0)
        assert not engine.requests
        assert (await router.post(CHAT, NS)).status_code == 200
        await router.until(lambda: router.router.proxy.limits.concurrent("coder") == 0)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_permits_are_held_until_the_last_byte(stage: Stage, tmp_path: Path, store: str) -> None:
    release = asyncio.Event()

    async def play(session: Any) -> None:
        await session.head()
        await session.write(delta("A"))
        await session.until(release)
        await session.write(DONE)
        await session.end()

    engine = await stage.engine(play)
    settings = sqlite(tmp_path) if store == "sqlite" else {}
    router = await stage.router(table(engine), a_keyring(coder(max_concurrent=1)), **settings)
    first = asyncio.create_task(router.post(CHAT, {**NS, "stream": True}))
    await engine.wait_for(lambda: engine.open_sessions == 1)
    assert (await router.post(CHAT, NS)).json()["error"]["code"] == "key_concurrency"
    release.set()
    assert (await first).status_code == 200
    assert (await router.post(CHAT, {**NS, "stream": True})).status_code == 200
