"""What the workers of a pod tell each other: cells, names, doorbells, turns, connections."""

import asyncio
import errno
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_api.routing import QueueRule
from hlserve_router import report
from hlserve_router.accepting import Acceptor, may_take
from hlserve_router.admission import Admission, Entry, Lane
from hlserve_router.errors import Refusal, StartError
from hlserve_router.ledger import COLUMNS, Handles, Ledger
from hlserve_router.pools import Pools
from hlserve_router.proxy import Clocks, Proxy
from hlserve_router.sharing import YIELD_SECONDS, PodLoads, PodQueues
from hlserve_router.state import NoPlace
from hlserve_router.tables import Tables
from hlserve_router.testing.documents import a_class, a_pool, a_table


@pytest.fixture
def workers() -> Iterator[tuple[Ledger, Ledger]]:
    """Two workers' views of one ledger."""
    handles = Handles.make(2)
    pair = Ledger(handles, 0), Ledger(handles, 1)
    yield pair
    for ledger in pair:
        ledger.close()
    handles.close()


def rung(ledger: Ledger) -> bool:
    """True if the worker's doorbell was rung; takes the ringing."""
    try:
        return bool(os.eventfd_read(ledger.bell))
    except BlockingIOError:
        return False


def test_a_worker_reads_what_the_others_tell_and_not_itself(workers: tuple[Ledger, Ledger]) -> None:
    one, two = workers
    one.column("endpoint", "a").put(3, 400)
    one.column("endpoint", "b").put(7)
    assert two.column("endpoint", "a").others() == (3, 400, 0, 0)
    assert one.column("endpoint", "a").others() == (0, 0, 0, 0)
    assert two.column("endpoint", "b").others()[0] == 7


def test_a_worker_that_died_has_nothing_any_more_and_the_others_are_woken(workers: tuple[Ledger, Ledger]) -> None:
    one, two = workers
    one.column("endpoint", "a").put(3)
    one.waiting(2)
    two.clear(0)
    assert two.column("endpoint", "a").others()[0] == 0
    assert rung(two)
    two.ring()
    assert not rung(one), "nobody waits there"


def test_names_that_no_worker_uses_make_room_for_others(workers: tuple[Ledger, Ledger]) -> None:
    one, two = workers
    two.column("kept").put(1)
    for index in range(1, COLUMNS - 1):  # names that worker one uses, without the time that so many take
        one._cells[index] = index
        one._cells[one._at(0, index)] = 1
    one.column("the last")
    with pytest.raises(StartError, match="run fewer"):
        one.column("one too many")
    one.forget("the last")
    one.column("another").put(9)
    assert two.column("another").others()[0] == 9
    assert one.column("kept").others()[0] == 1


def test_loads_are_folded_in_and_told_without_what_was_folded(workers: tuple[Ledger, Ledger]) -> None:
    table = a_table(a_pool("agents", "http://127.0.0.1:1"), a_class("agent", "agents"))
    sides = []
    for ledger in workers:
        pools = Pools()
        pools.apply(table, 0.0)
        sides.append((pools, PodLoads(ledger, pools), next(pools.endpoints())))
    (one, loads_one, at_one), (two, loads_two, at_two) = sides
    one.take(at_one, "agent", 100, 50, 0.0)
    loads_one.publish(at_one, "agent")
    for _ in range(3):  # as often as it is looked at, it counts once
        loads_two.refresh(["agents"])
    assert (at_two.in_flight, at_two.in_flight_tokens, at_two.work_tokens) == (1, 100, 50)
    assert two.pools["agents"].in_flight_by_class == {"agent": 1}
    assert at_two.own_in_flight == 0
    loads_two.publish(at_two, "agent")
    loads_one.refresh(["agents"])
    assert at_one.in_flight == 1
    one.give_back(one.pools["agents"], at_one, "agent", 100, 50)
    loads_one.publish(at_one, "agent")
    loads_two.sweep()
    assert (at_two.in_flight, at_two.in_flight_tokens, two.pools["agents"].in_flight_by_class["agent"]) == (0, 0, 0)


def test_gauges_are_told_also_of_a_class_that_only_another_worker_has_served(workers: tuple[Ledger, Ledger]) -> None:
    table = a_table(a_pool("agents", "http://127.0.0.1:1"), a_class("agent", "agents"))
    here, there = (Proxy(Clocks(time.monotonic, time.time), Random(0), ledger) for ledger in workers)
    for proxy in (here, there):
        proxy.pools.apply(table, 0.0)
    endpoint = next(here.pools.endpoints())
    here.pools.take(endpoint, "agent", 100, 50, 0.0)
    told = {}
    for proxy in (here, there):
        assert proxy.pod is not None
        proxy.pod.publish(endpoint, "agent") if proxy is here else proxy.pod.refresh(["agents"])
        gauges = report.gauges(proxy, Tables(proxy), 10.0)
        told[proxy is here] = {name: value for name, labels, value in gauges if labels == ("agent", "agents")}
    assert told[True] == {"hlserve_router_in_flight_requests": 1, "hlserve_router_in_flight_tokens": 100}
    assert told[False] == {"hlserve_router_in_flight_requests": 0, "hlserve_router_in_flight_tokens": 0}


def test_an_endpoint_that_comes_back_keeps_its_cells_when_the_former_one_is_idle(
    workers: tuple[Ledger, Ledger],
) -> None:
    full, empty = (
        a_table(a_pool("agents", *urls), a_class("agent", "agents")) for urls in (["http://127.0.0.1:1"], [])
    )
    pools = Pools()
    loads = PodLoads(workers[0], pools)
    states = []
    for table in (full, empty, full):
        pools.apply(table, 0.0)
        for endpoint in pools.endpoints():
            pools.take(endpoint, "agent", 100, 50, 0.0)
            loads.publish(endpoint, "agent")
            states.append(endpoint)
    former, _ = states
    former.end(100, 50)
    loads.sweep()
    other = workers[1]
    for index in range(2, COLUMNS):  # all but the columns of the endpoint and of its pool's class, as if in use
        other._cells[index] = index
        other._cells[other._at(1, index)] = 1
    with pytest.raises(StartError, match="run fewer"):
        other.column("one too many")


class Full(socket.socket):
    """A listening socket in a process that has no descriptor left."""

    tries = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.tries += 1
        raise OSError(errno.EMFILE, "Too many open files")


async def test_a_worker_without_descriptors_takes_no_connection_for_a_while(workers: tuple[Ledger, Ledger]) -> None:
    with Full() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        client.connect(listener.getsockname())
        acceptor = Acceptor(listener, workers[0], asyncio.Protocol, lambda: 0)
        async with asyncio.timeout(5):
            while not listener.tries:  # noqa: ASYNC110 - the state has no event
                await asyncio.sleep(0)
        for _ in range(5):
            acceptor.look()
            await asyncio.sleep(0)
        assert listener.tries == 1
        acceptor.close()


@dataclass(eq=False)
class Patient:
    """A request that is placed once there is room."""

    room: list[bool]
    log: list[str]
    name: str
    refusals: list[Refusal] = field(default_factory=list)

    def place(self, lane: Lane) -> NoPlace | None:
        if not self.room[0]:
            return NoPlace.FULL
        self.room[0] = False
        return None

    def granted(self) -> None:
        self.log.append(self.name)

    def refused(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)


def test_an_older_request_in_another_worker_goes_first_but_holds_nobody_up(workers: tuple[Ledger, Ledger]) -> None:
    room, log = [False], list[str]()
    route = a_class("agent", queue=QueueRule(max_depth=2, ttl_milliseconds=60_000))
    one, two = (Admission(lambda lane: 0.0, PodQueues(ledger)) for ledger in workers)

    def ask(admission: Admission, name: str, now: float) -> None:
        entry = Entry(name, 1, 10, now, now + 60, Patient(room, log, name))
        admission.submit(admission.lane(route, "m1"), entry)

    ask(one, "older", 1.0)
    ask(two, "younger", 2.0)
    two.pump(2.0 + 2 * YIELD_SECONDS)  # as the process does: it finds no room
    assert [one.waiting, two.waiting] == [1, 1]
    with pytest.raises(Refusal, match="2 requests wait"):
        ask(two, "a third", 2.5)
    while rung(workers[0]):
        pass
    room[0] = True
    two.pump(3.0)
    assert log == []
    one.pump(3.0)
    assert log == ["older"]
    room[0] = True
    two.pump(3.1)
    assert log == ["older", "younger"]
    room[0] = False
    ask(one, "stuck", 4.0)
    ask(two, "behind", 5.0)
    two.pump(5.0 + 2 * YIELD_SECONDS)
    room[0] = True
    two.pump(6.0)
    assert log[2:] == []
    two.pump(6.0 + 2 * YIELD_SECONDS)
    assert log[2:] == ["behind"]


def test_a_forgotten_class_leaves_no_names_behind(workers: tuple[Ledger, Ledger]) -> None:
    admission = Admission(lambda lane: 0.0, PodQueues(workers[0]))
    for turn in range(20):
        room, log = [False], list[str]()
        lane = admission.lane(a_class(f"class-{turn}"), "m1")
        entry = Entry("flow", 1, 10, 0.0, 60.0, Patient(room, log, "waits"))
        admission.submit(lane, entry)
        assert len(workers[0]._columns) == 2, "of the class and its lane"
        admission.retire(lambda lane: False)
        admission.withdraw(lane, entry)
        admission.sweep(1.0)
        assert not workers[0]._columns


@given(st.lists(st.booleans(), max_size=300))
def test_connections_stay_near_each_other_whoever_is_woken(wakes: list[bool]) -> None:
    counts = [0, 0]
    for first in wakes:
        mine = 0 if first else 1
        if not may_take(counts[mine], counts[1 - mine]):
            mine = 1 - mine
            assert may_take(counts[mine], counts[1 - mine]), "somebody always may"
        counts[mine] += 1
    total = sum(counts)
    assert total < 16 or max(counts) <= 0.6 * total
