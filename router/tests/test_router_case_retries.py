"""Retries, keep-alive races and Retry-After, by the ids of the reports they come from."""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest

from hlserve_api.routing import QueueRule
from hlserve_router.testing.cases import BODY, CHAT, NS, ask, behind, endpoints, error_code, still_held
from hlserve_router.testing.documents import a_class, a_pool, a_table, some_timeouts
from hlserve_router.testing.engine import Play, Session
from hlserve_router.testing.scripts import COMPLETION, DONE, ORDINARY, held, in_turn, reply, stream
from hlserve_router.testing.stage import Stage
from hlserve_router.upstream import IDLE_SECONDS


async def reset(session: Session) -> None:
    session.reset()


async def close(session: Session) -> None:
    session.close()


async def test_b50_idle_connections_are_dropped_before_the_engine_drops_them(stage: Stage) -> None:
    router, (one,) = await behind(stage, ORDINARY)
    await router.post(CHAT, NS)
    (link,) = [state.link for state in endpoints(router)]
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

    router, (one,) = await behind(stage, play)
    assert {(await router.post(CHAT, NS)).status_code for _ in range(20)} == {200}
    assert len(one.requests) == 20
    assert endpoints(router)[0].failures == 0
    assert router.count("hlserve_router_retries_total") == 0


@pytest.mark.parametrize("body", [NS, BODY], ids=["a whole answer", "a stream"])
@pytest.mark.parametrize("ends", [reset, close], ids=["B50: a reset", "B50: a close"])
async def test_b50_an_engine_that_ends_a_reused_connection_when_the_next_request_comes(
    stage: Stage, ends: Play, body: dict[str, Any]
) -> None:
    """Every second request finds a connection that dies under it."""
    served: set[Any] = set()

    async def play(session: Session) -> None:
        if session.writer in served:
            await ends(session)
            return
        served.add(session.writer)
        await ORDINARY(session)

    router, (one,) = await behind(stage, play)
    answers = [await router.post(CHAT, {**body, "seed": seed}) for seed in range(20)]
    assert {answer.status_code for answer in answers} == {200}
    assert all(DONE in answer.content for answer in answers) is body["stream"]
    assert len(one.requests) == 39, "each but the first was sent twice, the second time on a new connection"
    assert endpoints(router)[0].failures == 0, "the engine is not to blame"
    assert router.count("hlserve_router_retries_total") == 0


@pytest.mark.parametrize("reused", [False, True], ids=["B50: a new connection", "B50: a reused one"])
async def test_b50_a_large_body_that_an_engine_refuses_unread_is_answered_so_and_sent_once(
    stage: Stage, reused: bool
) -> None:
    """The engine answers and closes while the body is being written, which ends in a reset behind the answer."""
    async with refusing_engine() as url:
        router = await stage.router(a_table(a_pool("agents", url), a_class("agent", "agents")))
        large = {**NS, "messages": [{"role": "user", "content": "x" * 12_000_000}]}
        for number in range(1, 6):
            if reused:
                assert (await router.post(CHAT, NS)).status_code == 200
            answer = await router.post(CHAT, large)
            assert (answer.status_code, answer.json()["error"]["message"]) == (413, f"too much, {number}")


@asynccontextmanager
async def refusing_engine() -> AsyncIterator[str]:
    """An engine in a process of its own, so that it can close while the router is in the midst of writing."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", REFUSES_LARGE_BODIES, stdout=PIPE)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.kill()
        await process.wait()


REFUSES_LARGE_BODIES = """
import socket, threading

def serve(connection):
    global refused
    while head := head_of(connection):
        length = int(head.lower().partition("content-length: ")[2].partition("\\r\\n")[0] or 0)
        if length < 100_000:
            while length:
                length -= len(connection.recv(length))
            answer(connection, 200, '{"choices":[{"message":{"content":"ok"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}')
            continue
        refused += 1
        for _ in range(8):
            connection.recv(262_144)
        answer(connection, 413, '{"error":{"message":"too much, %d"}}' % refused)
        break
    connection.close()

def head_of(connection):
    while True:
        seen = connection.recv(16384, socket.MSG_PEEK)
        if not seen:
            return ""
        head, end, _ = seen.partition(b"\\r\\n\\r\\n")
        if end:
            return connection.recv(len(head + end)).decode()

def answer(connection, status, body):
    head = "HTTP/1.1 %d X\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n" % (status, len(body))
    connection.sendall((head + body).encode())

refused = 0
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


async def test_b50_an_engine_that_ends_a_new_connection_is_to_blame(stage: Stage) -> None:
    router, (one, two) = await behind(stage, close, ORDINARY)
    assert {(await router.post(CHAT, {**NS, "seed": seed})).status_code for seed in range(6)} == {200}
    assert len(two.requests) == 6
    assert endpoints(router)[0].failures == len(one.requests) > 0


async def test_b50_an_engine_that_dies_after_the_first_byte_of_an_answer_gets_it_once(stage: Stage) -> None:
    async def play(session: Session) -> None:
        await session.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        session.close()

    router, (one,) = await behind(stage, in_turn(ORDINARY, play))
    assert (await router.post(CHAT, NS)).status_code == 200
    answer = await router.post(CHAT, NS)
    assert (answer.status_code, error_code(answer)) == (502, "engine_truncated")
    assert len(one.requests) == 2


async def test_b51_when_all_are_busy_attempts_stay_within_a_tenth_above_the_requests(stage: Stage) -> None:
    """Clients whose SDK tries three times, all at once: what they ask, not what they ask times our own."""
    busy = reply(b"{}", 503)
    router, made = await behind(stage, busy, busy, queue=QueueRule(max_depth=1_000, ttl_milliseconds=400))
    asked = 0
    for _ in range(3):
        answers = await asyncio.gather(*(router.post(CHAT, NS) for _ in range(40)))
        asked += len(answers)
        assert {answer.status_code for answer in answers} == {503}
        assert {error_code(answer) for answer in answers} <= {"engine_busy", "queue_expired"}
        waits = [int(answer.headers["retry-after"]) for answer in answers]
        assert all(1 <= wait <= 60 for wait in waits)
        assert len(set(waits)) > 1, "spread, so that they do not come back together"
    attempts = sum(len(engine.requests) for engine in made)
    assert attempts <= 1.1 * asked
    assert router.count("hlserve_router_retries_total", "agents", "busy") >= attempts
    assert still_held(router) == {}


async def test_b51_when_all_fail_retries_are_a_tenth_of_the_requests_after_a_burst(stage: Stage) -> None:
    router, made = await behind(stage, reset, reset, reset)
    answers = [await router.post(CHAT, NS) for _ in range(80)]
    assert {(answer.status_code, error_code(answer)) for answer in answers} == {(502, "engine_reset")}
    attempts = sum(len(engine.requests) for engine in made)
    assert attempts <= 1.1 * len(answers) + 10
    assert router.count("hlserve_router_retries_total", "agents", "reset") == attempts - len(answers)


@pytest.mark.parametrize(
    ("after_seconds", "attempts", "status"),
    [pytest.param(0.1, 2, 200, id="B52: quick, once more"), pytest.param(1.15, 1, 502, id="B52: slow, not again")],
)
@pytest.mark.parametrize("how", [reset, close], ids=["a reset", "a close"])
async def test_b52_only_a_quick_failure_is_tried_again(
    stage: Stage, after_seconds: float, attempts: int, status: int, how: Play
) -> None:
    """A cut-off of one second stands for one of five."""

    async def late(session: Session) -> None:
        await asyncio.sleep(after_seconds)
        await how(session)

    first = in_turn(late, ORDINARY)
    router, made = await behind(stage, first, first, timeouts=some_timeouts(retry_cutoff_seconds=1))
    made[1].play = made[0].play = in_turn(late, ORDINARY)
    before = time.monotonic()
    answer = await router.post(CHAT, NS)
    assert answer.status_code == status
    assert sum(len(engine.requests) for engine in made) == attempts
    assert time.monotonic() - before < after_seconds + 1
    assert answer.headers.get("x-should-retry") == ("false" if status == 502 else None)


@pytest.mark.parametrize("status", [429, 503], ids=["B53: a 429", "B53: a 503"])
@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        pytest.param("retry-after: 7", 6.0, 7.0, id="seconds"),
        pytest.param("retry-after-ms: 250", 0.0, 0.25, id="milliseconds"),
        pytest.param("retry-after: DATE", 18.0, 21.0, id="a date"),
        pytest.param("retry-after: 86400", 59.0, 60.0, id="a day"),
        pytest.param("retry-after: soon", 0.0, 0.5, id="nonsense"),
        pytest.param("retry-after: 0.5", 0.0, 0.5, id="a fraction"),
        pytest.param("retry-after: -3", 0.0, 0.5, id="a negative number"),
        pytest.param("x: y", 0.0, 0.5, id="none"),
    ],
)
async def test_b53_an_engine_is_left_alone_as_long_as_it_asks(
    stage: Stage, header: str, least: float, most: float, status: int
) -> None:
    later = format_datetime(datetime.fromtimestamp(time.time() + 20, UTC), usegmt=True)
    busy = reply(b"{}", status, header.replace("DATE", later))
    router, _ = await behind(stage, busy, busy)
    wire = await ask(stage, router, NS)
    await router.until(lambda: all(state.backpressured for state in endpoints(router)))
    left = [state.busy_until - router.router.proxy.now() for state in endpoints(router)]
    assert all(least - 1 <= seconds <= most for seconds in left), left
    assert not any(state.opened or state.failures for state in endpoints(router)), "cooled, not ejected"
    wire.hang_up()
    await router.until(lambda: not still_held(router))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("retry-after: 0", id="B53: zero"),
        pytest.param("retry-after-ms: 0", id="B53: zero milliseconds"),
        pytest.param("retry-after: Fri, 01 Jan 1999 00:00:00 GMT", id="B53: a date of long ago"),
    ],
)
async def test_b53_an_engine_that_asks_for_no_rest_is_not_asked_without_a_pause(stage: Stage, header: str) -> None:
    router, (one,) = await behind(stage, reply(b"{}", 429, header), queue=QueueRule(ttl_milliseconds=600))
    answer = await router.post(CHAT, NS)
    assert (answer.status_code, error_code(answer)) == (503, "engine_busy")
    assert len(one.requests) <= 3


@pytest.mark.parametrize(
    ("header", "least"),
    [pytest.param("retry-after: 7", 6, id="B53: seconds"), pytest.param("retry-after: 86400", 45, id="B53: a day")],
)
async def test_b53_clients_are_not_called_back_before_the_engines_are(stage: Stage, header: str, least: int) -> None:
    router, _ = await behind(stage, reply(b"{}", 503, header), queue=QueueRule(ttl_milliseconds=100))
    answer = await router.post(CHAT, NS)
    assert (answer.status_code, error_code(answer)) == (503, "engine_busy")
    assert least <= int(answer.headers["retry-after"]) <= 60


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
    router, _ = await behind(stage, ORDINARY, key={"limits": limits})
    assert (await router.post(CHAT, NS)).status_code == 200
    refused = await router.post(CHAT, NS)
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.headers[f"x-ratelimit-limit-{unit}"] == limit
    assert 0 <= int(refused.headers[f"x-ratelimit-remaining-{unit}"]) < int(limit)
    seconds = refused.headers[f"x-ratelimit-reset-{unit}"]
    assert seconds.endswith("s")
    assert 1 <= int(seconds[:-1]) <= 61, "in steps of a second"


async def test_b53_a_limit_of_requests_at_once_says_when_to_come_back(stage: Stage) -> None:
    release = asyncio.Event()
    router, (engine,) = await behind(stage, held(release, stream(DONE)), key={"limits": {"maxConcurrent": 1}})
    first = asyncio.create_task(router.post(CHAT, BODY))
    await engine.wait_for(lambda: engine.open_sessions == 1)
    refused = await router.post(CHAT, NS)
    assert (refused.status_code, error_code(refused)) == (429, "key_concurrency")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    release.set()
    assert (await first).status_code == 200
