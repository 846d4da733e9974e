"""A process's leases of shared limits, against the book itself and a clock by hand."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from hlserve_api.routing import Budget, BudgetPeriod, KeyEntry, KeyLimits, OnExhausted
from hlserve_router.limit_account import Reservation
from hlserve_router.limit_book import Ask
from hlserve_router.limit_store import Reply
from hlserve_router.limit_store_pod import PodBook
from hlserve_router.limit_sync import LimitSync
from hlserve_router.limits import MAX_ASKS, Limits
from hlserve_router.metrics import Metrics
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_key

ROUTE = a_class("agent")
DAY = 86_400.0
NOON = 20_000 * DAY + DAY / 2


def key(client: str = "coder", budget: int | None = None, **limits: int) -> KeyEntry:
    of_day = Budget(tokens=budget, period=BudgetPeriod.DAY, on_exhausted=OnExhausted.REJECT) if budget else None
    return a_key(AGENT_KEY, client, "agent", limits=KeyLimits(**limits), budget=of_day)


@dataclass(eq=False)
class Process:
    """One process that shares limits. Monotonic seconds are those since noon."""

    book: PodBook
    clock: "Clock"
    name: str
    limits: Limits = field(default_factory=Limits)
    poked: int = 0

    def __post_init__(self) -> None:
        self.limits.share(self.name)
        self.limits.poke = self._poke

    def _poke(self) -> None:
        self.poked += 1

    def talk(self) -> list[str]:
        """One message to the store, and its answers. Returns of which clients."""
        asks = self.limits.asks(self.clock.now)
        reply = self.book.exchange(self.name, asks)
        self.limits.answered(asks, reply.answers, reply.members, reply.epoch, self.clock.now)
        return [ask.client for ask in asks]

    def take(self, entry: KeyEntry, tokens: int = 1) -> Reservation:
        """One request, let in."""
        while (found := self._reserve(entry, tokens)) is None:
            self.limits.wait(entry, lambda: None)
            self.talk()
        return found

    def _reserve(self, entry: KeyEntry, tokens: int) -> Reservation | None:
        return self.limits.reserve(entry, ROUTE, tokens, self.clock.now, self.clock.wall())


@dataclass(eq=False)
class Clock:
    """Time as it is set."""

    now: float = 0.0

    def wall(self) -> float:
        """Unix seconds."""
        return NOON + self.now


@dataclass(eq=False)
class World:
    """One book and its clock."""

    clock: Clock = field(default_factory=Clock)
    book: PodBook = field(init=False)

    def __post_init__(self) -> None:
        self.book = PodBook(self.clock.wall)

    def process(self, name: str) -> Process:
        """One more process."""
        return Process(self.book, self.clock, name)

    def used(self, client: str = "coder") -> int:
        """Tokens of the budget that the book counts."""
        used: int = self.book.documents[client]["u"]
        return used


@pytest.fixture
def world() -> World:
    """At noon."""
    return World()


def settle_twice(process: Process, reservation: Reservation, used: int) -> None:
    for _ in range(2):
        process.limits.settle(reservation, used, process.clock.now)


@pytest.mark.parametrize("used", [pytest.param(10, id="estimated too high"), pytest.param(900, id="estimated too low")])
def test_a_request_that_runs_over_midnight_is_charged_to_the_day_it_began(world: World, used: int) -> None:
    process, entry = world.process("a"), key(budget=1000)
    old = process.take(entry, 500)
    world.clock.now += DAY
    process.limits.settle(process.take(entry, 100), 100, world.clock.now)  # from here on it knows of the new day
    settle_twice(process, old, used)
    process.talk()
    process.limits.leave()
    process.talk()
    assert world.used() == 100


def test_what_was_leased_of_yesterdays_budget_is_not_given_to_today(world: World) -> None:
    process, entry = world.process("a"), key(budget=1_000_000)
    for _ in range(40):
        process.limits.settle(process.take(entry, 100), 100, world.clock.now)
        world.clock.now += 0.01
    assert process.limits.leased("coder")
    world.clock.now += DAY
    process.take(entry, 100)
    process.limits.leave()
    process.talk()
    assert world.used() == 100


def test_what_was_spent_without_the_store_before_midnight_is_not_charged_after_it(world: World) -> None:
    process, entry = world.process("a"), key(budget=1000)
    process.limits.settle(process.take(entry, 100), 100, world.clock.now)
    process.limits.lost()
    process.limits.settle(process.take(entry, 800), 800, world.clock.now)
    world.clock.now += DAY
    process.limits.settle(process.take(entry, 50), 50, world.clock.now)
    reply = world.book.exchange("a", [])
    process.limits.heard(reply.members, reply.epoch, world.clock.now)
    process.talk()
    assert world.used() == 50


def test_clients_beyond_one_message_have_their_turn_while_the_first_ones_always_have_news(world: World) -> None:
    process = world.process("a")
    entries = [key(f"client-{index}", requests_per_minute=60) for index in range(3 * MAX_ASKS)]
    told: set[str] = set()

    def want(entry: KeyEntry) -> Callable[[], None]:
        return lambda: process.limits.wait(entry, want(entry))

    for entry in entries:
        assert process.limits.reserve(entry, ROUTE, 1, world.clock.now, world.clock.wall()) is None
        process.limits.wait(entry, want(entry))
    for _ in range(3):
        told |= set(process.talk())
    assert len(told) == len(entries)


def test_the_end_of_a_request_is_told_at_once_only_where_others_may_lack_its_place(world: World) -> None:
    process = world.process("a")
    for entry, at_once in ((key("many", max_concurrent=1000), False), (key("few", max_concurrent=2), True)):
        reservation = process.take(entry)
        before = process.poked
        process.limits.settle(reservation, 1, world.clock.now)
        assert (process.poked > before) is at_once
        assert entry.client in process.talk(), "soon it is told in any case"


def test_a_store_that_lost_its_data_hears_of_requests_that_run_on(world: World) -> None:
    process, entry = world.process("a"), key(max_concurrent=2)
    process.take(entry)
    process.take(entry)
    process.talk()
    world.clock.now += 1
    world.book = process.book = PodBook(world.clock.wall)
    process.talk()
    process.talk()
    other = Process(world.book, world.clock, "b")
    assert other.limits.reserve(entry, ROUTE, 1, world.clock.now, world.clock.wall()) is None
    other.limits.wait(entry, lambda: None)
    other.talk()
    assert world.book.documents["coder"]["h"]["a"][0] == 2
    assert not other.limits.leased("coder")


class Broken:
    """A store whose client library fails in a way of its own."""

    async def exchange(self, holder: str, asks: list[Ask]) -> Reply:
        raise RuntimeError("unexpected")

    async def close(self) -> None:
        """Nothing is open."""


async def test_nobody_waits_for_a_store_that_fails_in_an_unknown_way() -> None:
    limits = Limits()
    limits.share("a")
    sync = LimitSync(limits, Broken(), "a", Metrics(), "test", timeout_seconds=5, retry_seconds=5)
    woken = asyncio.Event()
    assert limits.reserve(key(max_concurrent=1), ROUTE, 1, 0.0, NOON) is None
    limits.wait(key(max_concurrent=1), woken.set)
    with pytest.raises(RuntimeError):
        await sync.run()
    assert woken.is_set()
    assert sync.status()["status"] == "away"
