"""Step 4: the class queues. Pure: a fake pool of slots stands for the engines."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_api.answers import Reason
from hlserve_api.routing import ClassRoute, QueueRule, ShareRule, SpillRule
from hlserve_router.admission import QUANTUM_TOKENS, SPARE_DEADLINES, Admission, Entry, FairQueue, Lane
from hlserve_router.errors import Refusal
from hlserve_router.state import NoPlace
from hlserve_router.testing.documents import a_class


@dataclass(eq=False)
class Slots:
    """Engines: so many requests, so many tokens."""

    free: int
    tokens: int = 1_000_000_000
    served: list["Asker"] = field(default_factory=list)
    blocked: NoPlace = NoPlace.FULL


@dataclass(eq=False)
class Asker:
    """One request."""

    name: str
    slots: Slots
    tokens: int = 1
    answer: str | None = None
    reason: Reason | None = None

    @property
    def answered(self) -> bool:
        return self.answer is not None

    def place(self, lane: Lane) -> NoPlace | None:
        if self.slots.free <= 0 or self.tokens > self.slots.tokens:
            return self.slots.blocked
        self.slots.free -= 1
        self.slots.tokens -= self.tokens
        return None

    def granted(self) -> None:
        assert self.answer is None
        self.answer = "granted"
        self.slots.served.append(self)

    def refused(self, refusal: Refusal) -> None:
        assert self.answer is None
        self.answer, self.reason = "refused", refusal.reason


def entry(asker: Asker, flow: str = "f", now: float = 0.0, ttl: float = 10.0, size: int = 100) -> Entry:
    return Entry(flow, asker.tokens, size, now, now + ttl, asker)


def admission() -> Admission:
    return Admission(lambda lane: 0.0)


def ask(
    adm: Admission,
    route: ClassRoute,
    asker: Asker,
    flow: str = "f",
    now: float = 0.0,
    ttl: float = 10.0,
    size: int = 100,
) -> tuple[Lane, Entry]:
    lane, made = adm.lane(route, "m1"), entry(asker, flow, now, ttl, size)
    adm.submit(lane, made)
    return lane, made


def test_a_free_slot_is_given_before_submit_returns() -> None:
    slots = Slots(1)
    asker = Asker("a", slots)
    ask(admission(), a_class(), asker)
    assert asker.answer == "granted"


def test_a_waiting_request_is_granted_when_a_slot_comes_free() -> None:
    slots, adm = Slots(0), admission()
    asker = Asker("a", slots)
    ask(adm, a_class(), asker)
    assert not asker.answered
    slots.free = 1
    adm.pump(1.0)
    assert asker.answer == "granted"
    assert adm.waiting == 0


def test_the_queue_is_bounded_in_count() -> None:
    slots, adm = Slots(0), admission()
    route = a_class(queue=QueueRule(max_depth=2))
    for name in "ab":
        ask(adm, route, Asker(name, slots))
    with pytest.raises(Refusal) as refusal:
        ask(adm, route, Asker("c", slots))
    assert refusal.value.reason is Reason.QUEUE_FULL
    assert adm.depth("interactive").count == 2


def test_withdrawing_a_request_that_was_refused_changes_nothing() -> None:
    slots, adm = Slots(0), admission()
    route = a_class(queue=QueueRule(max_depth=1))
    ask(adm, route, Asker("a", slots))
    lane, late = adm.lane(route, "m1"), entry(Asker("b", slots))
    with pytest.raises(Refusal):
        adm.submit(lane, late)
    adm.withdraw(lane, late)
    assert adm.depth("interactive").count == 1


def test_the_queue_is_bounded_in_bytes() -> None:
    slots, adm = Slots(0), admission()
    route = a_class(queue=QueueRule(max_bytes=1000))
    ask(adm, route, Asker("a", slots), size=900)
    with pytest.raises(Refusal) as refusal:
        ask(adm, route, Asker("b", slots), size=200)
    assert refusal.value.reason is Reason.QUEUE_FULL


def test_a_body_above_the_byte_bound_waits_alone() -> None:
    slots, adm = Slots(0), admission()
    ask(adm, a_class(queue=QueueRule(max_bytes=1000)), Asker("a", slots), size=5000)
    assert adm.waiting == 1


def test_a_full_queue_does_not_stand_before_free_engines() -> None:
    slots = Slots(1)
    asker = Asker("a", slots)
    ask(admission(), a_class(queue=QueueRule(max_depth=0)), asker)
    assert asker.answer == "granted"


@pytest.mark.parametrize(
    ("blocked", "reason"),
    [
        (NoPlace.FULL, Reason.QUEUE_EXPIRED),
        (NoPlace.BUSY, Reason.ENGINE_BUSY),
        (NoPlace.EMPTY, Reason.SCALING_FROM_ZERO),
    ],
)
def test_waiting_ends_with_the_reason_that_held_it(blocked: NoPlace, reason: Reason) -> None:
    slots, adm = Slots(0, blocked=blocked), admission()
    asker = Asker("a", slots)
    ask(adm, a_class(), asker, ttl=3.0)
    adm.sweep(2.9)
    assert not asker.answered
    adm.sweep(3.0)
    assert asker.reason is reason
    assert adm.depth("interactive") == adm.depth("nothing")


@pytest.mark.parametrize(
    ("blocked", "reason"), [(NoPlace.DOWN, Reason.NO_ENDPOINT), (NoPlace.DRAINING, Reason.DRAINING)]
)
def test_no_engine_at_all_is_said_at_once(blocked: NoPlace, reason: Reason) -> None:
    asker = Asker("a", Slots(0, blocked=blocked))
    ask(admission(), a_class(), asker)
    assert asker.reason is reason


def test_a_withdrawn_request_frees_its_place_in_the_bounds_at_once_and_is_never_granted() -> None:
    slots, adm = Slots(0), admission()
    first, gone, last = (Asker(name, slots) for name in "abc")
    ask(adm, a_class(), first)
    lane, withdrawn = ask(adm, a_class(), gone)
    ask(adm, a_class(), last)
    adm.withdraw(lane, withdrawn)
    assert adm.depth("interactive").count == 2
    slots.free = 3
    adm.pump(1.0)
    assert [asker.name for asker in slots.served] == ["a", "c"]
    assert not gone.answered
    adm.withdraw(lane, withdrawn)
    assert adm.depth("interactive").count == 0


def test_a_lane_blocked_by_a_big_request_keeps_others_off_the_room_it_waits_for() -> None:
    slots, adm = Slots(10, tokens=100), admission()
    big, small = Asker("big", slots, tokens=500), Asker("small", slots, tokens=10)
    ask(adm, a_class("agent", "chat"), big)
    ask(adm, a_class("batch", "chat", priority=-1), small, now=1.0)
    assert not small.answered
    slots.tokens = 600
    adm.pump(2.0)
    assert [asker.name for asker in slots.served] == ["big", "small"]


def test_a_more_urgent_class_is_not_blocked_by_a_big_request_of_another() -> None:
    slots, adm = Slots(10, tokens=100), admission()
    ask(adm, a_class("batch", "chat", priority=-1), Asker("big", slots, tokens=500))
    chat = Asker("chat", slots, tokens=10)
    ask(adm, a_class("interactive", "chat", priority=10), chat, now=1.0)
    assert chat.answer == "granted"


def test_other_pools_are_not_held() -> None:
    full, free, adm = Slots(0), Slots(1), admission()
    ask(adm, a_class("interactive", "chat", priority=10), Asker("a", full))
    agent = Asker("b", free)
    ask(adm, a_class("agent", "agents"), agent)
    assert agent.answer == "granted"


def test_a_class_below_its_minimum_share_goes_before_a_more_urgent_one() -> None:
    slots = Slots(0)
    held = {"interactive": 9, "batch": 0}

    def need(lane: Lane) -> float:
        return lane.route.share.min_percent / 100 - held[lane.route.name] / 10

    adm = Admission(need)
    urgent, starving = Asker("urgent", slots), Asker("starving", slots)
    ask(adm, a_class("interactive", "chat", priority=10), urgent)
    ask(adm, a_class("batch", "chat", share=ShareRule(min_percent=10)), starving, now=1.0)
    slots.free = 1
    adm.pump(2.0)
    assert [asker.name for asker in slots.served] == ["starving"]


def test_spill_turns_on_at_the_upper_watermark_and_off_below_the_lower_one() -> None:
    slots, adm = Slots(0), admission()
    route = a_class(spill=SpillRule(enter_queue_wait_milliseconds=1000, leave_queue_wait_milliseconds=500))
    lane, _ = ask(adm, route, Asker("a", slots), ttl=100)
    spilling = {}
    for now in (0.9, 1.0):
        adm.sweep(now)
        spilling[now] = lane.spilling
    slots.free = 1
    ask(adm, route, Asker("b", slots), now=1.3, ttl=100)
    adm.sweep(2.0)  # its wait of 700 ms is above the lower watermark
    spilling[2.0] = lane.spilling
    slots.free = 1
    adm.sweep(2.1)
    adm.sweep(2.2)
    spilling[2.2] = lane.spilling
    assert spilling == {0.9: False, 1.0: True, 2.0: True, 2.2: False}


costs = st.integers(1, 3 * QUANTUM_TOKENS)


@given(st.lists(costs, min_size=1, max_size=60), st.lists(costs, min_size=1, max_size=60))
def test_two_clients_that_both_wait_get_the_same_tokens(one: list[int], two: list[int]) -> None:
    """Deficit round robin's bound: off by at most a quantum and the largest request, whatever the sizes."""
    queue, slots = FairQueue(), Slots(0)
    for flow, sizes in (("one", one), ("two", two)):
        for size in sizes:
            queue.push(entry(Asker(flow, slots, size), flow))
    served: Counter[str] = Counter()
    left = {"one": len(one), "two": len(two)}
    while all(left.values()):
        head = queue.head()
        assert head is not None
        assert queue.head() is head, "looking does not change whose turn it is"
        popped = queue.pop()
        assert popped is head
        served[popped.flow] += popped.cost_tokens
        left[popped.flow] -= 1
        assert abs(served["one"] - served["two"]) <= QUANTUM_TOKENS + max(*one, *two)


operations = st.lists(
    st.tuples(st.sampled_from(["push", "pop", "withdraw", "compact"]), st.sampled_from("abcd"), costs),
    min_size=1,
    max_size=80,
)


@given(operations)
def test_every_request_leaves_the_queue_exactly_once_and_in_order_of_its_client(
    ops: list[tuple[str, str, int]],
) -> None:
    queue, slots = FairQueue(), Slots(0)
    waiting: dict[str, list[Entry]] = {flow: [] for flow in "abcd"}
    for clock, (what, flow, cost) in enumerate(ops):
        if what == "push":
            made = entry(Asker(flow, slots, cost), flow, now=float(clock))
            waiting[flow].append(made)
            queue.push(made)
        elif what == "pop" and any(waiting.values()):
            popped = queue.pop()
            assert popped is waiting[popped.flow].pop(0)
        elif what == "withdraw" and waiting[flow]:
            waiting[flow].pop(cost % len(waiting[flow])).waiter = None
        elif what == "compact":
            queue.compact()
        assert sorted(map(id, queue)) == sorted(id(item) for items in waiting.values() for item in items)
    while any(waiting.values()):
        popped = queue.pop()
        assert popped is waiting[popped.flow].pop(0)
    assert queue.head() is None


def test_one_client_with_a_thousand_requests_does_not_delay_another() -> None:
    slots, adm = Slots(0), admission()
    route = a_class(queue=QueueRule(max_depth=2000))
    for index in range(1000):
        ask(adm, route, Asker(f"flood-{index}", slots, QUANTUM_TOKENS), "flood")
    ask(adm, route, Asker("quiet", slots, QUANTUM_TOKENS), "quiet", now=1.0)
    slots.free = 3
    adm.pump(2.0)
    assert "quiet" in [asker.name for asker in slots.served]


def test_a_full_queue_whose_engines_vanish_is_refused_however_long_it_is() -> None:
    """Each refusal ends a request, and the end of a request looks for room again."""
    slots, adm = Slots(0), admission()

    class Ending(Asker):
        def refused(self, refusal: Refusal) -> None:
            super().refused(refusal)
            adm.pump(1.0)

    askers = [Ending(f"{index}", slots) for index in range(3000)]
    for asker in askers:
        ask(adm, a_class(queue=QueueRule(max_depth=3000)), asker, asker.name)
    slots.blocked = NoPlace.DOWN
    adm.pump(1.0)
    assert {asker.reason for asker in askers} == {Reason.NO_ENDPOINT}
    assert adm.waiting == 0


def test_clients_that_leave_the_queue_behind_one_that_waits_long_leave_nothing_behind() -> None:
    slots, adm = Slots(0), admission()
    lane, _ = ask(adm, a_class(), Asker("waits", slots), "waits", ttl=1000)
    for index in range(5000):
        adm.withdraw(*ask(adm, a_class(), Asker("gone", slots), f"client-{index % 7}", ttl=1000))
        if index % 100 == 0:
            adm.sweep(1.0)
    assert lane.queue.remembered <= 2 * SPARE_DEADLINES


def test_lanes_that_a_new_table_does_not_serve_are_forgotten_once_nothing_waits_in_them() -> None:
    slots, adm = Slots(0), admission()
    gone, kept = a_class("gone"), a_class("kept")
    lane, late = ask(adm, gone, Asker("waits", slots))
    idle, there = adm.lane(gone, "m2"), adm.lane(kept, "m1")
    adm.retire(lambda lane: lane.route is kept)
    assert adm.lanes() == (lane, there), "one is waited in"
    adm.withdraw(lane, late)
    adm.sweep(1.0)
    assert adm.lanes() == (there,)
    assert adm.depth("gone").count == 0
    assert adm.lane(gone, "m2") is not idle


def test_a_class_that_comes_back_keeps_its_lane_while_something_waits_in_it() -> None:
    slots, adm = Slots(0), admission()
    lane, _ = ask(adm, a_class(), Asker("waits", slots))
    adm.retire(lambda lane: False)
    assert adm.lane(a_class(), "m1") is lane
    slots.free = 1
    adm.sweep(1.0)
    assert slots.served
    assert adm.lanes() == (lane,)


@pytest.mark.parametrize("back", [False, True], ids=["its class is gone", "its class has come back meanwhile"])
def test_a_request_whose_lane_was_forgotten_while_it_was_with_an_engine_waits_as_ever(back: bool) -> None:
    slots, adm = Slots(1), admission()
    lane, _ = ask(adm, a_class(), Asker("fails", slots))
    adm.retire(lambda lane: False)
    assert adm.lanes() == ()
    young = [adm.lane(a_class(), "m1")] if back else []
    again = Asker("again", slots)
    adm.submit(lane, entry(again, now=2.0))
    assert (adm.waiting, adm.depth("interactive").count) == (1, 1)
    slots.free = 1
    adm.pump(3.0)
    assert again.answer == "granted"
    adm.sweep(3.0)
    assert list(adm.lanes()) == young
