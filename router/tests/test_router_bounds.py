"""What one client, engine or document can cost the others: bounds in bytes and connections, and faults that stay where they are."""

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hlserve_api.routing import EngineCredential, EngineCredentials, EngineTrust
from hlserve_router.credentials import Credentials
from hlserve_router.errors import TableError
from hlserve_router.probes import Probes, read_gauges
from hlserve_router.proxy import Clocks, Proxy
from hlserve_router.splice import READ_BYTES
from hlserve_router.splice_request import MAX_PARTS, SplicedRequest
from hlserve_router.testing.certificates import Authority
from hlserve_router.testing.documents import a_class, a_pool, a_table, some_timeouts
from hlserve_router.testing.engine import Play, ScriptedEngine, Session
from hlserve_router.testing.running import Face, RunningRouter
from hlserve_router.testing.scripts import COMPLETION, ORDINARY, begun_until, in_turn, silent
from hlserve_router.testing.stage import Stage
from hlserve_router.testing.wire import Wire, request_head
from hlserve_router.upstream import MAX_HEAD_BYTES

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
ENDLESS_BYTES = 4 * 1024 * 1024
splice_only = pytest.mark.parametrize("face", [Face.SPLICE], ids=["face splice"])


async def set_up(
    stage: Stage, play: Play = ORDINARY, *, total: int = 5, **settings: Any
) -> tuple[RunningRouter, ScriptedEngine, Wire]:
    engine = await stage.engine(play)
    timeouts = some_timeouts(total_seconds=total)
    table = a_table(a_pool("agents", engine.url), a_class("agent", "agents", timeouts=timeouts))
    router = await stage.router(table, **settings)
    return router, engine, await stage.wire(router)


# clients --------------------------------------------------------------------------------------------------------------


async def test_headers_of_nearly_nothing_are_counted_too(stage: Stage, face: Face) -> None:
    """Four bytes on the wire are one name of one byte: no bound may grow as fast as what it bounds."""
    _, _, wire = await set_up(stage, header_max_bytes=2048)
    await wire.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\n")
    answer = asyncio.create_task(wire.head())
    sent = 0
    with suppress(ConnectionError):  # the portable face closes while the client still writes
        while sent < ENDLESS_BYTES and not answer.done():
            await wire.send(b"a:\r\n" * 4096)
            sent += 4 * 4096
            await asyncio.sleep(0)
    assert sent < ENDLESS_BYTES
    if face is Face.SPLICE:
        assert (await answer)[0] == 431
    else:
        await asyncio.gather(answer, return_exceptions=True)


def requests(router: RunningRouter) -> list[SplicedRequest]:
    """Those whose turn it is, of every connection. What other tests left behind is not among them."""
    found = [connection._current for connection in router.router.splice.connections]
    return [request for request in found if request is not None]


def held_parts(router: RunningRouter) -> list[int]:
    """Sizes of the pieces of bodies that are held."""
    return [len(part) for request in requests(router) for part in request.parts]


def received(router: RunningRouter) -> int:
    """Bytes of bodies that the parser has found, over the requests in progress."""
    return sum(request.body_bytes for request in requests(router))


async def test_the_body_of_a_request_for_another_protocol_is_not_the_next_request(stage: Stage) -> None:
    """A proxy in front that sends several clients' requests on one connection would give one client's answer to another."""
    _, engine, wire = await set_up(stage)
    body = json.dumps(NS).encode()
    hidden = request_head(CHAT, f"content-length: {len(body)}") + body
    await wire.send(request_head(CHAT, "connection: upgrade", "upgrade: h2c", f"content-length: {len(hidden)}"))
    await asyncio.sleep(0.02)
    await wire.send(hidden)
    assert (await wire.answer())[0] == 400, "what is hidden is no JSON"
    with suppress(TimeoutError, OSError):  # the portable face closes; the other one waits for the next request
        async with asyncio.timeout(0.3):
            assert await wire.reader.read(1) == b""
    assert not engine.requests


async def test_the_first_of_several_requests_hears_too_that_its_client_has_left(stage: Stage) -> None:
    router, engine, wire = await set_up(stage, silent)
    body = json.dumps(NS).encode()
    await wire.send((request_head(CHAT, f"content-length: {len(body)}") + body) * 3)
    await engine.wait_for(lambda: engine.open_sessions == 1)
    wire.hang_up()
    await engine.wait_for(lambda: engine.open_sessions == 0, 2)
    await router.until(lambda: not router.router.intake.relays)
    assert router.count("hlserve_router_internal_errors_total") == 0


@splice_only
async def test_a_body_that_nobody_reads_is_not_kept(stage: Stage) -> None:
    """No key is asked for here, so anybody could fill the memory."""
    router, _, wire = await set_up(stage)
    await wire.send(b"GET /healthz HTTP/1.1\r\nhost: router\r\ncontent-length: 4000000\r\n\r\n", b"x" * 3_000_000)
    await router.until(lambda: received(router) == 3_000_000)
    assert sum(held_parts(router)) <= READ_BYTES
    await wire.send(b"x" * 1_000_000)
    assert (await wire.answer())[0] == 200


@splice_only
@pytest.mark.parametrize("pieces", [1, 30], ids=["in large reads", "in many reads"])
async def test_a_body_in_tiny_chunks_takes_little_more_than_its_bytes(stage: Stage, pieces: int) -> None:
    router, engine, wire = await set_up(stage)
    body = json.dumps({**NS, "pad": "x" * 400_000}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    await wire.send(request_head(CHAT, "transfer-encoding: chunked"))
    size = len(chunks) // pieces
    for at in range(0, len(chunks), size):
        await wire.send(chunks[at : at + size])
        await asyncio.sleep(0)
    await router.until(lambda: received(router) == len(body))
    assert sum(held_parts(router)) == len(body)
    assert len(held_parts(router)) <= MAX_PARTS
    await wire.send(b"0\r\n\r\n")
    assert (await wire.answer())[0] == 200
    assert engine.requests[0].body == body


# engines --------------------------------------------------------------------------------------------------------------


async def test_the_beginning_of_a_surplus_answer_reaches_nobody(stage: Stage) -> None:
    """The engine's bytes after its answer must not become the head of somebody else's."""

    async def play(session: Session) -> None:
        begun = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 6\r\nx-of: "
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(COMPLETION)
        await session.raw(head + COMPLETION + begun)

    router, _, _ = await set_up(stage, in_turn(play, ORDINARY))
    for _ in range(2):
        answer = await router.post(CHAT, NS)
        assert (answer.status_code, answer.content) == (200, COMPLETION)
    assert "x-of" not in answer.headers


async def test_a_head_of_an_engine_that_does_not_end_is_a_502(stage: Stage) -> None:
    sent = 0

    async def play(session: Session) -> None:
        nonlocal sent
        await session.raw(b"HTTP/1.1 200 OK\r\n")
        while not session.gone.is_set() and sent < 64 * MAX_HEAD_BYTES:
            await session.raw(b"x: %b\r\n" % (b"y" * 60_000))
            sent += 60_000

    router, _, _ = await set_up(stage, play)
    answer = await router.post(CHAT, NS)
    assert answer.status_code == 502
    assert sent < 16 * MAX_HEAD_BYTES


async def test_trailers_of_an_engine_that_do_not_end_are_a_failure(stage: Stage) -> None:
    sent = 0

    async def play(session: Session) -> None:
        nonlocal sent
        await session.head(200, "application/json")
        await session.write(COMPLETION)
        await session.raw(b"0\r\n")
        while not session.gone.is_set() and sent < 64 * MAX_HEAD_BYTES:
            await session.raw(b"x: %b\r\n" % (b"y" * 60_000))
            sent += 60_000

    router, _, _ = await set_up(stage, play)
    answer = await router.post(CHAT, NS)
    assert answer.status_code == 502
    assert sent < 16 * MAX_HEAD_BYTES


async def test_an_engine_that_does_not_answer_aborts_keeps_no_connection(stage: Stage) -> None:
    router, engine, _ = await set_up(stage, silent)
    engine.mute_aborts = True
    router.router.client.tell_seconds = 0.2
    for _ in range(5):
        wire = await stage.wire(router)
        body = json.dumps(NS).encode()
        await wire.send(request_head(CHAT, f"content-length: {len(body)}") + body)
        await engine.wait_for(lambda: engine.open_sessions == 1)
        wire.hang_up()
        await engine.wait_for(lambda: engine.open_sessions == 0)
    await engine.wait_for(lambda: len(engine.aborts) == 5)
    await router.until(lambda: engine.open_connections <= 1)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("retry-after: \u00b2", id="a digit that is no number"),
        pytest.param("retry-after: " + "9" * 5000, id="a very large number"),
        pytest.param("retry-after-ms: " + "9" * 5000, id="a very large number of milliseconds"),
        pytest.param("retry-after: Mon, 99 Foo 99999999 00:00:00", id="no date"),
    ],
)
async def test_a_retry_after_that_makes_no_sense_does_no_harm(stage: Stage, line: str) -> None:
    async def play(session: Session) -> None:
        await session.raw(b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n" + line.encode("latin-1") + b"\r\n\r\n")

    router, _, _ = await set_up(stage, in_turn(play, ORDINARY), total=1)
    answer = await router.post(CHAT, NS)
    assert answer.status_code in (200, 503, 504)
    assert router.count("hlserve_router_internal_errors_total") == 0


async def test_gauges_that_are_no_numbers_do_not_stop_the_probes(stage: Stage) -> None:
    router, engine, _ = await set_up(stage)
    engine.gauges = {"num_running_reqs": float("nan"), "num_queue_reqs": float("inf")}
    engine.probes.clear()
    await router.until(lambda: len([probe for probe in engine.probes if probe.path == "/metrics"]) >= 3)
    assert router.count("hlserve_router_internal_errors_total") == 0


def test_only_numbers_are_gauges() -> None:
    text = (
        "sglang:num_running_reqs 2\nsglang:num_running_reqs NaN\nsglang:num_queue_reqs +Inf\nsglang:token_usage NaN\n"
    )
    gauges = read_gauges(text, 1.0)
    assert gauges is not None
    assert (gauges.running, gauges.queued, gauges.token_usage) == (2, 0, 0.0)
    assert read_gauges("sglang:num_running_reqs NaN", 1.0) is None


async def test_a_health_answer_that_does_not_end_is_a_miss(tmp_path: Path) -> None:
    """Each byte comes in time, so no read is ever late; the engine must still be found out, and its answer not collected."""

    serving: set[asyncio.Task[None] | None] = set()

    async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            while not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
        writer.close()

    server = await asyncio.start_server(drips, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    proxy = Proxy(Clocks(time.monotonic, time.time), Random(1))
    proxy.pools.apply(a_table(a_pool("agents", url), a_class("agent", "agents")), proxy.now(), set())
    probes = asyncio.create_task(Probes(proxy, every_seconds=0.02, timeout_seconds=0.1).run())
    (endpoint,) = proxy.pools.endpoints()
    async with asyncio.timeout(5):
        while endpoint.reachable:  # noqa: ASYNC110 - as in `RunningRouter.until`
            await asyncio.sleep(0.01)
    probes.cancel()
    await asyncio.gather(probes, return_exceptions=True)
    await asyncio.gather(*(task for task in serving if task is not None))
    server.close()


async def test_an_address_that_can_be_no_hosts_is_a_failure_to_connect(stage: Stage) -> None:
    """The resolver does not even ask for it, and says so in a way of its own."""
    table = a_table(a_pool("agents", "http://a..b:80"), a_class("agent", "agents"))
    router = await stage.router(table)
    async with asyncio.timeout(5):
        answer = await router.post(CHAT, NS)
    assert answer.json()["error"]["code"] in ("engine_connect", "no_endpoint")


# trust ----------------------------------------------------------------------------------------------------------------


def trusting(ca: str) -> EngineCredentials:
    return EngineCredentials(generation="e1", pools={"agents": EngineCredential(tls=EngineTrust(ca=ca))})


def test_what_people_write_between_certificates_is_no_matter() -> None:
    """Bundles name their authorities in comments, as Mozilla's does, and not all of them in ASCII."""
    Credentials().apply(trusting(f"# Főtanúsítvány\n{Authority().pem}"))


@pytest.mark.parametrize("ca", ["ő", "# Főtanúsítvány\n"], ids=["a letter", "a comment"])
def test_a_ca_without_a_certificate_is_not_the_systems(ca: str) -> None:
    with pytest.raises(TableError, match="its CA cannot be read"):
        Credentials().apply(trusting(ca))


async def test_a_connection_in_use_is_not_used_again_once_the_engines_trust_has_changed(
    stage: Stage, tmp_path: Path
) -> None:
    first, second = Authority(), Authority()
    release = asyncio.Event()
    (tmp_path / "engines.json").write_text(trusting(first.pem).model_dump_json(by_alias=True))
    engine = await stage.engine(begun_until(release), tls=first.server("127.0.0.1"))
    table = a_table(a_pool("agents", engine.url), a_class("agent", "agents"))
    router = await stage.router(table, engine_credentials=tmp_path / "engines.json")
    asked = asyncio.create_task(router.post(CHAT, {**NS, "stream": True}))
    await engine.wait_for(lambda: engine.open_sessions == 1)
    (endpoint,) = router.router.proxy.pools.endpoints()
    before = endpoint.link.tls
    router.write("engines.json", trusting(second.pem).model_dump_json(by_alias=True))
    await router.until(lambda: endpoint.link.tls is not before)
    release.set()
    assert (await asked).status_code == 200
    answer = await router.post(CHAT, NS)
    assert answer.status_code in (502, 503), "the engine's certificate is not of the CA that is trusted"
    assert len(engine.requests) == 1
