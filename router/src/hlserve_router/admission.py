"""Step 4: the class queues. Pure core: bounded in count, bytes and age; fair between clients by tokens.

Each class has one lane per model, so that a class whose pools serve several models is never blocked by one of them. A
lane shares its turns by deficit round robin on estimated tokens. `Admission.pump` offers the heads of all lanes to
`place`, neediest class first. Requests of sessions that have their place already go before those that open one. A head that is
too big for the room that is left may be passed by smaller ones, but only by as many tokens as it has itself.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, Literal, Protocol

from hlserve_api.answers import Reason
from hlserve_api.routing import ClassRoute
from hlserve_router.errors import Refusal
from hlserve_router.state import NoPlace

QUANTUM_TOKENS: Final = 4096
"""Tokens a client may send per turn; smaller is fairer, larger costs fewer turns. Fairness is off by at most this plus one request."""
SPARE_DEADLINES: Final = 1024
"""Entries of requests that left early are dropped once there are so many."""
LOOK_BEHIND: Final = 8
"""How many requests behind a head that does not fit are tried."""


class Waiter(Protocol):
    """A request that waits. Exactly one of `granted` and `refused` is called, once, unless it withdraws."""

    def place(self, lane: "Lane") -> NoPlace | None:
        """Tries to take an endpoint; None = it has one now. Called only when it is its turn."""

    def granted(self) -> None:
        """It has an endpoint now."""

    def refused(self, refusal: Refusal) -> None:
        """It will get none."""


@dataclass(slots=True, eq=False)
class Entry:
    """One waiting request."""

    flow: str
    """The client (or tenant) whose turn it is."""
    cost_tokens: int
    size_bytes: int
    arrived: float
    deadline: float
    waiter: Waiter | None
    returning: bool = False
    """Its session has its place already."""
    blocked: NoPlace = NoPlace.FULL
    """Why it could not be placed when last tried."""
    passed_tokens: int = 0
    """Tokens of those that went before it although they came later."""

    @property
    def waiting(self) -> bool:
        """False once it was placed, refused or withdrawn."""
        return self.waiter is not None


class FairQueue:
    """Deficit round robin over flows: over any time both wait, two flows get the same tokens up to a quantum and a request."""

    def __init__(self, quantum_tokens: int = QUANTUM_TOKENS) -> None:
        self._quantum = quantum_tokens
        self._flows: dict[str, deque[Entry]] = {}
        self._deficit: dict[str, int] = {}
        self._turn: deque[str] = deque()
        self._fresh = True
        """True if the flow at the front has not had its quantum of this turn yet."""

    def push(self, entry: Entry) -> None:
        """Puts `entry` among the others of its flow, by time of arrival (one that comes back goes to the front)."""
        flow = self._flows.get(entry.flow)
        if flow is None:
            self._flows[entry.flow] = deque((entry,))
            self._deficit[entry.flow] = 0
            self._turn.append(entry.flow)
        elif flow and entry.arrived < flow[0].arrived:
            flow.appendleft(entry)
        else:
            flow.append(entry)

    def head(self) -> Entry | None:
        """The entry whose turn it is; the same one until it is popped, withdrawn or refused."""
        skipped = 0
        while self._turn:
            name = self._turn[0]
            flow = self._flows[name]
            while flow and not flow[0].waiting:
                flow.popleft()
            if not flow:
                self._drop(name)
                continue
            if self._fresh:
                self._deficit[name] += self._quantum
                self._fresh = False
            if flow[0].cost_tokens <= self._deficit[name]:
                return flow[0]
            self._next_turn()
            skipped += 1
            if skipped >= len(self._turn):
                self._prune()
                self._skip_idle_rounds()
                skipped = 0
        return None

    def pop(self) -> Entry:
        """Takes the head out and charges its flow."""
        entry = self.head()
        if entry is None:
            raise IndexError("pop from an empty queue")
        self._deficit[entry.flow] -= entry.cost_tokens
        flow = self._flows[entry.flow]
        flow.popleft()
        if not flow:
            self._drop(entry.flow)
        return entry

    def behind(self, limit: int) -> list[Entry]:
        """Up to `limit` entries after the head: the first of each flow in turn, then the second of each, and so on."""
        found: list[Entry] = []
        rows = [iter(self._flows[name]) for name in self._turn]
        while rows and len(found) <= limit:
            for row in tuple(rows):
                entry = next((entry for entry in row if entry.waiting), None)
                if entry is None:
                    rows.remove(row)
                else:
                    found.append(entry)
        return found[1 : limit + 1]

    def charge(self, entry: Entry) -> None:
        """An entry that is not the head was placed: its flow pays for it, and has the later turn."""
        self._deficit[entry.flow] -= entry.cost_tokens

    @property
    def remembered(self) -> int:
        """Entries in memory, also those that no longer wait."""
        return sum(map(len, self._flows.values()))

    def compact(self) -> None:
        """Drops all entries that no longer wait: behind a head that waits long they would pile up."""
        for name, flow in tuple(self._flows.items()):
            waiting = [entry for entry in flow if entry.waiting]
            if not waiting:
                self._drop(name)
            elif len(waiting) < len(flow):
                self._flows[name] = deque(waiting)

    def oldest(self) -> float | None:
        """When the entry that waits longest arrived."""
        firsts = (next((entry for entry in flow if entry.waiting), None) for flow in self._flows.values())
        return min((entry.arrived for entry in firsts if entry is not None), default=None)

    def __iter__(self) -> Iterator[Entry]:
        """All waiting entries, flow by flow."""
        return (entry for flow in self._flows.values() for entry in flow if entry.waiting)

    def _skip_idle_rounds(self) -> None:
        """A whole round served nobody: give every flow at once the rounds that the nearest one still needs."""
        if not self._turn:
            return
        needed = min(
            -(-(self._flows[name][0].cost_tokens - self._deficit[name]) // self._quantum) for name in self._turn
        )
        for name in self._turn:
            self._deficit[name] += max(0, needed - 1) * self._quantum

    def _next_turn(self) -> None:
        self._turn.rotate(-1)
        self._fresh = True

    def _prune(self) -> None:
        """Drops entries that no longer wait from the fronts of the flows."""
        for name in tuple(self._turn):
            flow = self._flows[name]
            while flow and not flow[0].waiting:
                flow.popleft()
            if not flow:
                self._drop(name)

    def _drop(self, name: str) -> None:
        if self._turn and self._turn[0] == name:
            self._fresh = True
        self._turn.remove(name)
        del self._flows[name], self._deficit[name]


@dataclass(slots=True, eq=False)
class Lane:
    """The queue of one class for one model."""

    route: ClassRoute
    model: str
    queue: FairQueue = field(default_factory=FairQueue)
    returning: FairQueue = field(default_factory=FairQueue)
    """Requests of sessions that have their place."""
    pools: frozenset[str] = frozenset()
    """Names of the pools that the class may use."""
    barred: frozenset[str] = frozenset()
    """Pools whose room others wait for that go before this lane. Set while the lane is served."""
    waiting: int = 0
    spilling: bool = False

    @property
    def crowded(self) -> bool:
        """True while the request whose turn it is finds no room for its tokens."""
        head = self.queue.head()
        return head is not None and head.blocked is NoPlace.TIGHT

    def oldest_wait_seconds(self, now: float) -> float:
        """How long the entry that arrived first has waited; 0 if none waits."""
        return now - min((at for at in (self.queue.oldest(), self.returning.oldest()) if at is not None), default=now)

    def entries(self) -> Iterator[Entry]:
        """All that wait."""
        yield from self.returning
        yield from self.queue


@dataclass(slots=True)
class Depth:
    """What waits in a class's lanes together."""

    count: int = 0
    size_bytes: int = 0


Need = Callable[[Lane], float]
"""How far a lane's class is below its minimum share of its pools: > 0 = below, the larger the sooner."""


class OtherWorkers(Protocol):
    """What waits in the other workers of the pod."""

    def depth(self, class_name: str) -> Depth:
        """What waits there in a class."""

    def others_wait(self, lane: Lane) -> bool:
        """True if requests of the lane wait there: a new one does not pass them."""

    def tell(self, lane: Lane, depth: Depth, waiting: int) -> None:
        """Something joined or left the lane here."""

    def ring(self) -> None:
        """They look again for room, if something waits there."""

    def yields(self, lane: Lane, now: float) -> bool:
        """True while room should be left to an older request of the lane there."""

    def forget(self, lane: Lane, *, whole_class: bool) -> None:
        """Nothing waits in the lane here, or in any of its class, and no table asks for it."""


class Admission:
    """All lanes of this process. `others`: those of the pod's other workers, of which the bounds and turns are too."""

    def __init__(self, need: Need, others: OtherWorkers | None = None) -> None:
        self._need = need
        self._others = others
        self._known: dict[tuple[str, str], Lane] = {}
        self._lanes: dict[Lane, None] = {}
        """Those of `_known`, and forgotten ones that a request has come back to."""
        self._retired: dict[Lane, None] = {}
        """Those to be forgotten once nothing waits in them."""
        self._depth: dict[str, Depth] = {}
        self._by_deadline: list[tuple[float, int, Lane, Entry]] = []
        self._sequence = 0
        self._pumping = self._look_again = False
        self.waiting = 0

    def depth(self, class_name: str) -> Depth:
        """Requests and bytes that wait in a class."""
        return self._depth.get(class_name) or Depth()

    def lanes(self) -> tuple[Lane, ...]:
        """All lanes, for reports."""
        return tuple(self._lanes)

    def lane(self, route: ClassRoute, model: str) -> Lane:
        """The lane of a class and model; its rules follow the newest table."""
        key = (route.name, model)
        lane = self._known.get(key)
        if lane is None:
            lane = self._known[key] = Lane(route, model)
            self._lanes[lane] = None
        elif self._retired:
            self._retired.pop(lane, None)
        if lane.route is not route or not lane.pools:
            lane.route = route
            lane.pools = frozenset(target.pool for target in route.targets)
        return lane

    def submit(self, lane: Lane, entry: Entry) -> None:
        """Queues `entry` and pumps, so that it may be granted before this returns. Raises Refusal (queue_full)."""
        others = self._others
        contended = (self.waiting and self._contended(lane)) or (others is not None and others.others_wait(lane))
        if not contended and self._fits_now(lane, entry):
            return
        depth = self._depth.setdefault(lane.route.name, Depth())
        count, size_bytes = depth.count, depth.size_bytes
        if others is not None:
            there = others.depth(lane.route.name)
            count, size_bytes = count + there.count, size_bytes + there.size_bytes
        rule = lane.route.queue
        if count >= max(1, rule.max_depth) or (count > 0 and size_bytes + entry.size_bytes > rule.max_bytes):
            if self._fits_now(lane, entry):
                return
            entry.waiter = None
            raise Refusal(
                Reason.QUEUE_FULL,
                f"The queue of class {lane.route.name!r} is full ({count} requests wait): try again later.",
                retry_after_seconds=max(1.0, lane.oldest_wait_seconds(entry.arrived)),
            )
        if lane not in self._lanes:  # forgotten while the request was with an engine that failed
            self._lanes[lane] = self._retired[lane] = None
        (lane.returning if entry.returning else lane.queue).push(entry)
        lane.waiting += 1
        depth.count += 1
        depth.size_bytes += entry.size_bytes
        self.waiting += 1
        self._sequence += 1
        heappush(self._by_deadline, (entry.deadline, self._sequence, lane, entry))
        if others is not None:
            others.tell(lane, depth, self.waiting)
        self.pump(entry.arrived)

    def contended(self, lane: Lane) -> bool:
        """True if a new request of the lane may have to let others go first."""
        return self.waiting > 0 or (self._others is not None and self._others.others_wait(lane))

    def _contended(self, lane: Lane) -> bool:
        """True if others wait for a pool that the lane uses."""
        return any(other.waiting and not other.pools.isdisjoint(lane.pools) for other in self._lanes)

    def _fits_now(self, lane: Lane, entry: Entry) -> bool:
        """A queue of depth 0 still lets through what needs no wait."""
        waiter = entry.waiter
        if lane.waiting or waiter is None or waiter.place(lane) is not None:
            return False
        entry.waiter = None
        waiter.granted()
        return True

    def withdraw(self, lane: Lane, entry: Entry) -> None:
        """Takes out an entry whose client is gone; its place in the bounds is free at once."""
        if entry.waiting:
            entry.waiter = None
            self._leave(lane, entry)

    def pump(self, now: float, pool: str | None = None) -> None:
        """Places what can be placed: neediest class first, then priority, intent and age. A blocked lane keeps its turn:
        lanes behind it do not take the room that its head is waiting for, unless they use other pools.

        `pool`: the only one where something changed; None: look everywhere. Called from within, as by a request that ends
        when it is refused here, it looks again afterwards: a thousand refusals must not be a thousand calls deep.
        """
        if self._pumping:
            self._look_again = True
            return
        if not self.waiting:
            return
        self._pumping = True
        try:
            self._look_again = False
            self._pump(now, pool)
            while self._look_again and self.waiting:
                self._look_again = False
                self._pump(now, None)
        finally:
            self._pumping = False

    def _pump(self, now: float, pool: str | None) -> None:
        held: set[str] = set()
        lanes: list[Lane] = []
        for lane in self._lanes:
            if not lane.waiting:
                continue
            if pool is None or pool in lane.pools:
                lanes.append(lane)
            else:  # nothing changed for it: it waits for its pools as before
                held |= lane.pools
        while lanes:
            lane = min(lanes, key=lambda lane: self._order(lane, now)) if len(lanes) > 1 else lanes[0]
            if self._others is not None and self._others.yields(lane, now):
                held |= lane.pools
            lane.barred = lane.pools & held
            blocked = None if lane.barred == lane.pools or not lane.waiting else self._serve(lane)
            lane.barred = frozenset()
            if blocked is None:
                lanes.remove(lane)
            elif isinstance(blocked, Entry):
                lanes.remove(lane)
                if blocked.blocked in (NoPlace.DOWN, NoPlace.DRAINING):
                    self._refuse(lane, blocked, blocked.blocked)
                    lanes.append(lane)
                elif blocked.blocked in (NoPlace.FULL, NoPlace.TIGHT):
                    held |= lane.pools

    def _serve(self, lane: Lane) -> "Entry | Literal[True] | None":
        """Places one request of the lane (True), or returns the one that cannot be placed; None: nobody waits."""
        stuck: Entry | None = None
        for queue in (lane.returning, lane.queue):
            head = queue.head()
            if head is None:
                continue
            if self._try(lane, head):
                queue.pop()
                self._grant(lane, head)
                return True
            stuck = head
            if head.blocked not in (NoPlace.TIGHT, NoPlace.BUSY):
                return head
            for entry in queue.behind(LOOK_BEHIND):
                # Those that return wait for different homes, and one whose engine is busy for no room at all; of the others
                # none may keep the head waiting for long.
                bounded = queue is lane.queue and head.blocked is NoPlace.TIGHT
                if bounded and head.passed_tokens + entry.cost_tokens > head.cost_tokens:
                    continue
                if self._try(lane, entry):
                    head.passed_tokens += entry.cost_tokens
                    queue.charge(entry)
                    self._grant(lane, entry)
                    return True
        return stuck

    @staticmethod
    def _try(lane: Lane, entry: Entry) -> bool:
        waiter = entry.waiter
        blocked = None if waiter is None else waiter.place(lane)
        if blocked is not None:
            entry.blocked = blocked
        return blocked is None

    def _grant(self, lane: Lane, entry: Entry) -> None:
        waiter, entry.waiter = entry.waiter, None
        self._leave(lane, entry)
        if waiter is not None:
            waiter.granted()

    def sweep(self, now: float) -> None:
        """Refuses what has waited too long, updates the spill watermarks, pumps. Call it a few times a second."""
        while self._by_deadline and (self._by_deadline[0][0] <= now or not self._by_deadline[0][3].waiting):
            _, _, lane, entry = heappop(self._by_deadline)
            if entry.waiting:
                self._refuse(lane, entry, entry.blocked)
        if len(self._by_deadline) > 2 * self.waiting + SPARE_DEADLINES:
            self._by_deadline = [item for item in self._by_deadline if item[3].waiting]
            heapify(self._by_deadline)
            for lane in self._lanes:
                lane.queue.compact()
                lane.returning.compact()
        for lane in self._lanes:
            wait_ms = lane.oldest_wait_seconds(now) * 1000 if lane.waiting else 0.0
            rule = lane.route.spill
            if wait_ms >= rule.enter_queue_wait_milliseconds:
                lane.spilling = True
            elif wait_ms < rule.leave_queue_wait_milliseconds:
                lane.spilling = False
        if self._retired:
            self._forget()
        self.pump(now)

    def retire(self, served: Callable[[Lane], bool]) -> None:
        """A new table is in force: lanes that it does not serve are forgotten once nothing waits in them."""
        self._retired = {
            lane: None
            for lane in self._lanes
            if not served(lane) or self._known.get((lane.route.name, lane.model)) is not lane
        }
        self._forget()

    def _forget(self) -> None:
        for lane in [lane for lane in self._retired if not lane.waiting]:
            name = lane.route.name
            del self._retired[lane], self._lanes[lane]
            if self._known.get((name, lane.model)) is lane:
                del self._known[name, lane.model]
            last = all(other.route.name != name for other in self._lanes)
            if last:
                self._depth.pop(name, None)
            if self._others is not None:
                self._others.forget(lane, whole_class=last)

    def _order(self, lane: Lane, now: float) -> tuple[float, int, int, float]:
        head = lane.returning.head() or lane.queue.head()
        arrived = head.arrived if head is not None else now
        return (-max(0.0, self._need(lane)), -lane.route.priority, lane.route.intent.rank, arrived)

    def _leave(self, lane: Lane, entry: Entry) -> None:
        depth = self._depth[lane.route.name]
        depth.count -= 1
        depth.size_bytes -= entry.size_bytes
        lane.waiting -= 1
        self.waiting -= 1
        if self._others is not None:
            self._others.tell(lane, depth, self.waiting)
            self._others.ring()

    def _refuse(self, lane: Lane, entry: Entry, blocked: NoPlace) -> None:
        waiter, entry.waiter = entry.waiter, None
        self._leave(lane, entry)
        if waiter is not None:
            waiter.refused(no_place(lane.route.name, lane.model, blocked))


_NO_PLACE_REASONS: Final = {
    NoPlace.FULL: Reason.QUEUE_EXPIRED,
    NoPlace.TIGHT: Reason.QUEUE_EXPIRED,
    NoPlace.BUSY: Reason.ENGINE_BUSY,
    NoPlace.DOWN: Reason.NO_ENDPOINT,
    NoPlace.EMPTY: Reason.SCALING_FROM_ZERO,
    NoPlace.DRAINING: Reason.DRAINING,
}
_NO_PLACE_MESSAGES: Final = {
    NoPlace.FULL: "every engine stayed full for as long as the class may wait",
    NoPlace.TIGHT: "no engine had room for as many tokens for as long as the class may wait",
    NoPlace.BUSY: "every engine answered that it is busy until the waiting time ran out",
    NoPlace.DOWN: "no engine can be reached",
    NoPlace.EMPTY: "its pools have no engine yet",
    NoPlace.DRAINING: "every engine is draining",
}


def no_place(class_name: str, model: str, blocked: NoPlace) -> Refusal:
    """The 503 for a request that found no endpoint."""
    return Refusal(
        _NO_PLACE_REASONS[blocked],
        f"Model {model[:128]!r} in class {class_name!r}: {_NO_PLACE_MESSAGES[blocked]}. Try again later.",
    )
