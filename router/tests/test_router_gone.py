"""A client that goes away frees its place everywhere, within a second: in the queue, in a silent prefill, in mid-stream."""

import asyncio
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from hlserve_router.testing.documents import AGENT_KEY, a_class, a_pool, a_table
from hlserve_router.testing.engine import ScriptedEngine, Session
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import ORDINARY, delta, held
from hlserve_router.testing.stage import Stage

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}


class Client:
    """A client that can hang up."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def asking(cls, url: str, body: bytes) -> "Client":
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {AGENT_KEY}\r\ncontent-type: application/json\r\n"
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        return cls(reader, writer)

    def hang_up(self) -> None:
        self._writer.transport.abort()


BODY = b'{"model":"m1","messages":[{"role":"user","content":"hi"}],"stream":true}'
WHOLE = BODY.replace(b"true", b"false")


async def set_up(stage: Stage, play: Any, **pool: Any) -> tuple[RunningRouter, ScriptedEngine]:
    engine = await stage.engine(play)
    return await stage.router(a_table(a_pool("agents", engine.url, **pool), a_class("agent", "agents"))), engine


def assert_all_free(router: RunningRouter) -> None:
    proxy = router.router.proxy
    assert all((e.in_flight, e.in_flight_tokens) == (0, 0) for e in proxy.pools.endpoints())
    assert proxy.limits.concurrent("coder") == 0
    assert proxy.admission.waiting == 0
    assert proxy.admission.depth("agent").size_bytes == 0
    assert not router.router.face.relays
    assert all(count == 0 for pool in proxy.pools.pools.values() for count in pool.in_flight_by_class.values())


@pytest.mark.parametrize("body", [BODY, WHOLE], ids=["stream", "no stream"])
async def test_in_a_silent_prefill(stage: Stage, body: bytes) -> None:
    router, engine = await set_up(stage, held(asyncio.Event(), ORDINARY))
    client = await Client.asking(router.url, body)
    await engine.wait_for(lambda: engine.open_sessions == 1)
    before = time.monotonic()
    client.hang_up()
    await engine.wait_for(lambda: engine.open_sessions == 0 and bool(engine.aborts))
    assert time.monotonic() - before < 1.0
    await router.until(lambda: router.count("hlserve_router_client_gone_total", "agent", "prefill") == 1)
    assert_all_free(router)
    assert engine.aborts == [{"rid": engine.requests[0].header("x-override-rid")}]
    assert router.count("hlserve_router_requests_total", "agent", "agents", "client_gone", "") == 1


async def test_in_mid_stream(stage: Stage) -> None:
    async def play(session: Session) -> None:
        await session.head()
        await session.write(delta("A"))
        await session.gone.wait()

    router, engine = await set_up(stage, play)
    client = await Client.asking(router.url, BODY)
    await client.reader.readuntil(b'"A"')
    before = time.monotonic()
    client.hang_up()
    await engine.wait_for(lambda: engine.open_sessions == 0)
    assert time.monotonic() - before < 1.0
    await router.until(lambda: router.count("hlserve_router_client_gone_total", "agent", "stream") == 1)
    assert_all_free(router)


async def test_in_the_queue_and_it_is_never_sent_to_an_engine(stage: Stage) -> None:
    release = asyncio.Event()
    router, engine = await set_up(stage, held(release, ORDINARY), max_in_flight=1)
    first = asyncio.create_task(router.post(CHAT, {**NS, "seed": 1}))
    await engine.wait_for(lambda: len(engine.requests) == 1)
    ghost = await Client.asking(router.url, WHOLE)
    last = asyncio.create_task(router.post(CHAT, {**NS, "seed": 3}))
    await router.until(lambda: router.router.proxy.admission.waiting == 2)
    ghost.hang_up()
    await router.until(lambda: router.router.proxy.admission.waiting == 1, 1.0)
    assert not release.is_set()
    release.set()
    assert [answer.status_code for answer in await asyncio.gather(first, last)] == [200, 200]
    assert [request.json.get("seed") for request in engine.requests] == [1, 3]
    assert router.count("hlserve_router_client_gone_total", "agent", "queue") == 1
    assert_all_free(router)


async def test_while_its_body_is_on_the_way(stage: Stage) -> None:
    router, engine = await set_up(stage, ORDINARY)
    parts = urlsplit(router.url)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {AGENT_KEY}\r\ncontent-length: 100\r\n\r\n{{"
    writer.write(head.encode())
    await router.until(lambda: len(router.router.face.relays) == 1)
    writer.transport.abort()
    await router.until(lambda: not router.router.face.relays)
    assert_all_free(router)
    assert not engine.requests
