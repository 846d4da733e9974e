"""The server against pure code: the same seeded load, the same decisions."""

import asyncio
import json
from array import array
from collections.abc import Mapping
from random import Random
from statistics import mean

import pytest

from hlserve_capacity.engine.types import EngineRequest
from hlserve_sim.engine_setup import EngineSetup
from hlserve_sim.orders import Order
from hlserve_sim.server import Server
from hlserve_sim.testing import MODEL, Arrival, Replayed, Running, replay, running

FLAGS = {
    "an interactive engine": ("--chunked-prefill-size", "128", "--enable-mixed-chunk", "--max-running-requests", "21"),
    "a human-less engine": ("--enable-throughput-mode", "--max-running-requests", "4"),
    "a plain engine with a small pool": ("--max-total-tokens", "12000", "--max-running-requests", "8"),
}
Sent = tuple[float, str, list[int], int]
"""When (seconds), id, prompt, reply tokens."""
REQUESTS = 20
MEAN_GAP_SECONDS = 0.2


def seeded_load(seed: int) -> list[Sent]:
    """(seconds, id, prompt, reply tokens): arrivals at random, prompts that share prefixes."""
    rng = Random(seed)
    at, load = 0.0, []
    for number in range(REQUESTS):
        at += rng.expovariate(1 / MEAN_GAP_SECONDS)
        shared = rng.randrange(4) * 100_000
        prompt = [shared + index for index in range(rng.randrange(500, 3000))] + [
            number + 1_000_000 for _ in range(rng.randrange(500, 1500))
        ]
        load.append((at, f"r{number}", prompt, rng.randrange(2, 60)))
    return load


async def send(engine: Running, start: float, at: float, rid: str, prompt: list[int], tokens: int) -> tuple[str, int]:
    """Send one request at its time; its id and how many chunks it got."""
    loop = asyncio.get_running_loop()
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, "rid": rid}
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(*engine.url.removeprefix("http://").split(":"))
    head = "POST /v1/completions HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-type: application/json\r\n"
    await asyncio.sleep(max(0.0, start + at - loop.time()))
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    answer = await reader.read()
    writer.close()
    return rid, answer.count(b'data: {"')


def reply_ids(server: Server, prompt: list[int], tokens: int) -> tuple[int, ...]:
    """What the server's model will say: its tokens enter the prefix cache."""
    ids, digest = server.reader.ids_prompt(prompt, "prompt")
    order = Order(
        prompt=ids, digest=digest, model=MODEL, stream=True, rid=None, priority=None, max_tokens=tokens, ignore_eos=True
    )
    config = server.setup.config
    return order.reply(server.vocabulary, config.context_length, config.pool_tokens).token_ids


def pure(
    setup: EngineSetup, load: list[Sent], stamps: Mapping[str, int], replies: Mapping[str, tuple[int, ...]]
) -> dict[str, Replayed]:
    """The same load without HTTP, arriving at `stamps`."""
    arrivals = []
    for _, rid, prompt, tokens in load:
        request = EngineRequest(rid=rid, prompt=array("q", prompt), output_tokens=tokens, reply=replies[rid])
        arrivals.append(Arrival(stamps[rid], request))
    return replay(setup, arrivals)


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
async def test_over_http_and_in_pure_code_the_same_load_gives_the_same_tokens_and_ttft(flags: tuple[str, ...]) -> None:
    load = seeded_load(11)
    async with running(*flags) as engine:
        server = engine.server
        replies = {rid: reply_ids(server, prompt, tokens) for _, rid, prompt, tokens in load}
        loop = asyncio.get_running_loop()
        start, start_us = loop.time(), server.driver.clock.now_us()
        chunks = dict(await asyncio.gather(*(send(engine, start + 0.2, *row) for row in load)))
        records = {record.rid: record for record in server.records}
        totals = server.driver.totals
    stamped = pure(server.setup, load, {rid: record.arrived_us for rid, record in records.items()}, replies)
    scheduled = pure(server.setup, load, {rid: start_us + round((at + 0.2) * 1e6) for at, rid, *_ in load}, replies)
    served = {rid: (record.first_token_us or 0) - record.arrived_us for rid, record in records.items()}

    assert chunks == {rid: tokens for _, rid, _, tokens in load}
    assert totals.output_tokens == sum(chunks.values())
    # Given the stamps of the arrivals, every decision is the same.
    assert served == {rid: result.ttft_us for rid, result in stamped.items()}
    assert {rid: record.finished_us for rid, record in records.items()} == {
        rid: result.finished_us for rid, result in stamped.items()
    }
    assert {rid: record.cached_tokens for rid, record in records.items()} == {
        rid: result.cached_tokens for rid, result in stamped.items()
    }
    # Given the times at which the load was meant to arrive, latencies agree within 5 %.
    assert mean(served.values()) == pytest.approx(mean(result.ttft_us for result in scheduled.values()), rel=0.05)
