"""Balancing, queues and limits, by the ids of the reports they come from."""

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
import pytest

from hlserve_api.routing import QueueRule
from hlserve_router.endpoint import EndpointState
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_key, a_keyring, a_pool, a_table, some_timeouts
from hlserve_router.testing.engine import Play, ScriptedEngine, Session
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import COMPLETION, DONE, ORDINARY, delta, held, in_turn, reply, stream
from hlserve_router.testing.stage import Stage
from hlserve_router.testing.wire import request_head

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
BODY = {**NS, "stream": True}


async def engines(
    stage: Stage, *plays: Play, pool: dict[str, Any] | None = None, key: dict[str, Any] | None = None, **route: Any
) -> tuple[RunningRouter, list[ScriptedEngine]]:
    made = [await stage.engine(play) for play in plays]
    table = a_table(
        a_pool("agents", *(engine.url for engine in made), **(pool or {})), a_class("agent", "agents", **route)
    )
    return await stage.router(table, a_keyring(a_key(AGENT_KEY, "coder", "agent", **(key or {})))), made


def states(router: RunningRouter) -> list[EndpointState]:
    return list(router.router.proxy.pools.endpoints())


def code(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


async def test_b59_a_busy_engine_gets_its_session_back(stage: Stage) -> None:
    busy = reply(b"{}", 503, "retry-after-ms: 50")
    router, made = await engines(stage, *[in_turn(ORDINARY, busy, ORDINARY)] * 1, ORDINARY)
    headers = {"authorization": f"Bearer {AGENT_KEY}", "x-hlserve-session": "s"}
    sessions = router.router.proxy.pools.sessions
    sessions.settle("coder\0s", states(router)[0], router.router.proxy.now())
    for _ in range(2):  # the second is refused at home and served elsewhere
        assert (await router.http.post(router.url + CHAT, json=NS, headers=headers)).status_code == 200
    assert [len(engine.requests) for engine in made] == [2, 1]
    await router.until(lambda: not states(router)[0].busy(router.router.proxy.now()))
    await router.http.post(router.url + CHAT, json=NS, headers=headers)
    assert [len(engine.requests) for engine in made] == [3, 1]


async def test_b62_affinity_starts_with_the_second_request(stage: Stage) -> None:
    router, made = await engines(stage, ORDINARY, ORDINARY, ORDINARY)
    prompt = {"model": "m1", "prompt": "once upon a time " * 500}
    for _ in range(10):
        await router.post("/v1/completions", prompt)
    assert sorted(len(engine.requests) for engine in made) == [0, 0, 10]


async def test_b67_what_waits_for_the_first_engine_never_exceeds_its_limit(stage: Stage) -> None:
    running, most = 0, 0

    async def play(session: Session) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)  # lets others in, if the router sent them
        await asyncio.sleep(0)
        running -= 1
        await session.reply(COMPLETION)

    engine = await stage.engine(play)
    route = a_class("agent", "agents", queue=QueueRule(ttl_milliseconds=5_000))
    router = await stage.router(a_table(a_pool("agents", max_in_flight=3), route))
    asking = [asyncio.create_task(router.post(CHAT, {**NS, "seed": index})) for index in range(40)]
    await router.until(lambda: router.router.proxy.admission.waiting == 40)
    router.write("table.json", a_table(a_pool("agents", engine.url, max_in_flight=3), route, generation="g2"))
    assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
    assert 1 <= most <= 3
    assert len(engine.requests) == 40


async def test_b69_tokens_a_minute_hold_under_parallel_calls_and_streams(stage: Stage) -> None:
    usage = b'{"usage":{"prompt_tokens":100,"completion_tokens":100}}'
    router, (one,) = await engines(stage, reply(usage), key={"limits": {"tokensPerMinute": 1_000}})
    limited = {**NS, "max_tokens": 400}
    answers = await asyncio.gather(*(router.post(CHAT, limited) for _ in range(20)))
    served = [answer for answer in answers if answer.status_code == 200]
    assert 1 <= len(served) <= 3
    assert {code(answer) for answer in answers if answer.status_code != 200} == {"key_tokens"}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status_code == 429)
    while (await router.post(CHAT, limited)).status_code == 200:
        pass
    assert len(one.requests) == 3, "three used 600 tokens, and a fourth may use 400 and its prompt"
    assert router.count("hlserve_router_client_tokens_total", "coder") == 600


async def test_b69_a_stream_that_its_client_left_is_charged_what_was_seen(stage: Stage) -> None:
    async def play(session: Session) -> None:
        await session.head()
        await session.write(delta("A") * 7)
        await session.gone.wait()

    router, _ = await engines(stage, play, key={"limits": {"tokensPerMinute": 1_000}})
    body = json.dumps(BODY).encode()
    wire = await stage.wire(router)
    await wire.send(request_head(CHAT, f"content-length: {len(body)}"), body)
    await wire.reader.readuntil(delta("A") * 7)
    wire.hang_up()
    await router.until(lambda: not router.router.face.relays)
    assert router.count("hlserve_router_client_tokens_total", "coder") == 7
    assert router.router.proxy.limits.concurrent("coder") == 0


@pytest.mark.parametrize("pinged", [False, True], ids=["B71: without pings", "B71: with pings"])
async def test_b71_a_queued_stream_is_told_that_it_waited_too_long(stage: Stage, pinged: bool) -> None:
    release = asyncio.Event()
    route: dict[str, Any] = {
        "queue": QueueRule(ttl_milliseconds=250),
        "timeouts": some_timeouts(ping_seconds=0 if pinged else 60),
    }
    router, (one,) = await engines(stage, held(release, ORDINARY), pool={"max_in_flight": 1}, **route)
    first = asyncio.create_task(router.post(CHAT, NS))
    await one.wait_for(lambda: one.open_sessions == 1)
    answer = await router.post(CHAT, BODY)
    release.set()
    assert (await first).status_code == 200
    if pinged:
        assert answer.status_code == 200
        assert "x-hlserve-pool" not in answer.headers
        events = answer.content.replace(b": ping\n", b"")
        assert json.loads(events.removeprefix(b"data: "))["error"]["code"] == "queue_expired"
        assert b": ping\n" in answer.content
    else:
        assert (answer.status_code, code(answer)) == (503, "queue_expired")
        assert int(answer.headers["retry-after"]) >= 1
    assert router.count("hlserve_router_shed_total", "agent", "queue_expired") == 1
    assert len(one.requests) == 1


async def test_b73_big_prompts_are_counted_by_size_and_do_not_hold_up_small_ones(stage: Stage) -> None:
    release = asyncio.Event()
    engine = await stage.engine(held(release, ORDINARY))
    table = a_table(
        a_pool("agents", engine.url, in_flight_tokens=100_000), a_class("agent", "agents"),
        a_class("interactive", "agents", priority=5),
    )  # fmt: skip
    keys = a_keyring(a_key(AGENT_KEY, "coder", "agent"), a_key("hls_small_0123456789", "web", "interactive"))
    router = await stage.router(table, keys)
    big = {**NS, "messages": [{"role": "user", "content": "word " * 36_000}], "max_tokens": 1}
    asking = [asyncio.create_task(router.post(CHAT, big)) for _ in range(6)]
    await router.until(lambda: router.router.proxy.admission.waiting == 4)
    small = [asyncio.create_task(router.post(CHAT, {**NS, "max_tokens": 9}, "hls_small_0123456789")) for _ in range(20)]
    await engine.wait_for(lambda: engine.open_sessions == 22)
    assert router.router.proxy.admission.waiting == 4
    release.set()
    assert {answer.status_code for answer in await asyncio.gather(*asking, *small)} == {200}


async def test_b74_sub_agents_of_one_session_spread(stage: Stage) -> None:
    router, made = await engines(stage, *[ORDINARY] * 4)
    homes: dict[int, Counter[int]] = {}
    for turn in range(3):
        for agent in range(12):
            first = {"role": "user", "content": f"you are sub-agent {agent} " + "x" * 300}
            later = [{"role": "assistant", "content": "ok"}] * turn
            headers = {"authorization": f"Bearer {AGENT_KEY}", "x-claude-code-session-id": "one-harness"}
            body = {"model": "m1", "messages": [first, *later], "max_tokens": 9}
            before = [len(engine.requests) for engine in made]
            await router.http.post(router.url + CHAT, json=body, headers=headers)
            after = [len(engine.requests) for engine in made]
            home = next(index for index in range(4) if after[index] != before[index])
            homes.setdefault(agent, Counter())[home] += 1
    assert all(len(counts) == 1 for counts in homes.values()), "each sub-agent stays"
    assert max(len(engine.requests) for engine in made) <= 1.5 * 36 / 4


async def test_b77_the_last_of_two_quick_changes_wins(stage: Stage) -> None:
    router, (one,) = await engines(stage, stream(delta("A"), DONE))
    for generation in ("g2", "g3"):
        router.write(
            "table.json", a_table(a_pool("agents", one.url), a_class("agent", "agents"), generation=generation)
        )
    await router.until(lambda: (table := router.router.proxy.pools.table) is not None and table.generation == "g3")
    assert (await router.post(CHAT, BODY)).content.endswith(DONE)
