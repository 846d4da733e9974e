"""Retries, breakers, balancing, queues and limits, by the ids of the reports they come from."""

import asyncio
import json
import time
from collections import Counter
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from hlserve_api.routing import Intent, QueueRule
from hlserve_router.endpoint import ABORTED_MEMORY_SECONDS, FAILURES_TO_OPEN, BreakerState, EndpointState
from hlserve_router.policy import pick
from hlserve_router.sessions import Sessions
from hlserve_router.state import AffinityResult
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_key, a_keyring, a_pool, a_table, some_timeouts
from hlserve_router.testing.engine import Play, ScriptedEngine, Session
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import COMPLETION, DONE, ORDINARY, delta, held, in_turn, reply, stream
from hlserve_router.testing.stage import Stage
from hlserve_router.testing.wire import request_head
from hlserve_router.upstream import IDLE_SECONDS, link_to

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


def an_endpoint(name: str = "e") -> EndpointState:
    return EndpointState(name, "http://127.0.0.1:1", "p", link_to("http://127.0.0.1:1"), 0.0, True)


async def test_b50_idle_connections_are_dropped_before_the_engine_drops_them(stage: Stage) -> None:
    router, (one,) = await engines(stage, ORDINARY)
    await router.post(CHAT, NS)
    (link,) = [state.link for state in states(router)]
    assert len(link.idle) == 1
    assert IDLE_SECONDS < 5, "engines keep idle connections for 5 s"
    link.idle[0].idle_since -= IDLE_SECONDS
    await router.until(lambda: not link.idle)
    assert (await router.post(CHAT, NS)).status_code == 200
    assert (link.opened, len(one.requests)) == (2, 2)


async def test_b50_an_engine_that_closes_after_each_answer_is_no_failure(stage: Stage) -> None:
    async def play(session: Session) -> None:
        await session.reply(COMPLETION)
        session.close()

    router, (one,) = await engines(stage, play)
    assert {(await router.post(CHAT, NS)).status_code for _ in range(20)} == {200}
    assert len(one.requests) == 20
    assert states(router)[0].failures == 0
    assert router.count("hlserve_router_retries_total") == 0


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        pytest.param("retry-after: 7", 6.0, 7.0, id="B53: seconds"),
        pytest.param("retry-after-ms: 250", 0.0, 0.25, id="B53: milliseconds"),
        pytest.param("retry-after: DATE", 18.0, 21.0, id="B53: a date"),
        pytest.param("retry-after: soon", 0.0, 0.5, id="B53: nonsense"),
    ],
)
async def test_b53_an_engine_is_left_alone_as_long_as_it_asks(
    stage: Stage, header: str, least: float, most: float
) -> None:
    later = format_datetime(datetime.fromtimestamp(time.time() + 20, UTC), usegmt=True)
    busy = reply(b"{}", 429, header.replace("DATE", later))
    router, (one, two) = await engines(stage, busy, busy, queue=QueueRule(ttl_milliseconds=100))
    asking = asyncio.create_task(router.post(CHAT, NS))
    await router.until(lambda: all(state.backpressured for state in states(router)))
    left = [state.busy_until - router.router.proxy.now() for state in states(router)]
    assert all(least - 0.5 <= seconds <= most for seconds in left), left
    assert not any(state.opened or state.failures for state in states(router))
    assert code(await asking) == "engine_busy"
    assert one.requests
    assert two.requests


async def test_b54_places_of_cancelled_streams_are_taken_at_once(stage: Stage) -> None:
    async def play(session: Session) -> None:
        await session.head()
        await session.write(delta("A"))
        await session.gone.wait()

    router, made = await engines(stage, play, play, pool={"max_in_flight": 50})
    body = json.dumps(BODY).encode()
    request = request_head(CHAT, f"content-length: {len(body)}") + body
    wires = [await stage.wire(router) for _ in range(150)]
    for wire in wires[:100]:
        await wire.send(request)
    await made[0].wait_for(lambda: sum(engine.open_sessions for engine in made) == 100)
    for wire in wires[100:]:
        await wire.send(request)
    await router.until(lambda: router.router.proxy.admission.waiting == 50)
    for wire in wires[:50]:
        wire.hang_up()
    await router.until(lambda: sum(len(engine.requests) for engine in made) == 150)
    await router.until(lambda: sum(engine.open_sessions for engine in made) == 100)
    assert router.router.proxy.admission.waiting == 0


async def test_b55_a_400_neither_opens_nor_closes_a_breaker(stage: Stage) -> None:
    router, (one,) = await engines(stage, in_turn(reply(b"{}", 400), reply(b"{}", 500), reply(b"{}", 404), ORDINARY))
    (state,) = states(router)
    state.failures = FAILURES_TO_OPEN - 2
    assert (await router.post(CHAT, NS)).status_code == 400
    assert (state.failures, state.opened) == (FAILURES_TO_OPEN - 2, False)
    assert (await router.post(CHAT, NS)).status_code == 500
    assert state.failures == FAILURES_TO_OPEN - 1
    state.opened, state.open_until = True, router.router.proxy.now()
    assert (await router.post(CHAT, NS)).status_code == 404
    assert state.breaker(router.router.proxy.now()) is BreakerState.HALF_OPEN
    assert (await router.post(CHAT, NS)).status_code == 200
    assert state.breaker(router.router.proxy.now()) is BreakerState.CLOSED
    assert len(one.requests) == 4


async def test_b56_when_all_are_busy_requests_wait_then_get_503_and_no_breaker_opens(stage: Stage) -> None:
    busy = reply(b'{"message":"Request queue timeout reached."}', 503)
    router, _ = await engines(stage, busy, busy, queue=QueueRule(ttl_milliseconds=300))
    before = time.monotonic()
    answers = await asyncio.gather(*(router.post(CHAT, NS) for _ in range(10)))
    assert time.monotonic() - before >= 0.3
    assert {(answer.status_code, code(answer)) for answer in answers} == {(503, "engine_busy")}
    assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in answers)
    assert not any(state.opened or state.failures for state in states(router))


async def test_b57_without_any_engine_the_router_is_ready_and_says_503_at_once(stage: Stage) -> None:
    router, (one, two) = await engines(stage, ORDINARY, ORDINARY)
    await one.stop()
    await two.stop()
    await router.until(lambda: not any(state.reachable for state in states(router)))
    before = time.monotonic()
    answer = await router.post(CHAT, NS)
    assert time.monotonic() - before < 0.5
    assert (answer.status_code, code(answer)) == (503, "no_endpoint")
    ready = await router.http.get(f"{router.url}/readyz")
    assert (ready.status_code, ready.json()["pools"]) == (200, {"agents": 0})
    assert (await router.http.get(f"{router.url}/healthz")).status_code == 200
    await two.start()
    await router.until(lambda: states(router)[1].reachable, 2.0)
    assert (await router.post(CHAT, NS)).status_code == 200


async def test_b57_an_engine_that_hangs_does_not_hide_that_another_is_back(stage: Stage) -> None:
    stuck = asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await stuck.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    one = await stage.engine(ORDINARY)
    pool = a_pool("agents", one.url, f"http://127.0.0.1:{port}")
    router = await stage.router(a_table(pool, a_class("agent", "agents")))
    await one.stop()
    await router.until(lambda: not states(router)[0].reachable)
    await one.start()
    await router.until(lambda: states(router)[0].reachable, 1.0)
    stuck.set()
    server.close()


def test_b59_sessions_come_back_to_an_engine_that_was_busy_and_leave_one_that_died() -> None:
    home, other = an_endpoint("home"), an_endpoint("other")

    def choice(now: float) -> tuple[str, AffinityResult]:
        views = [state.view(now, weight=1, max_in_flight=None, max_tokens=None) for state in (home, other)]
        found = pick(Intent.AGENT, views, 10, "key", "home", 0)
        assert found is not None
        return views[found.index].id, found.affinity

    assert choice(0.0) == ("home", AffinityResult.HIT)
    home.hold_off(0.0, 10.0)
    assert choice(1.0) == ("other", AffinityResult.ESCAPED)
    assert choice(10.0) == ("home", AffinityResult.HIT)
    home.reachable = False
    assert choice(11.0) == ("other", AffinityResult.MISS)


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


def test_b62_the_memory_of_sessions_is_bounded_and_forgets_removed_engines() -> None:
    sessions, one, two = Sessions(limit=1_000), an_endpoint("one"), an_endpoint("two")
    for index in range(20_000):
        sessions.settle(f"key {index}", (one, two)[index % 2], float(index))
    assert len(sessions) == one.sessions + two.sessions == 1_000
    assert sessions.home("key 19998") is one
    one.removed = True
    assert sessions.home("key 19998") is None
    assert sessions.home("key 19999") is two


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


def test_b23_what_was_given_up_is_forgotten_although_nobody_scrapes() -> None:
    state = an_endpoint()
    for index in range(10_000):
        state.gave_up(f"hls-{index}", index * 0.1)
    assert len(state.aborted) <= ABORTED_MEMORY_SECONDS / 0.1 + 1


async def test_b77_the_last_of_two_quick_changes_wins(stage: Stage) -> None:
    router, (one,) = await engines(stage, stream(delta("A"), DONE))
    for generation in ("g2", "g3"):
        router.write(
            "table.json", a_table(a_pool("agents", one.url), a_class("agent", "agents"), generation=generation)
        )
    await router.until(lambda: (table := router.router.proxy.pools.table) is not None and table.generation == "g3")
    assert (await router.post(CHAT, BODY)).content.endswith(DONE)


@pytest.mark.parametrize(
    ("limits", "unit", "limit"),
    [
        pytest.param({"requestsPerMinute": 1}, "requests", "1", id="B53: requests a minute"),
        pytest.param({"tokensPerMinute": 40}, "tokens", "40", id="B53: tokens a minute"),
    ],
)
async def test_b53_a_limit_of_our_own_tells_what_it_is(
    stage: Stage, limits: dict[str, int], unit: str, limit: str
) -> None:
    router, _ = await engines(stage, ORDINARY, key={"limits": limits})
    assert (await router.post(CHAT, NS)).status_code == 200
    refused = await router.post(CHAT, NS)
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.headers[f"x-ratelimit-limit-{unit}"] == limit
    assert 0 <= int(refused.headers[f"x-ratelimit-remaining-{unit}"]) < int(limit)
    seconds = refused.headers[f"x-ratelimit-reset-{unit}"]
    assert seconds.endswith("s")
    assert 1 <= int(seconds[:-1]) <= 60
