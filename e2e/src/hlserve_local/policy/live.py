"""On the clock, over HTTP: our router and sglang-router's `cache_aware`, one after the other on the same simulated engines."""

import asyncio
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from hlserve_api.routing import Endpoint, Keyring
from hlserve_capacity.engine.types import SchedulePolicy
from hlserve_local.policy.arms import quickstart
from hlserve_local.policy.live_load import SCALE, WARM_UP_SECONDS, WINDOW_SECONDS, Round, drive, loopback_client
from hlserve_router.state import Pace

ENGINES = 3
ENGINE_FLAGS = (
    "--model-path", "m1", "--served-model-name", "m1", "--device", "A100-80G", "--model-shape", "llama-3.1-8b",
    "--time-scale", str(SCALE), "--enable-cache-report", "--enable-metrics", "--max-running-requests", "11",
    "--chunked-prefill-size", "8192", "--enable-mixed-chunk", "--lpm-max-waiting", "128", "--port", "0",
)  # fmt: skip
"""A stock engine with the flags that HlServe derives for its batch; it knows nothing of sessions."""
ORDERS = {
    "stock engine, longest prefix first": SchedulePolicy.LPM,
    "stock engine, first come first served": SchedulePolicy.FCFS,
}
"""What the engines' queues are ordered by, by the name of the same engines in virtual time."""


@dataclass(frozen=True, slots=True)
class LiveRow:
    """One arm at one seed."""

    arm: str
    load: str
    seed: int
    values: dict[str, float | int | None]

    def as_dict(self) -> dict[str, Any]:
        """For a JSON line."""
        return asdict(self)


async def run_live(arm: str, engine: str, sessions: int, seed: int, sglang_router: str | None) -> LiveRow:
    """One run: fresh engines of a name in `ORDERS`, fresh router, the workload of the seed."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="hlserve-policy-")))
        starting = (stack.enter_async_context(_engine(ORDERS[engine])) for _ in range(ENGINES))
        engines = await asyncio.gather(*starting)
        if sglang_router is None:
            url = await stack.enter_async_context(_ours(folder, engines, _kv_tokens()))
        else:
            url = await stack.enter_async_context(_theirs(sglang_router, engines))
        rounds, before, after = await drive(url, sessions, seed, partial(_look_at_all, engines))
    return LiveRow(arm, f"{sessions} sessions, {engine}", seed, {**_measure(rounds, before, after), **_late(after)})


def _kv_tokens() -> int | None:
    return next(pool for pool in quickstart().table.pools if pool.name == "agents").kv_tokens


# the processes --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _process(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    """The first address that the process prints."""
    if process.stdout is None:
        raise RuntimeError("a pipe was asked for")
    async with asyncio.timeout(60):
        while line := (await process.stdout.readline()).decode():
            found = re.search(r"http://[\d.:]+", line)
            if found is not None:
                return found[0]
    raise RuntimeError("the process ended before it listened")


@asynccontextmanager
async def _engine(order: SchedulePolicy) -> AsyncIterator[str]:
    command = (sys.executable, "-m", "hlserve_sim", *ENGINE_FLAGS, "--schedule-policy", order.value)
    async with _process(*command) as process:
        yield await _address(process)


@asynccontextmanager
async def _ours(folder: Path, engines: Sequence[str], kv_tokens: int | None) -> AsyncIterator[str]:
    """Its waits are in engine seconds, as the clients' thinking is."""
    arm = quickstart()
    pools = tuple(
        route.model_copy(
            update={"kv_tokens": kv_tokens, "endpoints": tuple(Endpoint(url=url, id=url) for url in engines)}
        )
        for route in arm.table.pools
        if route.name == "agents"
    )
    classes = tuple(route for route in arm.table.classes if route.name == "agent")
    table = arm.table.model_copy(update={"pools": pools, "classes": classes})
    (folder / "table.json").write_text(table.model_dump_json(by_alias=True))
    keyring = Keyring(generation="live", keys=tuple(key for key in arm.keys if key.class_name == "agent"))
    (folder / "keyring.json").write_text(keyring.model_dump_json(by_alias=True))
    pace = Pace()
    options = ("--port", "0", "--log-level", "warning")
    documents = ("--table", str(folder / "table.json"), "--keyring", str(folder / "keyring.json"))
    waits = (
        "--session-idle-seconds", str(pace.session_idle_seconds / SCALE),
        "--affinity-wait-seconds", str(pace.affinity_wait_seconds / SCALE),
    )  # fmt: skip
    async with _process(sys.executable, "-m", "hlserve_router", *documents, *options, *waits) as process:
        yield await _address(process)


@asynccontextmanager
async def _theirs(program: str, engines: Sequence[str]) -> AsyncIterator[str]:
    port, other = _free_port(), _free_port()
    command = [
        program, "launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *engines, "--policy",
        "cache_aware", "--prometheus-port", str(other), "--log-level", "error",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    async with _process(*command) as process:
        async with loopback_client() as client, asyncio.timeout(60):
            while process.returncode is None:
                try:
                    if (await client.get(f"{url}/readiness")).status_code == httpx.codes.OK:
                        break
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.2)
        yield url


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class _Seen:
    """One engine at one time."""

    prompt_tokens: int
    reply_tokens: int
    steps: int
    late_us: int
    latest_us: int


async def _look(client: httpx.AsyncClient, engine: str) -> _Seen:
    state = (await client.get(f"{engine}/sim/state")).json()
    totals, late = state["totals"], state["lateness"]
    return _Seen(totals["prompt_tokens"], totals["output_tokens"], late["steps"], late["total_us"], late["max_us"])


async def _look_at_all(engines: Sequence[str], client: httpx.AsyncClient) -> list[_Seen]:
    return list(await asyncio.gather(*(_look(client, engine) for engine in engines)))


def _late(engines: Sequence[_Seen]) -> dict[str, float]:
    """How late the engines ended their steps, in engine milliseconds: the mean of all steps, and the worst."""
    return {
        "late_mean_ms": sum(seen.late_us for seen in engines) / max(1, sum(seen.steps for seen in engines)) / 1000,
        "late_max_ms": max(seen.latest_us for seen in engines) / 1000,
    }


def _measure(rounds: Sequence[Round], before: Sequence[_Seen], after: Sequence[_Seen]) -> dict[str, float | int | None]:
    """Tokens are the engines' own counts in the window; the rest is of the rounds that ended in it."""
    end = WARM_UP_SECONDS + WINDOW_SECONDS
    ended = [each for each in rounds if each.status == httpx.codes.OK and WARM_UP_SECONDS <= each.ended < end]
    prompts = sum(each.input_tokens for each in ended)
    latencies = sorted(each.ended - each.sent for each in ended)
    made = sum(late.reply_tokens - early.reply_tokens for early, late in zip(before, after, strict=True))
    worked = [seen.prompt_tokens + seen.reply_tokens for seen in after]
    return {
        "agent_tokens_per_second": made / WINDOW_SECONDS,
        "agent_sessions_per_hour": sum(1 / each.session_rounds for each in ended) * 3600 / WINDOW_SECONDS,
        "agent_hit_rate": sum(each.cached_tokens for each in ended) / prompts if prompts else None,
        "agent_round_p50_seconds": latencies[len(latencies) // 2] if latencies else None,
        "agent_round_p95_seconds": latencies[int(0.95 * (len(latencies) - 1))] if latencies else None,
        "hottest_over_mean": max(worked) * len(worked) / sum(worked) if sum(worked) else None,
        "request_late_mean_ms": sum(each.sent - each.due for each in rounds) * 1000 / max(1, len(rounds)),
        "rounds": len(ended),
        "failed": sum(each.status != httpx.codes.OK for each in rounds),
    }
