"""Clients that leave, engines that do not let go, places that must come back: by the ids of the reports they come from."""

import asyncio
import logging
import time
from typing import Any

import httpx
import pytest

from hlserve_api.answers import Reason
from hlserve_api.compile.table import CLASS_DEFAULTS
from hlserve_api.routing import Intent
from hlserve_router import build
from hlserve_router.endpoint import ABORTED_MEMORY_SECONDS, EndpointState
from hlserve_router.receiver import Receiver
from hlserve_router.state import EngineRequest
from hlserve_router.testing.cases import (
    BODY,
    CHAT,
    NS,
    ask,
    behind,
    complaints,
    endings,
    endpoints,
    error_code,
    reading,
    request_lines,
    still_held,
)
from hlserve_router.testing.documents import some_timeouts
from hlserve_router.testing.engine import Session
from hlserve_router.testing.scripts import (
    COMPLETION,
    DONE,
    ORDINARY,
    delta,
    either,
    held,
    passed_on,
    reply,
    usage_event,
)
from hlserve_router.testing.stage import Stage
from hlserve_router.upstream import Call, Link, UpstreamClient, link_to

source_only = pytest.mark.skipif(build.compiled(), reason="its fault is a state that compiled code refuses to take")


async def half_an_answer(session: Session) -> None:
    """A whole answer whose end never comes."""
    await session.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{")
    await session.gone.wait()


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/generate"]
)
async def test_b19_a_client_leaves_a_call_that_is_not_streamed(
    stage: Stage, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    caplog.set_level(logging.INFO)
    router, (engine,) = await behind(stage, held(asyncio.Event(), ORDINARY))
    wire = await ask(stage, router, {**NS, "prompt": "x", "input": "x", "text": "x", "max_tokens": 5}, path)
    await engine.wait_for(lambda: engine.open_sessions == 1)
    before = time.monotonic()
    wire.hang_up()
    await engine.wait_for(lambda: engine.open_sessions == 0)
    await router.until(lambda: not still_held(router))
    assert time.monotonic() - before < 1.0
    assert endings(router) == [("client_gone", "")]
    assert router.count("hlserve_router_client_gone_total", "agent", "prefill") == 1
    assert [line["outcome"] for line in request_lines(caplog.records)] == ["client_gone"]
    assert complaints(caplog.records) == []


async def test_b19_a_client_leaves_in_the_middle_of_a_whole_answer(stage: Stage) -> None:
    router, (engine,) = await behind(stage, half_an_answer)
    wire = await ask(stage, router, NS)
    await router.until(lambda: endpoints(router)[0].last_byte_at > 0)
    wire.hang_up()
    await engine.wait_for(lambda: engine.open_sessions == 0, 1.0)
    await router.until(lambda: not still_held(router))
    assert endings(router) == [("client_gone", "")]


async def test_b19_a_client_that_ends_its_sending_half_has_left(stage: Stage) -> None:
    """Nobody can tell it from one that closed, whose place must be freed."""
    router, (engine,) = await behind(stage, held(asyncio.Event(), ORDINARY))
    wire = await ask(stage, router, NS)
    await engine.wait_for(lambda: engine.open_sessions == 1)
    wire.writer.write_eof()
    await engine.wait_for(lambda: engine.open_sessions == 0, 1.0)
    await router.until(lambda: not still_held(router))
    assert endings(router) == [("client_gone", "")]


@pytest.mark.parametrize(
    ("body", "ping_seconds"),
    [
        pytest.param(NS, 60, id="B20: not streamed"),
        pytest.param(BODY, 60, id="B20: streamed"),
        pytest.param(BODY, 0, id="B20: streamed, with pings on its way"),
    ],
)
async def test_b20_a_request_whose_client_left_the_queue_is_never_sent(
    stage: Stage, body: dict[str, Any], ping_seconds: int
) -> None:
    release = asyncio.Event()
    router, (engine,) = await behind(
        stage, held(release, ORDINARY), pool={"max_in_flight": 1}, timeouts=some_timeouts(ping_seconds=ping_seconds)
    )
    first = asyncio.create_task(router.post(CHAT, {**NS, "seed": 1}))
    await engine.wait_for(lambda: len(engine.requests) == 1)
    ghost = await ask(stage, router, {**body, "seed": 2})
    last = asyncio.create_task(router.post(CHAT, {**NS, "seed": 3}))
    await router.until(lambda: router.router.proxy.admission.waiting == 2)
    if body["stream"] and not ping_seconds:
        await ghost.reader.readuntil(b": ping\n")
    ghost.hang_up()
    await router.until(lambda: router.router.proxy.admission.depth("agent").count == 1, 1.0)
    assert not release.is_set()
    release.set()
    assert [answer.status_code for answer in await asyncio.gather(first, last)] == [200, 200]
    assert [request.json["seed"] for request in engine.requests] == [1, 3]
    assert router.count("hlserve_router_client_gone_total", "agent", "queue") == 1
    assert still_held(router) == {}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses"], ids=lambda path: f"B21: {path}")
async def test_b21_an_engine_that_ignores_the_abort_is_shown_and_counts_as_loaded(stage: Stage, path: str) -> None:
    ids: list[str] = []

    async def goes_on(session: Session) -> None:
        body = session.request.json
        ids.append(session.request.header("x-override-rid") or body.get("rid") or body["request_id"])
        await session.gone.wait()
        session.engine.gauges = {"num_running_reqs": 1, "num_queue_reqs": 0}  # and never less

    router, (stuck, other) = await behind(
        stage, either(goes_on, ORDINARY), ORDINARY, intent=Intent.INTERACTIVE, settings={"abort_grace_seconds": 0.3}
    )
    other.play = stuck.play
    wire = await ask(stage, router, {**BODY, "prompt": "x", "input": "x"}, path)
    await router.until(lambda: bool(ids))
    (at,) = [number for number, engine in enumerate((stuck, other)) if engine.requests]
    engine = (stuck, other)[at]
    wire.hang_up()
    await engine.wait_for(lambda: engine.open_sessions == 0 and bool(engine.aborts))
    assert engine.aborts == [{"rid": ids[0]}], "its own id, never all of them"
    assert len(ids[0]) > 20
    state = endpoints(router)[at]
    await router.until(lambda: state.gauges is not None and state.gauges.running == 1)
    await router.until(lambda: sum(_zombies(router)) == 1)
    assert 'hlserve_router_zombie_requests{pool="agents"} 1.0' in await router.metrics()
    assert still_held(router) == {}
    for seed in range(6):
        assert (await router.post(CHAT, {**NS, "seed": seed})).status_code == 200
    assert len(engine.requests) == 1, "the engine that is loaded gets nothing new while another is idle"
    engine.gauges = {"num_running_reqs": 0, "num_queue_reqs": 0}
    await router.until(lambda: sum(_zombies(router)) == 0)


def _zombies(router: Any) -> list[float]:
    return [value for name, _, value in router.router.gauges() if name == "hlserve_router_zombie_requests"]


class _CallThatFailsToClose(Call):
    def abort(self) -> None:
        super().abort()
        raise OSError("the socket could not be closed")


class _ClientThatFailsToClose(UpstreamClient):
    def send(self, link: Link, request: EngineRequest, receiver: Receiver) -> Call:
        call = _CallThatFailsToClose(self, link, request, receiver)
        call.start()
        return call


@source_only
async def test_b23_a_fault_while_cleaning_up_keeps_nothing(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    release = asyncio.Event()

    async def play(session: Session) -> None:
        await session.until(release)
        session.reset()

    router, (engine,) = await behind(stage, play, key={"limits": {"maxConcurrent": 100}})
    router.router.intake.client = _ClientThatFailsToClose()
    wires = [await ask(stage, router) for _ in range(100)]
    await engine.wait_for(lambda: engine.open_sessions == 100)
    assert (await router.post(CHAT, NS)).status_code == 429
    for wire in wires:
        wire.hang_up()
    await router.until(lambda: not still_held(router))
    assert router.count("hlserve_router_internal_errors_total") == 100
    assert [record.getMessage() for record in caplog.records if record.exc_info].count("closing failed") == 100
    release.set()
    answers = await asyncio.gather(*(router.post(CHAT, NS) for _ in range(100)))
    assert {answer.status_code for answer in answers} == {502}
    assert still_held(router) == {}
    assert not router.router.face.relays
    assert len(router.router.proxy.limits) == 1


@source_only
@pytest.mark.parametrize("when", ["in mid-stream", "before the first byte"])
async def test_b23_a_fault_of_the_router_in_one_stream_is_that_streams_alone(
    stage: Stage, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    release = asyncio.Event()

    async def play(session: Session) -> None:
        if when == "in mid-stream":
            await session.head()
            await session.write(delta("A"))
        await session.until(release)
        if when != "in mid-stream":
            await session.head()
        await session.write(usage_event() + DONE)
        await session.end()

    router, (engine,) = await behind(stage, either(play, ORDINARY))
    asking = [asyncio.create_task(router.post(CHAT, BODY, x_request_id=f"r{index}")) for index in range(3)]
    await engine.wait_for(lambda: engine.open_sessions == 3)
    relays = router.router.face.relays
    await router.until(lambda: when != "in mid-stream" or all(relay.exchange.first_event for relay in relays))
    (broken,) = [relay for relay in relays if relay.exchange.head.request_id == "r1"]
    broken.exchange.facts = None  # type: ignore[assignment]  # a state that cannot be
    release.set()
    one, two, three = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(one, httpx.Response)
    assert isinstance(three, httpx.Response)
    assert [answer.content.count(DONE) for answer in (one, three)] == [1, 1]
    assert isinstance(two, httpx.HTTPError) or DONE not in two.content  # type: ignore[union-attr]
    await router.until(lambda: not still_held(router))
    assert router.count("hlserve_router_internal_errors_total") >= 1
    assert [record for record in caplog.records if record.exc_info]
    assert (await router.post(CHAT, NS)).status_code == 200


def test_b23_what_was_given_up_is_forgotten_although_nobody_scrapes() -> None:
    state = EndpointState("e", "http://127.0.0.1:1", "p", link_to("http://127.0.0.1:1"), 0.0, True)
    for index in range(10_000):
        state.gave_up(f"hls-{index}", index * 0.1)
    assert len(state.aborted) <= ABORTED_MEMORY_SECONDS / 0.1 + 1


@pytest.mark.parametrize("body", [BODY, NS], ids=["B24: streams", "B24: whole answers"])
async def test_b24_a_place_is_held_until_the_last_byte(stage: Stage, body: dict[str, Any]) -> None:
    ends = [asyncio.Event() for _ in range(3)]

    async def play(session: Session) -> None:
        await session.head(200, "text/event-stream" if body["stream"] else "application/json")
        await session.write(delta("A") if body["stream"] else COMPLETION[:9])
        await session.until(ends[session.request.json["seed"]])
        await session.write(DONE if body["stream"] else COMPLETION[9:])
        await session.end()

    router, (engine,) = await behind(stage, play, key={"limits": {"maxConcurrent": 2}})
    two = [asyncio.create_task(router.post(CHAT, {**body, "seed": seed})) for seed in range(2)]
    await engine.wait_for(lambda: engine.open_sessions == 2)
    await passed_on()
    third = await router.post(CHAT, {**body, "seed": 2})
    assert (third.status_code, error_code(third)) == (429, "key_concurrency")
    ends[0].set()
    assert (await two[0]).status_code == 200
    ends[2].set()
    assert (await router.post(CHAT, {**body, "seed": 2})).status_code == 200
    ends[1].set()
    assert (await two[1]).status_code == 200


@pytest.mark.parametrize("body", [BODY, NS], ids=["B25: a stream", "B25: a whole answer"])
async def test_b25_a_long_silence_inside_the_classs_limits_is_waited_for(stage: Stage, body: dict[str, Any]) -> None:
    """One second stands for twenty minutes: nothing in the router ends it but the class's own limits."""
    late = asyncio.Event()
    router, (engine,) = await behind(
        stage, held(late, ORDINARY), settings={"body_timeout_seconds": 0.2, "connect_timeout_seconds": 0.2}
    )
    asking = asyncio.create_task(router.post(CHAT, body))
    await engine.wait_for(lambda: engine.open_sessions == 1)
    await asyncio.sleep(1.0)
    late.set()
    answer = await asking
    assert (answer.status_code, DONE in answer.content) == (200, body["stream"])
    assert len(engine.requests) == 1


@pytest.mark.parametrize("body", [BODY, NS], ids=["B25: a stream", "B25: a whole answer"])
async def test_b25_a_total_limit_ends_the_engines_work(stage: Stage, body: dict[str, Any]) -> None:
    router, (engine,) = await behind(stage, held(asyncio.Event(), reply()), timeouts=some_timeouts(total_seconds=1))
    answer = await router.post(CHAT, body)
    assert (answer.status_code, error_code(answer)) == (504, "total_timeout")
    assert answer.headers["x-should-retry"] == "false"
    await engine.wait_for(lambda: engine.open_sessions == 0 and len(engine.aborts) == 1)
    assert engine.aborts == [{"rid": engine.requests[0].header("x-override-rid")}]
    assert endings(router) == [("timeout", Reason.TOTAL_TIMEOUT.value)]


async def test_b25_a_total_limit_counts_the_whole_stream(stage: Stage) -> None:
    async def ticks_for_ever(session: Session) -> None:
        await session.head()
        while not session.gone.is_set():
            await session.write(delta("A"))
            await asyncio.sleep(0.05)

    router, (engine,) = await behind(stage, ticks_for_ever, timeouts=some_timeouts(total_seconds=1))
    async with reading(router) as answer:
        body = await answer.aread()
    assert body.startswith(delta("A") * 5)
    assert b'"total_timeout"' in body.rpartition(b"data: ")[2]
    assert endings(router) == [("timeout", "total_timeout")]
    await engine.wait_for(lambda: engine.open_sessions == 0 and len(engine.aborts) == 1)


@pytest.mark.parametrize("intent", [Intent.AGENT, Intent.BATCH], ids=lambda intent: f"B25: {intent}")
def test_b25_programs_get_an_hour_at_least_unless_their_class_says_less(intent: Intent) -> None:
    timeouts = CLASS_DEFAULTS[intent].timeouts
    assert timeouts.total_seconds >= 3600
    assert timeouts.start_seconds >= 600
    assert timeouts.silence_seconds >= 600


async def test_b25_a_call_is_answered_before_its_client_gives_up(stage: Stage) -> None:
    router, (engine,) = await behind(stage, held(asyncio.Event(), reply()))
    answer = await router.post(CHAT, NS, x_stainless_read_timeout="1.0")
    assert (answer.status_code, error_code(answer)) == (504, "total_timeout")
    await engine.wait_for(lambda: engine.open_sessions == 0)
