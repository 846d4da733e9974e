"""Limits that several routers share: the same promises on every store, and what happens while a store is away."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from hlserve_api.answers import Reason
from hlserve_api.routing import Budget, KeyEntry, KeyLimits, OnExhausted
from hlserve_router.errors import Refusal, StartError
from hlserve_router.limit_account import Reservation
from hlserve_router.limit_book import Amounts, Ask, Caps
from hlserve_router.limit_store import FORGET_SECONDS, LimitStore, Reply, StoreError, store_address
from hlserve_router.limit_store_pod import PodBook
from hlserve_router.limit_store_sqlite import SqliteStore
from hlserve_router.limit_store_valkey import ValkeyStore
from hlserve_router.limit_sync import LimitSync, new_holder
from hlserve_router.limits import Limits
from hlserve_router.metrics import Metrics
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_key
from hlserve_router.testing.valkey_server import ValkeyServer, valkey_server

ROUTE = a_class("agent")


def key(budget: Budget | None = None, **limits: int) -> KeyEntry:
    return a_key(AGENT_KEY, "coder", "agent", limits=KeyLimits(**limits), budget=budget)


@dataclass(eq=False)
class Local:
    """The supervisor's book without its socket."""

    book: PodBook

    async def exchange(self, holder: str, asks: list[Ask]) -> Reply:
        return self.book.exchange(holder, asks)

    async def close(self) -> None:
        """Nothing is open."""


@dataclass(eq=False)
class Replica:
    """The limits of one router process, and its conversation with the store."""

    sync: LimitSync
    limits: Limits
    held: list[Reservation] = field(default_factory=list)
    refusals: list[Reason] = field(default_factory=list)

    async def request(self, entry: KeyEntry, tokens: int = 1) -> bool:
        """One request as the pipeline does it. True: it was let in, and holds its place."""
        decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._try(entry, tokens, decided)
        return await decided

    def _try(self, entry: KeyEntry, tokens: int, decided: asyncio.Future[bool]) -> None:
        try:
            reservation = self.limits.reserve(entry, ROUTE, tokens, self.sync.monotonic(), time.time())
        except Refusal as refusal:
            self.refusals.append(refusal.reason)
            decided.set_result(False)
            return
        if reservation is None:
            self.limits.wait(entry, partial(self._try, entry, tokens, decided))
            return
        self.held.append(reservation)
        decided.set_result(True)

    def end(self, used_tokens: int = 1) -> None:
        """The request that runs longest ends."""
        self.limits.settle(self.held.pop(0), used_tokens, self.sync.monotonic())


@dataclass(eq=False)
class Cluster:
    """Replicas around one store."""

    stack: AsyncExitStack
    make: Callable[[], LimitStore]
    server: ValkeyServer | None = None
    replicas: list[Replica] = field(default_factory=list)

    async def grow(self, count: int, timeout_seconds: float) -> list[Replica]:
        """More replicas, each of which knows of all."""
        for _ in range(count):
            limits, metrics = Limits(), Metrics()
            holder = new_holder()
            limits.share(holder)
            sync = LimitSync(limits, self.make(), holder, metrics, "test", timeout_seconds, retry_seconds=0.02)
            replica = Replica(sync, limits)
            task = asyncio.create_task(replica.sync.run())
            self.stack.push_async_callback(_end, replica, task)
            self.replicas.append(replica)
        for replica in self.replicas:
            await replica.sync.store.exchange(replica.sync.holder, [])
        for replica in self.replicas:
            replica.limits.members = count
        return self.replicas


async def _end(replica: Replica, task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await replica.sync.close()


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not check():  # noqa: ASYNC110 - the state has no event
            await asyncio.sleep(0.005)


@pytest.fixture(params=["pod", "sqlite", "valkey"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    """One on each kind of store."""
    async with AsyncExitStack() as stack:
        if request.param == "pod":
            book = PodBook()
            yield Cluster(stack, lambda: Local(book))
        elif request.param == "sqlite":
            yield Cluster(stack, lambda: SqliteStore(str(tmp_path / "limits.db"), 5))
        else:
            server = await stack.enter_async_context(valkey_server(tmp_path))
            yield Cluster(stack, lambda: ValkeyStore(server.address, 5), server)


async def test_b70_twelve_processes_let_through_one_limit_together(cluster: Cluster) -> None:
    replicas = await cluster.grow(12, timeout_seconds=5)
    entry = key(requests_per_minute=60)
    passed = await asyncio.gather(*(replicas[n % 12].request(entry) for n in range(300)))
    assert 57 <= sum(passed) <= 60
    assert {reason for replica in replicas for reason in replica.refusals} == {Reason.KEY_REQUESTS}


async def test_a_large_limit_is_spent_from_leases_mostly_without_a_wait(cluster: Cluster) -> None:
    (replica,) = await cluster.grow(1, timeout_seconds=5)
    entry, asked = key(requests_per_minute=60_000), 0
    for _ in range(600):
        reservation = replica.limits.reserve(entry, ROUTE, 1, replica.sync.monotonic(), 0)
        if reservation is None:
            asked += 1
            assert await replica.request(entry)
        else:
            replica.held.append(reservation)
        await asyncio.sleep(0)
    assert asked < 300


async def test_b69_tokens_are_charged_once_as_used(cluster: Cluster) -> None:
    replicas = await cluster.grow(3, timeout_seconds=5)
    entry = key(tokens_per_minute=1000)
    passed = await asyncio.gather(*(replicas[n % 3].request(entry, 200) for n in range(20)))
    assert sum(passed) == 5
    for replica in replicas:
        while replica.held:
            replica.end(100)
    await until(lambda: all(replica.limits.quiet for replica in replicas))
    _poll(*replicas)
    passed = await asyncio.gather(*(replicas[n % 3].request(entry, 100) for n in range(20)))
    assert sum(passed) == 5


async def test_requests_at_once_are_bounded_over_all_and_free_at_once_when_one_ends(cluster: Cluster) -> None:
    first, second, third = await cluster.grow(3, timeout_seconds=5)
    entry = key(max_concurrent=2)
    assert [await first.request(entry), await second.request(entry), await third.request(entry)] == [True, True, False]
    for _ in range(10):  # a client that goes from router to router, one request after the other
        first.end()
        assert await third.request(entry)
        third.end()
        assert await first.request(entry)


async def test_what_was_leased_ahead_and_is_not_used_comes_back(cluster: Cluster) -> None:
    first, second = await cluster.grow(2, timeout_seconds=5)
    entry = key(requests_per_minute=400)
    passed = await asyncio.gather(*(first.request(entry) for _ in range(200)))
    assert all(passed)
    await until(lambda: not first.limits.leased("coder") and first.limits.quiet)
    passed = await asyncio.gather(*(second.request(entry) for _ in range(400)))
    assert sum(passed) == 200


async def test_a_budget_is_one_over_all_and_rejects(cluster: Cluster) -> None:
    first, second = await cluster.grow(2, timeout_seconds=5)
    entry = key(Budget(tokens=1000))
    assert await first.request(entry, 600)
    assert await second.request(entry, 600)
    assert not await first.request(entry, 60)  # more than it may have leased ahead
    assert first.refusals == [Reason.BUDGET_EXHAUSTED]
    second.end(100)
    await until(lambda: second.limits.quiet)
    await until(lambda: first.limits.used("coder") == 700 or _poll(first))
    assert await first.request(entry, 1)


async def test_a_budget_that_demotes_does_so_in_every_router(cluster: Cluster) -> None:
    first, second = await cluster.grow(2, timeout_seconds=5)
    entry = key(Budget(tokens=10, on_exhausted=OnExhausted.DEMOTE))
    assert await first.request(entry, 100)
    assert not second.limits.demoted(entry, 0)
    assert await second.request(entry, 100)
    assert second.limits.demoted(entry, 0)
    assert second.refusals == []


async def test_sqlite_and_valkey_budgets_outlive_the_router(tmp_path: Path) -> None:
    async with valkey_server(tmp_path) as server:
        stores: tuple[Callable[[], LimitStore], ...] = (
            lambda: SqliteStore(str(tmp_path / "limits.db"), 5),
            lambda: ValkeyStore(server.address, 5),
        )
        for make in stores:
            entry = key(Budget(tokens=100))
            async with AsyncExitStack() as stack:
                (replica,) = await Cluster(stack, make).grow(1, timeout_seconds=5)
                assert await replica.request(entry, 50)
                replica.end(100)
            async with AsyncExitStack() as stack:
                (replica,) = await Cluster(stack, make).grow(1, timeout_seconds=5)
                assert not await replica.request(entry, 1)


@dataclass(eq=False)
class Late(Local):
    """Its answers take long."""

    seconds: float = 0.3

    async def exchange(self, holder: str, asks: list[Ask]) -> Reply:
        await asyncio.sleep(self.seconds)
        return await super().exchange(holder, asks)


async def test_a_store_whose_first_answer_is_late_is_not_called_away_and_one_that_falls_behind_is() -> None:
    """At a start both sides are busy with starting: four of five were called away for a moment."""
    async with AsyncExitStack() as stack:
        store = Late(PodBook())
        (replica,) = await Cluster(stack, lambda: store).grow(1, timeout_seconds=0.05)
        assert await replica.request(key(requests_per_minute=40)), "and nobody waits for it"
        store.seconds = 0
        await until(lambda: not replica.limits.away)
        assert replica.sync.metrics.total("hlserve_router_limits_store_errors_total") == 0
        assert replica.sync.status()["status"] == "ok"
        store.seconds = 0.3
        replica.end()
        await until(lambda: replica.sync.status()["status"] == "away")


@pytest.mark.parametrize("how", ["killed", "stalled"])
async def test_while_the_store_is_away_each_router_keeps_to_its_part(tmp_path: Path, how: str) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(valkey_server(tmp_path))
        cluster = Cluster(stack, lambda: ValkeyStore(server.address, 0.1))
        first, second = await cluster.grow(2, timeout_seconds=0.1)
        entry = key(Budget(tokens=1000), requests_per_minute=40)
        assert await first.request(entry, 200)
        assert await second.request(entry, 1)
        await (server.kill() if how == "killed" else _stalled(server))
        passed = await asyncio.gather(*(first.request(entry, 1) for _ in range(40)))
        assert sum(passed) == 19  # half of 40, less the one before
        assert first.limits.away
        assert first.sync.status()["status"] == "away"
        assert first.sync.metrics.total("hlserve_router_limits_store_errors_total") >= 1
        passed = await asyncio.gather(*(second.request(entry, 1) for _ in range(40)))
        assert sum(passed) == 19
        await (server.start() if how == "killed" else _going(server))
        await until(lambda: not first.limits.away and not second.limits.away)
        # Data that was lost is told anew with what was leased ahead: a little more than was used, never less.
        most = 265 if how == "killed" else 239
        known = first.limits.used, second.limits.used
        await until(lambda: 239 <= known[0]("coder") == known[1]("coder") <= most or _poll(first, second))
        assert not await first.request(entry, 1)


def _poll(*replicas: Replica) -> bool:
    """Lets each router hear what the store knows by now."""
    for replica in replicas:
        replica.limits.refresh("coder")
    return False


async def _stalled(server: ValkeyServer) -> None:
    server.stall()


async def _going(server: ValkeyServer) -> None:
    server.go_on()


async def test_a_store_that_lost_its_data_is_told_what_the_routers_know(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(valkey_server(tmp_path))
        cluster = Cluster(stack, lambda: ValkeyStore(server.address, 0.5))
        (replica,) = await cluster.grow(1, timeout_seconds=0.5)
        entry = key(Budget(tokens=1000), requests_per_minute=60)
        assert await replica.request(entry, 700)
        await server.kill()
        await server.start()
        assert await replica.request(entry, 10)
        await until(lambda: replica.limits.used("coder") >= 700 or _poll(replica))


async def test_a_wrong_password_is_said_and_blocks_nobody(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(valkey_server(tmp_path, tcp=True, password="secret"))
        limits, metrics = Limits(), Metrics()
        limits.share("a")
        address = server.address.replace("//", "//:wrong@")
        store = ValkeyStore(address, 0.5)
        replica = Replica(LimitSync(limits, store, "a", metrics, str(store_address(address)), 0.5, 0.05), limits)
        stack.push_async_callback(_end, replica, asyncio.create_task(replica.sync.run()))
        assert await replica.request(key(requests_per_minute=1))
        assert not await replica.request(key(requests_per_minute=1))
        status = replica.sync.status()
        assert "refuses the password" in status["why"]
        assert "wrong" not in str(status).replace("wrong password", "")
        right = ValkeyStore(server.address, 0.5, password="secret")
        assert (await right.exchange("b", [])).members == 1
        await right.close()


async def test_a_store_that_never_answers_is_given_up_after_its_time() -> None:
    class Never:
        async def exchange(self, holder: str, asks: list[Ask]) -> Reply:
            await asyncio.Event().wait()
            raise StoreError("unreachable")

        async def close(self) -> None:
            """Nothing is open."""

    async with AsyncExitStack() as stack:
        (replica,) = (await _without_hello(stack, Never(), 0.05),)
        started = replica.sync.monotonic()
        assert await replica.request(key(requests_per_minute=1))
        assert replica.sync.monotonic() - started < 1


async def _without_hello(stack: AsyncExitStack, store: LimitStore, timeout_seconds: float) -> Replica:
    limits = Limits()
    limits.share("a")
    replica = Replica(LimitSync(limits, store, "a", Metrics(), "test", timeout_seconds, 0.02), limits)
    stack.push_async_callback(_end, replica, asyncio.create_task(replica.sync.run()))
    return replica


async def test_clients_that_went_away_are_forgotten(cluster: Cluster) -> None:
    (replica,) = await cluster.grow(1, timeout_seconds=5)
    assert await replica.request(key(max_concurrent=1))
    replica.limits.keep_only(frozenset())
    assert len(replica.limits) == 1
    replica.end()
    await until(lambda: len(replica.limits) == 0)


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        pytest.param("memory", "memory", id="memory"),
        pytest.param("sqlite:/tmp/limits.db", "sqlite:/tmp/limits.db", id="a file"),
        pytest.param("valkey://user:secret@cache:6379/3", "valkey://cache:6379/3", id="a server, shown without its password"),
        pytest.param("valkeys://cache/3", "valkeys://cache/3", id="a server behind TLS"),
        pytest.param("unix:///run/valkey.sock", "unix:///run/valkey.sock", id="a socket"),
    ],
)  # fmt: skip
def test_addresses_of_stores(setting: str, shown: str) -> None:
    assert str(store_address(setting)) == shown


@pytest.mark.parametrize(
    "setting",
    ["", "redis", "valkey:", "valkey://", "valkey://:secret@", "valkey://h:99999999", "sqlite:", "sqlite:/nowhere/at/all.db"],
)  # fmt: skip
def test_an_address_that_is_none_is_refused_in_one_sentence(setting: str) -> None:
    with pytest.raises(StartError) as refusal:
        store_address(setting)
    assert "--limits-store" in str(refusal.value)
    assert "secret" not in str(refusal.value)


async def test_sqlite_looks_once_a_minute_for_clients_to_forget(tmp_path: Path) -> None:
    start = 1_800_000_000.0
    at = [start]
    store = SqliteStore(str(tmp_path / "limits.db"), 5, lambda: at[0])
    left = []
    for number, (seconds, client) in enumerate(
        [(0, "one"), (30, "two"), (FORGET_SECONDS + 1, "x"), (FORGET_SECONDS + 40, "x"), (FORGET_SECONDS + 62, "x")], 1
    ):
        at[0] = start + seconds
        asked = Ask(client, "a", number, 0, (), 0, -1, 0, Amounts(requests=1), Amounts(), Caps(requests=60))
        await store.exchange("a", [asked])
        with closing(sqlite3.connect(tmp_path / "limits.db")) as database:
            left.append("".join(sorted(name[0] for (name,) in database.execute("SELECT name FROM clients"))))
    await store.close()
    assert left == ["o", "ot", "tx", "tx", "x"]


@pytest.mark.parametrize(
    "code", ["SQLITE_BUSY", "SQLITE_BUSY_RECOVERY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_LOCKED_SHAREDCACHE"]
)
def test_sqlite_waits_for_the_file_whatever_it_is_locked_for(code: str) -> None:
    store, tries = SqliteStore("unused", 5), []

    def work() -> None:
        tries.append(code)
        if len(tries) < 3:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = getattr(sqlite3, code)
            raise error

    store._when_free(work)
    assert len(tries) == 3


async def test_a_limits_file_is_tried_at_start_and_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "limits.db"
    for _ in range(2):
        store = SqliteStore(str(path), 0.2)
        store.check()
        assert (await store.exchange("a", [])).members == 1
        await store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        SqliteStore(str(path), 0.02).check()  # others are at work in it: that passes
        other.execute("ROLLBACK")
        other.execute("ALTER TABLE clients RENAME COLUMN document TO text")
    with pytest.raises(StoreError, match="it cannot be used \\(no such column: document\\)"):
        SqliteStore(str(path), 0.2).check()
