"""For tests of this and other members: a simulated engine inside the test's event loop, or as a process; and pure replay."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic

from hlserve_capacity.engine.scheduler import Scheduler
from hlserve_capacity.engine.types import EngineRequest, Finished, Refused, Token
from hlserve_sim import app
from hlserve_sim.engine_setup import EngineSetup, resolve
from hlserve_sim.flags import parse
from hlserve_sim.process import bind, http_server, url
from hlserve_sim.server import Server

MODEL = "sim-model"
READY_MARK = "hlserve-sim listening on "


@dataclass(frozen=True, slots=True)
class Running:
    """A server inside this process."""

    url: str
    server: Server


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[Running]:
    """A server with these flags on a free port of the loopback address, serving `MODEL`, with metrics."""
    flags = parse(["--port", "0", "--served-model-name", MODEL, "--enable-metrics", *arguments])
    setup = resolve(flags)
    listener = bind(flags)
    server = Server(flags, setup)
    started = asyncio.Event()
    http = http_server(app.build(server), started.set)
    serving = asyncio.create_task(http.serve([listener]))
    await started.wait()
    try:
        yield Running(url(listener), server)
    finally:
        server.abort_all()
        http.should_exit = http.force_exit = True
        await serving
        server.driver.close()


POLL_SECONDS = 0.005


async def until(condition: Callable[[], Awaitable[bool]], within_seconds: float = 10.0) -> float:
    """Ask over HTTP until `condition` holds; how many seconds that took. Raises TimeoutError."""
    started = monotonic()
    while monotonic() - started < within_seconds:
        if await condition():
            return monotonic() - started
        await asyncio.sleep(POLL_SECONDS)
    raise TimeoutError(f"not so within {within_seconds:g} s")


@dataclass(slots=True)
class Spawned:
    """A server as a process of its own."""

    url: str
    process: asyncio.subprocess.Process

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)


@asynccontextmanager
async def spawned(*arguments: str) -> AsyncIterator[Spawned]:
    """`python -m hlserve_sim` with these flags on a free port. It is killed if it has not ended by itself."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "hlserve_sim",
        "--port",
        "0",
        "--served-model-name",
        MODEL,
        "--enable-metrics",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    output = process.stdout
    if output is None:
        raise RuntimeError("the process was started without a pipe for its output")
    try:
        line = (await output.readline()).decode().strip()
        yield Spawned(line.removeprefix(READY_MARK), process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request for `replay`."""

    at_us: int
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Replayed:
    """What pure code says of one request. Times are microseconds."""

    ttft_us: int
    finished_us: int
    output_tokens: int
    cached_tokens: int


def replay(setup: EngineSetup, arrivals: Sequence[Arrival]) -> dict[str, Replayed]:
    """The same engine without HTTP and without a clock, by request id."""
    engine = Scheduler(setup.config, setup.cost)
    waiting = sorted(arrivals, key=lambda arrival: arrival.at_us)
    arrived = {arrival.request.rid: arrival.at_us for arrival in waiting}
    first: dict[str, tuple[int, int]] = {}
    made: dict[str, int] = {}
    done: dict[str, Replayed] = {}
    now_us, position = 0, 0
    while len(done) < len(waiting):
        while position < len(waiting) and waiting[position].at_us <= now_us:
            answer = engine.submit(waiting[position].request, waiting[position].at_us)
            if isinstance(answer, Refused):
                raise ValueError(answer.message)
            position += 1
        step = engine.begin_step(now_us)
        if step is None:
            wakeup_us = engine.next_wakeup_us(now_us)
            due = [
                at for at in (wakeup_us, waiting[position].at_us if position < len(waiting) else None) if at is not None
            ]
            now_us = max(now_us + 1, min(due))
            continue
        end_us = step.start_us + step.duration_us
        while position < len(waiting) and waiting[position].at_us < end_us:
            engine.submit(waiting[position].request, waiting[position].at_us)
            position += 1
        now_us = end_us
        for event in engine.end_step(now_us):
            if isinstance(event, Token):
                first.setdefault(event.rid, (now_us, event.cached_tokens))
                made[event.rid] = event.index + 1
            elif isinstance(event, Finished):
                first_us, cached = first[event.rid]
                done[event.rid] = Replayed(first_us - arrived[event.rid], now_us, made[event.rid], cached)
    return done
