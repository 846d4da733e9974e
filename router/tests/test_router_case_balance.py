"""Cases of balance: hot prefixes, load of every route, index size, scale-up herds, huge prompts, sub-agents, priorities."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from hlserve_api.routing import PriorityOrder, QueueRule
from hlserve_router.sessions import Sessions
from hlserve_router.testing.choice import an_endpoint
from hlserve_router.testing.documents import AGENT_KEY, INTERACTIVE_KEY, a_class, a_pool, a_table
from hlserve_router.testing.engine import Play, ScriptedEngine, Session
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import COMPLETION, ORDINARY, either, held, reply
from hlserve_router.testing.stage import Stage

CHAT = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "You are an agent. " * 1300}


def turns(session: int, turn: int) -> dict[str, Any]:
    first = {"role": "user", "content": f"session {session:04d} " + "x" * 300}
    later = [{"role": "assistant", "content": f"turn {n} " + "y" * 200} for n in range(turn)]
    return {"model": "m1", "messages": [SYSTEM, first, *later], "max_tokens": 9}


async def pool_of(
    stage: Stage, count: int, play: Play = ORDINARY, class_: dict[str, Any] | None = None, **pool: Any
) -> tuple[RunningRouter, list[ScriptedEngine]]:
    made = [await stage.engine(play) for _ in range(count)]
    table = a_table(a_pool("agents", *(e.url for e in made), **pool), a_class("agent", "agents", **(class_ or {})))
    return await stage.router(table), made


def homes(made: list[ScriptedEngine], since: int = 0) -> dict[str, Counter[int]]:
    """Session -> how often each engine had it."""
    found: dict[str, Counter[int]] = {}
    for index, engine in enumerate(made):
        for request in engine.requests:
            if len(request.json["messages"]) - 2 >= since:
                found.setdefault(request.json["messages"][1]["content"][:12], Counter())[index] += 1
    return found


async def test_b59_a_shared_system_prompt_pins_nobody_and_every_session_stays(stage: Stage) -> None:
    router, made = await pool_of(stage, 4)
    for turn in range(3):
        for few in range(0, 64, 8):
            await asyncio.gather(*(router.post(CHAT, turns(few + session, turn)) for session in range(8)))
    found = homes(made)
    assert sum(max(counts.values()) for counts in found.values()) >= 0.95 * 64 * 3
    tokens = [sum(len(request.body) for request in engine.requests) for engine in made]
    assert max(tokens) <= 1.4 * sum(tokens) / 4


async def test_b59_in_an_overload_only_what_overflows_moves_and_comes_back(stage: Stage) -> None:
    router, made = await pool_of(stage, 4)
    for session in range(32):
        await router.post(CHAT, turns(session, 0))
    before = {session: next(iter(counts)) for session, counts in homes(made).items()}
    hot = next(
        endpoint
        for endpoint in router.router.proxy.pools.endpoints()
        if endpoint.url == made[before["session 0000"]].url
    )
    hot.work_tokens += 500_000  # as a burst of long prompts would
    for session in range(32):
        await router.post(CHAT, turns(session, 1))
    hot.work_tokens -= 500_000
    for session in range(32):
        await router.post(CHAT, turns(session, 2))
    during = homes(made, since=1)
    moved = {name for name, counts in during.items() if len(counts) > 1 or before[name] not in counts}
    assert moved == {name for name, home in before.items() if home == before["session 0000"]}
    assert homes(made, since=2) == {name: Counter({home: 1}) for name, home in before.items()}


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/embeddings", "/v1/responses", "/v1/messages", "/generate"], ids=lambda path: f"B61: {path}"
)
async def test_b61_load_is_counted_on_every_route(stage: Stage, path: str) -> None:
    release = asyncio.Event()
    made = [await stage.engine(held(release, ORDINARY)) for _ in range(2)]
    router = await stage.router(a_table(a_pool("chat", *(e.url for e in made)), a_class("interactive", "chat")))
    body = {"model": "m1", "input": "x", "text": "x", "messages": [], "max_tokens": 9}
    asking = [asyncio.create_task(router.post(path, body, INTERACTIVE_KEY)) for _ in range(20)]
    await router.until(lambda: sum(engine.open_sessions for engine in made) == 20)
    assert [engine.open_sessions for engine in made] == [10, 10]
    assert 'hlserve_router_in_flight_requests{class="interactive",pool="chat"} 20.0' in await router.metrics()
    release.set()
    await asyncio.gather(*asking)


def test_b62_the_memory_of_sessions_is_bounded_and_keeps_what_is_used() -> None:
    sessions, home = Sessions(limit=1000), an_endpoint("a")
    sessions.settle("kept", home, 0.0)
    for number in range(20_000):
        sessions.settle(f"random {number}", home, float(number))
        if number % 100 == 0:
            found = sessions.find("kept")
            assert found is not None
            sessions.touch(found, float(number))
    assert len(sessions) == 1000
    assert home.sessions == 1000
    sessions.forget_homes([home])
    assert (len(sessions), home.sessions, home.held_tokens) == (0, 0, 0)


async def test_b62_affinity_starts_with_the_first_request_and_ends_with_its_pod(stage: Stage) -> None:
    router, made = await pool_of(stage, 3)
    for _ in range(4):
        await router.post(CHAT, turns(1, 0))
    assert sorted(len(engine.requests) for engine in made) == [0, 0, 4]
    home = next(engine for engine in made if engine.requests)
    rest = [engine for engine in made if engine is not home]
    sessions = router.router.proxy.pools.sessions
    assert len(sessions) == 1
    router.write(
        "table.json",
        a_table(a_pool("agents", *(e.url for e in rest)), a_class("agent", "agents"), generation="without its home"),
    )
    await router.until(lambda: len(sessions) == 0)
    for _ in range(3):
        await router.post(CHAT, turns(1, 1))
    assert sorted(len(engine.requests) for engine in rest) == [0, 3]


async def test_b67_what_was_held_at_zero_is_released_in_order_and_within_each_pods_limit(stage: Stage) -> None:
    release = asyncio.Event()
    made = [await stage.engine(held(release, reply())) for _ in range(2)]
    peaks = [0, 0]
    agent = a_class("agent", "agents", queue=QueueRule(ttl_milliseconds=60_000))
    batch = a_class("batch", "agents", priority=-1, queue=QueueRule(ttl_milliseconds=60_000))

    def table(*urls: str) -> Any:
        return a_table(a_pool("agents", *urls, max_in_flight=8), agent, batch, generation=f"g{len(urls)}")

    router = await stage.router(table(), slow_start_seconds=0.6)
    late = [asyncio.create_task(router.post(CHAT, BODY, key_of("batch"))) for _ in range(5)]
    await router.until(lambda: router.router.proxy.admission.depth("batch").count == 5)
    early = [asyncio.create_task(router.post(CHAT, BODY)) for _ in range(30)]
    await router.until(lambda: router.router.proxy.admission.depth("agent").count == 30)
    router.write("table.json", table(made[0].url))
    await router.until(lambda: made[0].open_sessions == 8)
    router.write("table.json", table(made[0].url, made[1].url))
    await router.until(lambda: made[1].open_sessions == 1)
    newcomer = next(e for e in router.router.proxy.pools.endpoints() if e.url == made[1].url)
    assert newcomer.in_flight <= 4, "a newcomer does not get its whole share at once"
    await router.until(lambda: made[1].open_sessions == 8)
    assert router.router.proxy.admission.depth("batch").count == 5, "the less urgent class waits, though it came first"
    peaks = [engine.open_sessions for engine in made]
    release.set()
    answers = await asyncio.gather(*early, *late)
    assert {answer.status_code for answer in answers} == {200}
    assert peaks == [8, 8]


async def test_b67_what_is_held_too_long_is_told_so(stage: Stage) -> None:
    router = await stage.router(
        a_table(a_pool("agents"), a_class("agent", "agents", queue=QueueRule(ttl_milliseconds=150)))
    )
    answers = await asyncio.gather(*(router.post(CHAT, BODY) for _ in range(5)))
    assert {(answer.status_code, answer.json()["error"]["code"]) for answer in answers} == {(503, "scaling_from_zero")}


BODY = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
BIG = {"model": "m1", "messages": [{"role": "user", "content": "word " * 8_000}], "max_tokens": 1}


def key_of(class_name: str) -> str:
    return {"agent": AGENT_KEY, "interactive": INTERACTIVE_KEY, "batch": "hls_batch_0123456789abcdef0123456789abcdef0"}[
        class_name
    ]


@pytest.mark.parametrize("class_name", ["interactive", "agent"], ids=lambda name: f"B73: {name}")
async def test_b73_huge_prompts_count_their_tokens_and_small_ones_pass(stage: Stage, class_name: str) -> None:
    """A pod takes two prompts of 10,000 tokens; eight come, and forty small ones behind them."""
    release = asyncio.Event()

    async def play(session: Session) -> None:
        if len(session.request.body) > 10_000:
            await session.until(release)
        await session.reply(COMPLETION)

    made = [await stage.engine(play) for _ in range(2)]
    router = await stage.router(
        a_table(a_pool("chat", *(e.url for e in made), in_flight_tokens=25_000), a_class(class_name, "chat"))
    )
    big = [asyncio.create_task(router.post(CHAT, BIG, key_of(class_name))) for _ in range(8)]
    await router.until(lambda: sum(engine.open_sessions for engine in made) == 4)
    small = await asyncio.gather(*(router.post(CHAT, BODY, key_of(class_name)) for _ in range(40)))
    assert {answer.status_code for answer in small} == {200}
    assert [engine.open_sessions for engine in made] == [2, 2]
    release.set()
    assert {answer.status_code for answer in await asyncio.gather(*big)} == {200}


async def test_b73_one_above_the_whole_budget_is_taken_alone(stage: Stage) -> None:
    router, made = await pool_of(stage, 1, in_flight_tokens=100)
    assert (await router.post(CHAT, BIG)).status_code == 200
    assert len(made[0].requests) == 1


@pytest.mark.parametrize("header", ["x-claude-code-agent-id", "thread-id"], ids=lambda name: f"B74: {name}")
async def test_b74_sub_agents_of_one_session_spread_and_each_stays(stage: Stage, header: str) -> None:
    router, made = await pool_of(stage, 3)
    for turn in range(3):
        for agent in range(10):
            body = {"model": "m1", "messages": [{"role": "user", "content": f"{turn}"}], "max_tokens": 9}
            await router.post(CHAT, body, **{"x-session-id": "one", header: f"agent-{agent}"})
    assert all(request.header(header) is None for engine in made for request in engine.requests)
    assert max(len(engine.requests) for engine in made) <= 1.5 * 10
    assert router.count("hlserve_router_affinity_total", "agent", "agents", "hit") == 20


async def test_b74_sub_agents_are_told_apart_by_their_first_turn_too(stage: Stage) -> None:
    router, made = await pool_of(stage, 3)
    for turn in range(3):
        for agent in range(10):
            await router.post(CHAT, turns(agent, turn), x_session_id="one")
    assert max(len(engine.requests) for engine in made) <= 1.5 * 10
    assert all(len(counts) == 1 for counts in homes(made).values())


async def test_b74_request_and_trace_ids_are_no_sessions(stage: Stage) -> None:
    router, made = await pool_of(stage, 3)
    for number in range(9):
        await router.post(CHAT, BODY, x_request_id=f"r{number}", traceparent=f"00-{number}")
    assert [len(engine.requests) for engine in made] == [3, 3, 3]
    for _ in range(9):
        await router.post(CHAT, BODY, x_request_id="same", x_client_request_id="same", traceparent="00-same")
    assert [len(engine.requests) for engine in made] == [6, 6, 6]


@pytest.mark.parametrize(
    ("order", "sent"),
    [
        pytest.param(PriorityOrder.HIGHER_FIRST, "7", id="B78: the larger the sooner"),
        pytest.param(PriorityOrder.LOWER_FIRST, "-7", id="B78: the smaller the sooner"),
        pytest.param(PriorityOrder.NONE, None, id="B78: no priority mode"),
    ],
)
async def test_b78_the_classs_priority_points_the_engines_way(
    stage: Stage, order: PriorityOrder, sent: str | None
) -> None:
    router, made = await pool_of(stage, 1, class_={"priority": 7}, priority_order=order)
    await router.post(CHAT, {**BODY, "priority": 1_000_000})
    assert made[0].requests[0].header("x-override-priority") == sent
    await router.post("/v1/completions", {"model": "m1", "prompt": "x", "priority": 1_000_000})
    assert made[0].requests[1].json.get("priority") == (1_000_000 if sent is None else int(sent))
    await router.post("/v1/completions", {"model": "m1", "prompt": "x"})
    assert made[0].requests[2].json.get("priority") == (None if sent is None else int(sent))


def usage(prompt: int, completion: int) -> bytes:
    document = {**json.loads(COMPLETION), "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}
    return json.dumps(document).encode()


def said(prompt: int, completion: int) -> Play:
    return either(reply(usage(prompt, completion)), reply(usage(prompt, completion)))


async def test_active_sessions_stay_inside_the_kv_size_and_others_wait_for_their_rest(stage: Stage) -> None:
    made = [await stage.engine(said(400, 50))]
    table = a_table(a_pool("agents", made[0].url, kv_tokens=1000), a_class("agent", "agents"))
    router = await stage.router(table, session_idle_seconds=0.3)
    endpoint = next(router.router.proxy.pools.endpoints())
    assert endpoint.kv_budget == 900
    for session in range(2):
        assert (await router.post(CHAT, BODY, x_session_id=f"s{session}")).status_code == 200
    assert endpoint.held_tokens == 900, "contexts as the engine reported them"
    third = asyncio.create_task(router.post(CHAT, BODY, x_session_id="s2"))
    await router.until(lambda: router.router.proxy.admission.waiting == 1)
    assert (await router.post(CHAT, BODY, x_session_id="s0")).status_code == 200, "a session inside goes on"
    assert not third.done()
    assert (await third).status_code == 200, "it takes the place of one that rested too long"
    await router.until(lambda: endpoint.held_tokens == 0)


async def test_without_a_kv_size_the_engine_tells_it(stage: Stage) -> None:
    router, made = await pool_of(stage, 1)
    endpoint = next(router.router.proxy.pools.endpoints())
    assert endpoint.kv_budget is None
    made[0].gauges.update(num_running_reqs=0, max_total_num_tokens=5000)
    await router.until(lambda: endpoint.kv_budget == 4500)
