"""`python -m hlserve_router.testing.profile_command`: what the pipeline costs per request, stage by stage, without sockets.

Drives a real `Proxy` over a table of 30 classes, pools and keys with limits, two endpoints a pool, and bodies of 1 KB. The
requests of a batch go through each stage together, as they do under load. Figures are CPU time of this thread, medians
over the rounds.
"""

import argparse
import cProfile
import gc
import json
import logging
import pstats
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Final

from hlserve_api.routing import ClassRoute, Intent, KeyLimits, PoolRoute, ShareRule, Target, TargetRole
from hlserve_router.errors import Refusal
from hlserve_router.exchange import Exchange
from hlserve_router.outcome import passed
from hlserve_router.proxy import Clocks, Proxy
from hlserve_router.state import ROUTES, Route
from hlserve_router.testing.documents import a_class, a_key, a_keyring, a_pool, a_table

COUNT: Final = 30
"""Classes, pools and keys of the table."""
BATCH: Final = 64
"""Requests in flight at once."""
STAGES: Final = ("open", "submit", "engine_request", "settle")
Headers = list[tuple[bytes, bytes]]
Job = tuple[Route, Headers, bytes]


class Silent:
    """A face that has no sockets: it is granted at once and is never refused."""

    __slots__ = ()

    def granted(self) -> None:
        """The request has its endpoint."""

    def refused(self, refusal: Refusal) -> None:
        """Cannot happen here: the pools are never full."""
        raise refusal


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of request."""

    name: str
    path: str
    intent: Intent
    stream: bool = False
    sdk_headers: bool = False


TRAFFIC: Final = (
    Traffic("whole reply", "/v1/chat/completions", Intent.INTERACTIVE),
    Traffic("stream", "/v1/chat/completions", Intent.INTERACTIVE, stream=True),
    Traffic("agent, SDK headers", "/v1/chat/completions", Intent.AGENT, stream=True, sdk_headers=True),
    Traffic("completions, id in the body", "/v1/completions", Intent.INTERACTIVE),
)


def a_proxy() -> Proxy:
    """A proxy with the table of the measurement in force."""
    proxy = Proxy(Clocks(time.monotonic, time.time), Random(1))
    pools: list[PoolRoute] = []
    classes: list[ClassRoute] = []
    keys = []
    for index in range(COUNT):
        name, intent = f"pool-{index}", tuple(Intent)[index % 3]
        urls = (f"http://127.0.0.1:{10_000 + index}", f"http://127.0.0.1:{20_000 + index}")
        pools.append(a_pool(name, *urls, max_in_flight=256, in_flight_tokens=2_000_000, context_length=131_072))
        targets = (Target(pool=name), Target(pool=f"pool-{(index + 1) % COUNT}", role=TargetRole.SPILL))
        classes.append(a_class(f"class-{index}", intent=intent, targets=targets, share=ShareRule(max_percent=80)))
        limits = KeyLimits(requests_per_minute=100_000_000, tokens_per_minute=10_000_000_000, max_concurrent=1000)
        keys.append(a_key(_secret(index), f"client-{index}", f"class-{index}", limits=limits))
    proxy.pools.apply(a_table(*pools, *classes), proxy.now())
    proxy.keyrings.apply("shard-0", a_keyring(*keys))
    return proxy


def _secret(index: int) -> str:
    return f"hls_{index:043d}"


def jobs(traffic: Traffic) -> list[Job]:
    """A batch of requests of one kind, from all the keys whose class has its intent."""
    return [_job(traffic, index) for index in range(BATCH)]


def _job(traffic: Traffic, index: int) -> Job:
    key = _secret(3 * (index % (COUNT // 3)) + tuple(Intent).index(traffic.intent))
    text = f"request {index}: " + "what a client has to say, word by word. " * 20
    system = {"role": "system", "content": "You are a careful assistant."}
    prompt = {"prompt": text} if traffic.path == "/v1/completions" else {
        "messages": [system, {"role": "user", "content": text}]
    }  # fmt: skip
    body = json.dumps(
        {"model": "m1", **prompt, "max_tokens": 128, "temperature": 0.7, "stream": traffic.stream}
    ).encode()
    headers = [
        (b"host", b"127.0.0.1:8000"), (b"content-type", b"application/json"), (b"authorization", f"Bearer {key}".encode()),
        (b"content-length", b"%d" % len(body)),
    ]  # fmt: skip
    if traffic.sdk_headers:
        headers += [
            (b"accept-encoding", b"gzip, deflate"), (b"connection", b"keep-alive"), (b"accept", b"application/json"),
            (b"user-agent", b"OpenAI/Python 2.8.0"), (b"x-stainless-lang", b"python"), (b"x-stainless-os", b"Linux"),
            (b"x-stainless-package-version", b"2.8.0"), (b"x-stainless-arch", b"x64"), (b"x-stainless-runtime", b"CPython"),
            (b"x-stainless-runtime-version", b"3.11.7"), (b"x-stainless-retry-count", b"0"), (b"x-stainless-async", b"async"),
            (b"x-stainless-read-timeout", b"600"), (b"x-session-id", b"session-%d" % index),
        ]  # fmt: skip
    return ROUTES[traffic.path], headers, body


def one_batch(proxy: Proxy, batch: Sequence[Job], clock: Callable[[], int]) -> Iterator[int]:
    """Sends a batch through every stage; yields what `clock` says before, between and after the stages."""
    face = Silent()
    yield clock()
    exchanges = [proxy.open(route, headers) for route, headers, _ in batch]
    yield clock()
    for exchange, (_, _, body) in zip(exchanges, batch, strict=True):
        proxy.submit(exchange, body, face)
    yield clock()
    for exchange in exchanges:
        proxy.engine_request(exchange)
    yield clock()
    for exchange in exchanges:
        _answered(exchange)
        proxy.settle(exchange, passed(200))
    yield clock()


def _answered(exchange: Exchange) -> None:
    """What the relay writes while a reply passes."""
    exchange.first_event = exchange.dispatched
    exchange.events = 120
    usage = exchange.usage
    usage.prompt_tokens, usage.completion_tokens = 220, 120


def measure(proxy: Proxy, batch: Sequence[Job], rounds: int, batches: int) -> list[float]:
    """Microseconds of CPU time per request of each stage: medians over `rounds` of the mean of `batches`."""
    rows: list[list[float]] = []
    for _ in range(rounds):
        sums = [0] * len(STAGES)
        for _ in range(batches):
            marks = list(one_batch(proxy, batch, time.thread_time_ns))
            for stage in range(len(STAGES)):
                sums[stage] += marks[stage + 1] - marks[stage]
        rows.append([total / 1000 / batches / len(batch) for total in sums])
    return [median(column) for column in zip(*rows, strict=True)]


def main() -> None:
    """Prints the table, and with `--functions N` the N costliest functions of the first kind of traffic."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="rounds, whose median counts (default 15)")
    parser.add_argument("--batches", type=int, default=20, help=f"batches of {BATCH} requests a round (default 20)")
    parser.add_argument("--functions", type=int, default=0, help="also list this many functions by their own time")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    proxy = a_proxy()
    gc.collect()
    gc.freeze()
    lines = [f"{'µs of CPU per request':28}" + "".join(f"{stage:>16}" for stage in (*STAGES, "all"))]
    for traffic in TRAFFIC:
        row = measure(proxy, jobs(traffic), options.rounds, options.batches)
        lines.append(f"{traffic.name:28}" + "".join(f"{value:16.2f}" for value in (*row, sum(row))))
    print("\n".join(lines))
    if options.functions:
        _functions(proxy, jobs(TRAFFIC[0]), options.functions)


def _functions(proxy: Proxy, batch: Sequence[Job], count: int) -> None:
    profile = cProfile.Profile()
    with profile:
        for _ in range(50):
            list(one_batch(proxy, batch, time.thread_time_ns))
    pstats.Stats(profile).sort_stats("tottime").print_stats(count)


if __name__ == "__main__":
    main()
