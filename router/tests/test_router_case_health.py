"""Many streams at once, breakers, backpressure, engines that are gone: by the ids of the reports they come from."""

import asyncio
import json
import time

import pytest

from hlserve_api.routing import QueueRule
from hlserve_router.endpoint import FAILURES_TO_OPEN, BreakerState
from hlserve_router.testing.cases import BODY, CHAT, NS, ask, behind, endpoints, error_code, still_held
from hlserve_router.testing.documents import a_class, a_pool, a_table
from hlserve_router.testing.engine import Session
from hlserve_router.testing.scripts import ORDINARY, delta, in_turn, reply
from hlserve_router.testing.stage import Stage

PLACES = 75
"""Streams that each of the two engines takes at once."""


async def test_b54_places_of_cancelled_streams_are_taken_at_once(stage: Stage) -> None:
    async def play(session: Session) -> None:
        await session.head()
        await session.write(delta("A"))
        await session.gone.wait()

    router, made = await behind(stage, play, play, pool={"max_in_flight": PLACES})

    def open_sessions() -> int:
        return sum(engine.open_sessions for engine in made)

    wires = [await ask(stage, router) for _ in range(2 * PLACES)]
    await router.until(lambda: open_sessions() == 2 * PLACES)
    assert router.router.proxy.admission.waiting == 0, "as many connections as the table allows, not a client's default"
    assert [state.in_flight for state in endpoints(router)] == [PLACES, PLACES]
    late = [await ask(stage, router) for _ in range(PLACES)]
    await router.until(lambda: router.router.proxy.admission.waiting == PLACES)
    for wire in wires[:PLACES]:
        wire.hang_up()
    await router.until(lambda: sum(len(engine.requests) for engine in made) == 3 * PLACES)
    await router.until(lambda: open_sessions() == 2 * PLACES)
    assert router.router.proxy.admission.waiting == 0
    for wire in [*wires, *late]:
        wire.hang_up()
    await router.until(lambda: not still_held(router))
    await router.until(lambda: open_sessions() == 0)


async def test_b54_waiting_for_a_place_has_its_own_metric_and_its_own_error(stage: Stage) -> None:
    async def play(session: Session) -> None:
        await session.gone.wait()

    router, (engine,) = await behind(stage, play, pool={"max_in_flight": 1}, queue=QueueRule(ttl_milliseconds=100))
    first = await ask(stage, router, NS)
    await engine.wait_for(lambda: engine.open_sessions == 1)
    answer = await router.post(CHAT, NS)
    assert (answer.status_code, error_code(answer)) == (503, "queue_expired"), "not a connect timeout"
    page = await router.metrics()
    assert 'hlserve_router_queue_wait_seconds_count{class="agent"} 1.0' in page
    assert 'hlserve_router_queue_depth{class="agent"} 0.0' in page
    first.hang_up()


@pytest.mark.parametrize("status", [400, 404, 413, 422], ids=lambda status: f"B55: {status}")
async def test_b55_a_client_error_neither_opens_nor_closes_a_breaker(stage: Stage, status: int) -> None:
    mine = reply(b"{}", status)
    router, (one,) = await behind(stage, in_turn(*[mine] * 50, reply(b"{}", 500), mine, ORDINARY))
    (state,) = endpoints(router)
    state.failures = FAILURES_TO_OPEN - 2
    for _ in range(50):
        assert (await router.post(CHAT, NS)).status_code == status
    assert (state.failures, state.opened) == (FAILURES_TO_OPEN - 2, False)
    assert (await router.post(CHAT, NS)).status_code == 500
    assert state.failures == FAILURES_TO_OPEN - 1
    state.opened, state.open_until = True, router.router.proxy.now()
    assert (await router.post(CHAT, NS)).status_code == status
    assert state.breaker(router.router.proxy.now()) is BreakerState.HALF_OPEN
    assert state.usable(router.router.proxy.now()), "the next one may try"
    assert (await router.post(CHAT, NS)).status_code == 200
    assert state.breaker(router.router.proxy.now()) is BreakerState.CLOSED
    assert len(one.requests) == 53


async def _resets(session: Session) -> None:
    session.reset()


async def _speaks_no_http(session: Session) -> None:
    await session.raw(b"+OK ready\r\n")


async def _stops_in_a_stream(session: Session) -> None:
    await session.head()
    await session.write(delta("A"))
    session.reset()


@pytest.mark.parametrize(
    "play",
    [
        pytest.param(_resets, id="B55: a reset"),
        pytest.param(reply(b"{}", 500), id="B55: a 500"),
        pytest.param(reply(b"{}", 502), id="B55: a 502"),
        pytest.param(reply(b"{}", 504), id="B55: a 504"),
        pytest.param(_speaks_no_http, id="B55: no HTTP"),
        pytest.param(_stops_in_a_stream, id="B55: a stream that breaks"),
    ],
)
async def test_b55_what_does_open_a_breaker(stage: Stage, play: object) -> None:
    router, _ = await behind(stage, play)  # type: ignore[arg-type]  # a table of plays
    for _ in range(FAILURES_TO_OPEN):
        await router.post(CHAT, BODY)
    assert endpoints(router)[0].breaker(router.router.proxy.now()) is BreakerState.OPEN


async def test_b56_a_busy_engine_gets_less_and_is_not_unhealthy(stage: Stage) -> None:
    busy = reply(b'{"message":"Request queue timeout reached."}', 503)
    router, (one, two) = await behind(stage, in_turn(*[busy] * 3, ORDINARY), ORDINARY)
    answers = []
    for seed in range(12):
        answers.append(await router.post(CHAT, {**NS, "seed": seed}))
        await asyncio.sleep(0.02)
    assert {answer.status_code for answer in answers} == {200}
    assert len(one.requests) <= 2, "it rests longer each time"
    assert len(two.requests) >= 10
    state = endpoints(router)[0]
    assert (state.reachable, state.opened, state.failures) == (True, False, 0)


async def test_b56_when_all_are_busy_requests_wait_then_get_503_and_no_breaker_opens(stage: Stage) -> None:
    busy = reply(b'{"message":"Request queue timeout reached."}', 503)
    router, _ = await behind(stage, busy, busy, queue=QueueRule(ttl_milliseconds=300))
    before = time.monotonic()
    answers = await asyncio.gather(*(router.post(CHAT, NS) for _ in range(10)))
    assert time.monotonic() - before >= 0.3
    assert {(answer.status_code, error_code(answer)) for answer in answers} == {(503, "engine_busy")}
    assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in answers)
    assert not any(state.opened or state.failures for state in endpoints(router))


async def test_b56_a_request_that_waited_for_a_busy_engine_is_served_when_it_takes_work_again(stage: Stage) -> None:
    router, (one,) = await behind(stage, in_turn(reply(b"{}", 503), reply(b"{}", 429), ORDINARY))
    answers = await asyncio.gather(*(router.post(CHAT, {**NS, "seed": seed}) for seed in range(2)))
    assert [answer.status_code for answer in answers] == [200, 200]
    assert len(one.requests) == 4
    assert endpoints(router)[0].breaker(router.router.proxy.now()) is BreakerState.CLOSED


async def test_b57_without_any_engine_the_router_is_ready_and_says_503_at_once(stage: Stage) -> None:
    router, (one, two) = await behind(stage, ORDINARY, ORDINARY)
    await one.stop()
    await two.stop()
    await router.until(lambda: not any(state.reachable for state in endpoints(router)))
    before = time.monotonic()
    answer = await router.post(CHAT, NS)
    assert time.monotonic() - before < 0.5
    assert (answer.status_code, error_code(answer)) == (503, "no_endpoint")
    ready = await router.http.get(f"{router.admin_url}/readyz")
    assert (ready.status_code, ready.json()["pools"]) == (200, {"agents": 0})
    assert (await router.http.get(f"{router.url}/healthz")).status_code == 200
    await two.start()
    await router.until(lambda: endpoints(router)[1].reachable, 2.0)
    assert (await router.post(CHAT, NS)).status_code == 200


@pytest.mark.parametrize("up", [1, 0], ids=["B57: one of four is up", "B57: none is up"])
async def test_b57_a_router_starts_with_few_engines_or_none_and_picks_them_up_as_they_come(
    stage: Stage, up: int
) -> None:
    made = [await stage.engine(ORDINARY) for _ in range(4)]
    for engine in made[up:]:
        await engine.stop()
    table = a_table(a_pool("agents", *(engine.url for engine in made)), a_class("agent", "agents"))
    router = await stage.router(table)
    await router.until(lambda: sum(state.reachable for state in endpoints(router)) == up)
    assert (await router.http.get(f"{router.admin_url}/readyz")).json()["pools"] == {"agents": up}
    for seed in range(3):
        answer = await router.post(CHAT, {**NS, "seed": seed})
        assert (answer.status_code, error_code(answer) if not up else "") == ((200, "") if up else (503, "no_endpoint"))
    for engine in made[up:]:
        await engine.start()
    await router.until(lambda: all(state.reachable for state in endpoints(router)), 2.0)
    for seed in range(40):
        assert (
            await router.post(CHAT, {**NS, "messages": [{"role": "user", "content": f"{seed}"}]})
        ).status_code == 200
    assert all(engine.requests for engine in made)


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
    await router.until(lambda: not endpoints(router)[0].reachable)
    await one.start()
    await router.until(lambda: endpoints(router)[0].reachable, 1.0)
    stuck.set()
    server.close()


async def test_b57_when_every_breaker_is_open_one_is_still_asked(stage: Stage) -> None:
    router, made = await behind(stage, *[in_turn(*[reply(b"{}", 500)] * FAILURES_TO_OPEN, ORDINARY)] * 2)
    for engine in made:
        engine.play = in_turn(*[reply(b"{}", 500)] * FAILURES_TO_OPEN, ORDINARY)
    statuses = [(await router.post(CHAT, {**NS, "seed": seed})).status_code for seed in range(2 * FAILURES_TO_OPEN + 2)]
    assert statuses[:FAILURES_TO_OPEN] == [500] * FAILURES_TO_OPEN
    assert statuses[-1] == 200, json.dumps(statuses)


async def test_an_engine_that_requests_show_to_work_is_asked_for_its_gauges_only(stage: Stage) -> None:
    router, (engine, *_) = await behind(stage, ORDINARY)
    endpoint, now = endpoints(router)[0], router.router.proxy.now()
    endpoint.begin(1, 1, now)
    endpoint.last_byte_at = now + 60
    await router.until(lambda: len(engine.probes) > 3 and {probe.path for probe in engine.probes[-4:]} == {"/metrics"})
    endpoint.end(1, 1)
    await router.until(lambda: engine.probes[-1].path == "/health")
