"""Several workers, and several routers, as processes: what they share, and what users see of a worker that dies."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from hlserve_api.routing import Budget, KeyEntry, KeyLimits, Keyring
from hlserve_router.merging import samples
from hlserve_router.server import bind
from hlserve_router.settings import Settings
from hlserve_router.supervisor import Supervisor
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_key, a_keyring, a_pool, a_table
from hlserve_router.testing.engine import ScriptedEngine, Session, scripted_engine
from hlserve_router.testing.process import RouterProcess, a_router_process, plain_client
from hlserve_router.testing.scripts import ORDINARY, begun_until
from hlserve_router.testing.valkey_server import valkey_server

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
HEADERS = {"authorization": f"Bearer {AGENT_KEY}"}
SERVED = 'hlserve_router_requests_total{class="agent",outcome="ok",pool="agents",reason=""}'
TABLE_INFO = 'hlserve_router_table_info{generation="%s"}'
IN_FLIGHT = 'hlserve_router_in_flight_requests{class="agent",pool="agents"}'


@asynccontextmanager
async def routers(
    folder: Path, engine: ScriptedEngine, key: KeyEntry, *options: str, count: int = 1, **pool: Any
) -> AsyncIterator[list[RouterProcess]]:
    """Router processes that serve `engine` to one client."""
    write_table(folder, engine, generation="g1", **pool)
    write(folder, a_keyring(key))
    given = ("--table", str(folder / "table.json"), "--keyring", str(folder / "keyring.json"), "--port", "0")
    usual = ("--log-level", "warning", "--limits-store-timeout-seconds", "5")
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(a_router_process(*given, *usual, *options)) for _ in range(count)]


def write_table(folder: Path, engine: ScriptedEngine, generation: str = "g2", **pool: Any) -> None:
    table = a_table(a_pool("agents", engine.url, **pool), a_class("agent", "agents"), generation=generation)
    fresh = folder / "table.new"
    fresh.write_text(table.model_dump_json(by_alias=True))
    fresh.rename(folder / "table.json")


def write(folder: Path, keyring: Keyring) -> None:
    fresh = folder / "keyring.new"
    fresh.write_text(keyring.model_dump_json(by_alias=True))
    fresh.rename(folder / "keyring.json")


async def ask(url: str, body: Any = None) -> int:
    """One request on a connection of its own, so that any worker may get it."""
    async with plain_client() as http:
        return (await http.post(url + CHAT, json=body or NS, headers=HEADERS)).status_code


async def page(http: httpx.AsyncClient, router: RouterProcess) -> dict[str, float]:
    answer = await http.get(f"{router.admin_url}/metrics")
    return samples(answer.raise_for_status().text)


def limited(**limits: int) -> KeyEntry:
    return a_key(AGENT_KEY, "coder", "agent", limits=KeyLimits(**limits))


def connections(pid: int, port: int) -> int:
    """Connections to `port` that a process has."""
    inodes = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = [line for line in lines if int(line[1].rpartition(":")[2], 16) == port and line[3] == "01"]
    return sum(f"socket:[{line[9]}]" in inodes for line in ours)


async def test_b76_counters_of_four_workers_never_fall_and_gauges_of_a_killed_one_vanish(tmp_path: Path) -> None:
    release = asyncio.Event()
    seen: list[float] = []

    async def scrape() -> dict[str, float]:
        found = await page(http, router)
        seen.append(found.get(SERVED, 0.0))
        return found

    async with (
        scripted_engine(begun_until(release)) as engine,
        routers(tmp_path, engine, limited(), "--workers", "4") as (router,),
        plain_client() as http,
    ):
        for _ in range(20):
            assert Counter(await asyncio.gather(*(ask(router.url) for _ in range(10)))) == {200: 10}
            await asyncio.gather(scrape(), scrape())
        streams = [asyncio.create_task(ask(router.url, {**NS, "stream": True})) for _ in range(12)]
        await engine.wait_for(lambda: engine.open_sessions == 12, 10)
        assert (await scrape())[IN_FLIGHT] == 12
        os.kill(router.children()[0], signal.SIGKILL)
        async with asyncio.timeout(20):
            while (await http.get(f"{router.admin_url}/healthz")).json()["workersUp"] == 4:
                await scrape()
            while (await http.get(f"{router.admin_url}/healthz")).json()["workersUp"] < 4:
                await scrape()
        release.set()
        await asyncio.gather(*streams, return_exceptions=True)
        assert Counter(await asyncio.gather(*(ask(router.url) for _ in range(20)))) == {200: 20}
        last = await scrape()
    assert seen == sorted(seen)
    assert 220 <= last[SERVED] <= 232
    assert last[IN_FLIGHT] == 0


async def test_a_worker_that_is_killed_frees_what_it_held(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with (
        scripted_engine(begun_until(release)) as engine,
        routers(tmp_path, engine, limited(max_concurrent=8), "--workers", "2", max_in_flight=4) as (router,),
    ):
        streams = [asyncio.create_task(ask(router.url, {**NS, "stream": True})) for _ in range(4)]
        await engine.wait_for(lambda: engine.open_sessions == 4)
        waiting = asyncio.create_task(ask(router.url))
        for worker in router.children():
            os.kill(worker, signal.SIGKILL)
        await asyncio.gather(*streams, waiting, return_exceptions=True)
        await engine.wait_for(lambda: engine.open_sessions == 0)
        async with asyncio.timeout(20):
            while True:
                try:
                    if await ask(router.url) == 200:
                        break
                except httpx.HTTPError:
                    await asyncio.sleep(0.05)
        release.set()
        assert Counter(await asyncio.gather(*(ask(router.url) for _ in range(8)))) == {200: 8}


async def test_a_budget_outlives_a_restart_of_the_router(tmp_path: Path) -> None:
    key = a_key(AGENT_KEY, "coder", "agent", budget=Budget(tokens=6))
    store = ("--limits-store", f"sqlite:{tmp_path / 'limits.db'}")
    async with scripted_engine(ORDINARY) as engine:
        statuses = []
        for _ in range(2):
            async with routers(tmp_path, engine, key, *store) as (router,):
                statuses.append([await ask(router.url) for _ in range(3)])
    assert statuses == [[200, 429, 429], [429, 429, 429]]


async def test_b70_four_workers_let_through_one_limit_and_all_hear_of_a_revoked_key(tmp_path: Path) -> None:
    async with (
        scripted_engine(ORDINARY) as engine,
        routers(tmp_path, engine, limited(requests_per_minute=60), "--workers", "4") as (router,),
    ):
        statuses: Counter[int] = Counter()
        for _ in range(6):
            statuses.update(await asyncio.gather(*(ask(router.url) for _ in range(50))))
        write(tmp_path, a_keyring(a_key("another-key-of-another-client", "other", "agent"), generation="k2"))
        async with asyncio.timeout(5):
            while Counter(await asyncio.gather(*(ask(router.url) for _ in range(20)))) != {401: 20}:
                pass
    assert set(statuses) == {200, 429}
    assert 57 <= statuses[200] <= 63


async def test_b70_three_routers_let_through_one_limit(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(valkey_server(tmp_path, tcp=True))
        engine = await stack.enter_async_context(scripted_engine(ORDINARY))
        options = ("--limits-store", server.address)
        key = limited(requests_per_minute=60)
        group = await stack.enter_async_context(routers(tmp_path, engine, key, *options, count=3))
        statuses: Counter[int] = Counter()
        for _ in range(4):
            statuses.update(await asyncio.gather(*(ask(group[n % 3].url) for n in range(50))))
    assert set(statuses) == {200, 429}
    assert 57 <= statuses[200] <= 63


async def test_two_workers_hold_caps_of_the_pod_and_share_connections(tmp_path: Path) -> None:
    """An engine's cap, a client's requests at once, and 64 connections of which no worker has more than 60 %."""
    release = asyncio.Event()
    most = now = 0

    async def play(session: Session) -> None:
        nonlocal most, now
        if session.request.json.get("stream"):
            await begun_until(release)(session)
            return
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.03)
        now -= 1
        await ORDINARY(session)

    key = limited(max_concurrent=64)
    async with (
        scripted_engine(play) as engine,
        routers(tmp_path, engine, key, "--workers", "2", max_in_flight=64) as (router,),
    ):
        streams = [asyncio.create_task(ask(router.url, {**NS, "stream": True})) for _ in range(64)]
        await engine.wait_for(lambda: engine.open_sessions == 64, 10)
        counts = [connections(worker, int(router.url.rpartition(":")[2])) for worker in router.children()]
        assert Counter(await asyncio.gather(*(ask(router.url) for _ in range(8)))) == {429: 8}
        release.set()
        assert Counter(await asyncio.gather(*streams)) == {200: 64}
        write_table(tmp_path, engine, max_in_flight=4)
        async with plain_client() as http, asyncio.timeout(5):
            while not (seen := await page(http, router)).get(TABLE_INFO % "g2") or TABLE_INFO % "g1" in seen:
                pass  # a page shows the table of every worker: all have the new one when the old one is gone
        assert Counter(await asyncio.gather(*(ask(router.url) for _ in range(60)))) == {200: 60}
    assert sum(counts) == 64
    assert max(counts) <= 38, counts
    assert 4 <= most <= 5, "the cap, and at most one more for each further worker"


async def test_a_signal_that_comes_while_a_worker_is_started_ends_that_one_too(tmp_path: Path) -> None:
    async with scripted_engine(ORDINARY) as engine:
        write_table(tmp_path, engine)
        write(tmp_path, a_keyring(limited()))
        arguments = ("--table", str(tmp_path / "table.json"), "--keyring", str(tmp_path / "keyring.json"))
        settings = Settings(workers=2, table=tmp_path / "table.json", keyrings=(tmp_path / "keyring.json",))
        supervisor = Supervisor(settings, bind("127.0.0.1", 0), bind("127.0.0.1", 0), arguments)
        running = asyncio.create_task(supervisor.run())
        for _ in range(3):
            await asyncio.sleep(0)
        assert all(worker.process is None for worker in supervisor.workers), "they are being started"
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            await running
    assert all(worker.process is not None and worker.process.returncode is not None for worker in supervisor.workers)


def runs(pid: int) -> bool:
    """True unless the process has ended, even if nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


async def test_workers_of_a_supervisor_that_is_killed_finish_what_they_have_and_end(tmp_path: Path) -> None:
    release = asyncio.Event()
    async with (
        scripted_engine(begun_until(release)) as engine,
        routers(tmp_path, engine, limited(), "--workers", "2") as (router,),
    ):
        workers = router.children()
        try:
            stream = asyncio.create_task(ask(router.url, {**NS, "stream": True}))
            await engine.wait_for(lambda: engine.open_sessions == 1, 10)
            os.kill(router.process.pid, signal.SIGKILL)
            async with asyncio.timeout(10):
                while all(runs(worker) for worker in workers):  # noqa: ASYNC110 - no child of ours
                    await asyncio.sleep(0.02)
            assert any(runs(worker) for worker in workers), "one has a stream"
            release.set()
            assert await stream == 200
            async with asyncio.timeout(10):
                while any(runs(worker) for worker in workers):  # noqa: ASYNC110 - no child of ours
                    await asyncio.sleep(0.02)
                assert (await router.log()).count("supervisor gone") == 2
        finally:
            for worker in workers:
                if runs(worker):
                    os.kill(worker, signal.SIGKILL)
