"""Engines that fail: retries before the first byte, the breaker, backpressure, keep-alive races."""

import asyncio
from typing import Any

import pytest

from hlserve_api.routing import Intent, QueueRule
from hlserve_router.endpoint import BUSY_MAX_SECONDS, BUSY_SECONDS, FAILURES_TO_OPEN, BreakerState, EndpointState
from hlserve_router.retries import RetryBudget, may_retry
from hlserve_router.state import Failure
from hlserve_router.testing.documents import a_class, a_pool, a_table, some_timeouts
from hlserve_router.testing.engine import Play, ScriptedEngine, Session
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import COMPLETION, DONE, ORDINARY, delta, in_turn, reply, stream
from hlserve_router.testing.stage import Stage
from hlserve_router.upstream import link_to

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}


async def reset(session: Session) -> None:
    session.reset()


async def engines(stage: Stage, *plays: Play, **route: Any) -> tuple[RunningRouter, list[ScriptedEngine]]:
    made = [await stage.engine(play) for play in plays]
    table = a_table(a_pool("agents", *(engine.url for engine in made)), a_class("agent", "agents", **route))
    return await stage.router(table), made


def endpoint(now: float = 0.0) -> EndpointState:
    return EndpointState("e", "http://127.0.0.1:1", "p", link_to("http://127.0.0.1:1"), now, True)


@pytest.mark.parametrize("bad", [reset, reply(b"{}", 502)], ids=["a reset", "a 502"])
async def test_another_engine_is_tried_before_the_first_byte(stage: Stage, bad: Play) -> None:
    router, (one, two) = await engines(stage, bad, ORDINARY)
    answers = [await router.post(CHAT, NS) for _ in range(4)]
    assert all(answer.content == COMPLETION for answer in answers)
    assert len(one.requests) >= 1
    assert router.count("hlserve_router_retries_total", "agents", "reset") == len(one.requests)
    assert router.count("hlserve_router_requests_total", "agent", "agents", "ok", "") == 4
    assert len(two.requests) == 4


async def test_a_dead_engine_is_left_out_and_comes_back(stage: Stage) -> None:
    router, (one, two) = await engines(stage, ORDINARY, ORDINARY)
    await one.stop()
    assert {(await router.post(CHAT, NS)).status_code for _ in range(10)} == {200}
    assert len(two.requests) == 10
    await one.start()
    states = router.router.proxy.pools.pools["agents"].endpoints
    await router.until(lambda: states["agents-0"].reachable, 2.0)
    for _ in range(4):
        await router.post(CHAT, NS)
    assert one.requests


async def test_an_engine_killed_in_mid_stream_marks_that_stream_and_the_other_engine_carries_on(stage: Stage) -> None:
    async def play(session: Session) -> None:
        await session.head()
        await session.write(delta("A"))
        await session.gone.wait()

    router, (one, two) = await engines(stage, play, ORDINARY)
    asking = [asyncio.create_task(router.post(CHAT, {**NS, "stream": True})) for _ in range(2)]
    await one.wait_for(lambda: one.open_sessions >= 1)
    await router.until(lambda: any(relay.exchange.first_event for relay in router.router.face.relays))
    await one.stop()
    answers = await asyncio.gather(*asking)
    broken = [answer for answer in answers if DONE not in answer.content]
    assert len(broken) == 1
    assert b'"error"' in broken[0].content
    assert (await router.post(CHAT, NS)).status_code == 200
    assert two.requests


async def test_client_errors_leave_the_breaker_alone(stage: Stage) -> None:
    router, (one,) = await engines(stage, reply(b'{"error":{}}', 400))
    for _ in range(2 * FAILURES_TO_OPEN):
        assert (await router.post(CHAT, NS)).status_code == 400
    state = next(iter(router.router.proxy.pools.endpoints()))
    assert (state.failures, state.opened) == (0, False)
    assert len(one.requests) == 2 * FAILURES_TO_OPEN


async def test_server_errors_pass_and_open_the_breaker_but_never_take_out_the_last_engine(stage: Stage) -> None:
    router, (one,) = await engines(stage, reply(b'{"error":{"message":"CUDA"}}', 500))
    for _ in range(FAILURES_TO_OPEN + 3):
        answer = await router.post(CHAT, NS)
        assert (answer.status_code, answer.json()["error"]["message"]) == (500, "CUDA")
    state = next(iter(router.router.proxy.pools.endpoints()))
    assert state.opened
    assert len(one.requests) == FAILURES_TO_OPEN + 3
    assert (
        'hlserve_router_endpoint_breaker{endpoint="agents-0",pool="agents",state="open"} 1.0' in await router.metrics()
    )


async def test_an_open_breaker_sends_work_to_the_other_engine(stage: Stage) -> None:
    router, (one, two) = await engines(stage, reply(b"{}", 500), ORDINARY)
    for _ in range(30):
        await router.post(CHAT, NS)
    assert len(one.requests) == FAILURES_TO_OPEN
    assert len(two.requests) == 30 - FAILURES_TO_OPEN


@pytest.mark.parametrize("status", [429, 503])
async def test_backpressure_goes_elsewhere_and_is_no_failure(stage: Stage, status: int) -> None:
    router, (one, two) = await engines(stage, reply(b'{"message":"queue"}', status, "retry-after: 30"), ORDINARY)
    answers = [await router.post(CHAT, NS) for _ in range(8)]
    assert {answer.status_code for answer in answers} == {200}
    assert len(one.requests) == 1
    assert len(two.requests) == 8
    states = router.router.proxy.pools.pools["agents"].endpoints
    assert states["agents-0"].failures == 0
    assert states["agents-0"].busy(router.router.proxy.now())


async def test_a_request_waits_in_the_queue_until_a_busy_engine_takes_it(stage: Stage) -> None:
    router, (one,) = await engines(stage, in_turn(reply(b"{}", 503), ORDINARY))
    assert (await router.post(CHAT, NS)).status_code == 200
    assert len(one.requests) == 2
    assert router.count("hlserve_router_retries_total", "agents", "busy") == 1


async def test_busy_as_first_event_of_a_stream_waits_too(stage: Stage) -> None:
    busy = b'data: {"error":{"message":"queue full","code":503}}\n\n'
    router, (one,) = await engines(stage, in_turn(stream(busy, DONE), ORDINARY))
    answer = await router.post(CHAT, {**NS, "stream": True})
    assert answer.content.endswith(DONE)
    assert len(one.requests) == 2


async def test_when_all_are_busy_many_clients_make_few_attempts(stage: Stage) -> None:
    router, made = await engines(
        stage, reply(b"{}", 503), reply(b"{}", 503), queue=QueueRule(max_depth=500, ttl_milliseconds=1500)
    )
    answers = await asyncio.gather(*(router.post(CHAT, NS) for _ in range(60)))
    assert {answer.json()["error"]["code"] for answer in answers} == {"engine_busy"}
    assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in answers)
    after_the_first_wave = sum(len(engine.requests) for engine in made) - 60
    assert after_the_first_wave <= 6


async def test_a_slow_failure_is_not_repeated_and_tells_sdks_so(stage: Stage) -> None:
    async def slow(session: Session) -> None:
        await asyncio.sleep(0.05)
        session.reset()

    router, made = await engines(stage, slow, slow, timeouts=some_timeouts(retry_cutoff_seconds=0))
    answer = await router.post(CHAT, NS)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (502, "false")
    assert sum(len(engine.requests) for engine in made) == 1


async def test_a_reused_connection_that_the_engine_just_closed_is_replaced_unseen(stage: Stage) -> None:
    async def once(session: Session) -> None:
        await session.reply(COMPLETION)
        session.keep_alive = True

    closing = asyncio.Event()

    async def closes_on_the_next(session: Session) -> None:
        if closing.is_set():
            closing.clear()
            session.reset()
        else:
            await once(session)

    router, (one,) = await engines(stage, closes_on_the_next)
    assert (await router.post(CHAT, NS)).status_code == 200
    closing.set()
    assert (await router.post(CHAT, NS)).status_code == 200
    assert len(one.requests) == 3
    assert router.count("hlserve_router_retries_total") == 0
    assert next(iter(router.router.proxy.pools.endpoints())).failures == 0


async def test_many_streams_at_once_need_no_waiting(stage: Stage) -> None:
    release = asyncio.Event()

    async def play(session: Session) -> None:
        await session.head()
        await session.write(delta("A"))
        await session.until(release)
        await session.write(DONE)
        await session.end()

    router, (one, two) = await engines(stage, play, play)
    asking = [asyncio.create_task(router.post(CHAT, {**NS, "stream": True})) for _ in range(150)]
    await router.until(lambda: one.open_sessions + two.open_sessions == 150, 15)
    assert abs(one.open_sessions - two.open_sessions) <= 10
    release.set()
    assert all(answer.content.endswith(DONE) for answer in await asyncio.gather(*asking))


def test_the_breaker_opens_probes_once_and_closes() -> None:
    state = endpoint()
    for _ in range(FAILURES_TO_OPEN):
        assert state.usable(0.0)
        state.begin(1, 1, 0.0)
        state.failed(0.0)
        state.end(1, 1)
    assert state.breaker(0.0) is BreakerState.OPEN
    assert not state.usable(9.9)
    assert state.breaker(10.0) is BreakerState.HALF_OPEN
    assert state.usable(10.0)
    state.begin(1, 1, 10.0)
    assert not state.usable(10.0), "one probe at a time"
    state.failed(10.0)
    assert not state.usable(29.9), "the second time it stays open twice as long"
    state.begin(1, 1, 30.0)
    state.neutral()
    assert state.breaker(30.0) is BreakerState.HALF_OPEN, "a client error closes nothing"
    state.begin(1, 1, 30.0)
    state.answered(30.0)
    assert state.breaker(30.0) is BreakerState.CLOSED


def test_backpressure_doubles_and_lets_one_through_at_a_time() -> None:
    state = endpoint()
    now, waits = 0.0, []
    for _ in range(10):
        state.hold_off(now, None)
        waits.append(state.busy_until - now)
        now = state.busy_until
        assert state.usable(now)
        state.begin(1, 1, now)
        assert not state.usable(now)
        state.end(1, 1)
    assert waits == [0.25, 0.5, 1, 2, 4, 8, 8, 8, 8, 8]
    assert max(waits) == BUSY_MAX_SECONDS
    state.answered(now)
    assert state.usable(now)


def test_a_burst_that_finds_an_engine_busy_counts_as_one_try() -> None:
    state = endpoint()
    for _ in range(20):
        state.hold_off(0.0, None)
    assert state.busy_until == BUSY_SECONDS, "a pool of one replica is not shut for a burst"
    state.hold_off(0.0, 3.0)
    assert state.busy_until == 3.0, "an engine's own Retry-After counts"


@pytest.mark.parametrize(
    ("intent", "attempts", "failure", "took", "want"),
    [
        pytest.param(Intent.INTERACTIVE, 1, Failure.RESET, 1, True, id="a quick reset is repeated once"),
        pytest.param(Intent.INTERACTIVE, 2, Failure.RESET, 1, False, id="but not twice for a chat"),
        pytest.param(Intent.AGENT, 2, Failure.RESET, 1, True, id="twice for an agent"),
        pytest.param(Intent.AGENT, 3, Failure.CONNECT, 0, False, id="never a third time"),
        pytest.param(Intent.INTERACTIVE, 1, Failure.RESET, 8, False, id="a slow reset is not repeated"),
        pytest.param(Intent.INTERACTIVE, 1, Failure.CONNECT, 8, True, id="a connect that was never made is"),
    ],
)
def test_may_retry(intent: Intent, attempts: int, failure: Failure, took: float, want: bool) -> None:
    assert may_retry(intent, attempts, failure, took, 5) is want


def test_retries_are_a_tenth_of_the_requests_after_a_burst() -> None:
    budget = RetryBudget()
    assert sum(budget.withdraw() for _ in range(100)) == 10
    retries = 0
    for _ in range(1000):
        budget.deposit()
        retries += budget.withdraw()
    assert 99 <= retries <= 101
