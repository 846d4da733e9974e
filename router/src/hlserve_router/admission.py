"""Step 4: the class queues. Pure core: bounded in count, bytes and age; fair between clients by tokens.

Each class has one lane per model, so that a class whose pools serve several models is never blocked by one of them. A
lane shares its turns by deficit round robin on estimated tokens. `Admission.pump` offers the heads of all lanes to
`place`, neediest class first.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, Protocol

from hlserve_api.answers import Reason
from hlserve_api.routing import ClassRoute
from hlserve_router.errors import Refusal
from hlserve_router.state import NoPlace

QUANTUM_TOKENS: Final = 4096
"""Tokens a client may send per turn; smaller is fairer, larger costs fewer turns. Fairness is off by at most this plus one request."""


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
    blocked: NoPlace = NoPlace.FULL
    """Why it could not be placed when last tried."""

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
    waiting: int = 0
    spilling: bool = False

    def oldest_wait_seconds(self, now: float) -> float:
        """How long the entry that arrived first has waited; 0 if none waits."""
        return now - min((entry.arrived for entry in self.queue), default=now)


@dataclass(slots=True)
class Depth:
    """What waits in a class's lanes together."""

    count: int = 0
    size_bytes: int = 0


Need = Callable[[Lane], float]
"""How far a lane's class is below its minimum share of its pools: > 0 = below, the larger the sooner."""


class Admission:
    """All lanes of this process."""

    def __init__(self, need: Need, share: float = 1.0) -> None:
        self._need = need
        self._share = share
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._depth: dict[str, Depth] = {}
        self._by_deadline: list[tuple[float, int, Lane, Entry]] = []
        self._sequence = 0
        self.waiting = 0

    def depth(self, class_name: str) -> Depth:
        """Requests and bytes that wait in a class."""
        return self._depth.get(class_name) or Depth()

    def lanes(self) -> tuple[Lane, ...]:
        """All lanes, for reports."""
        return tuple(self._lanes.values())

    def lane(self, route: ClassRoute, model: str) -> Lane:
        """The lane of a class and model; its rules follow the newest table."""
        key = (route.name, model)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(route, model)
        lane.route = route
        return lane

    def submit(self, lane: Lane, entry: Entry) -> None:
        """Queues `entry` and pumps, so that it may be granted before this returns. Raises Refusal (queue_full)."""
        if not self.waiting and self._fits_now(lane, entry):
            return
        depth = self._depth.setdefault(lane.route.name, Depth())
        rule = lane.route.queue
        full = depth.count >= max(1, int(rule.max_depth * self._share))
        heavy = depth.count > 0 and depth.size_bytes + entry.size_bytes > rule.max_bytes * self._share
        if full or heavy:
            if self._fits_now(lane, entry):
                return
            entry.waiter = None
            raise Refusal(
                Reason.QUEUE_FULL,
                f"The queue of class {lane.route.name!r} is full ({depth.count} requests wait): try again later.",
                retry_after_seconds=max(1.0, lane.oldest_wait_seconds(entry.arrived)),
            )
        lane.queue.push(entry)
        lane.waiting += 1
        depth.count += 1
        depth.size_bytes += entry.size_bytes
        self.waiting += 1
        self._sequence += 1
        heappush(self._by_deadline, (entry.deadline, self._sequence, lane, entry))
        self.pump(entry.arrived)

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

    def pump(self, now: float) -> None:
        """Places what can be placed: neediest class first, then priority, intent and age. A blocked lane keeps its turn:
        lanes behind it do not take the room that its head is waiting for, unless they use other pools."""
        if not self.waiting:
            return
        held: set[str] = set()
        lanes = [lane for lane in self._lanes.values() if lane.waiting]
        while lanes:
            lane = min(lanes, key=lambda lane: self._order(lane, now)) if len(lanes) > 1 else lanes[0]
            targets = {target.pool for target in lane.route.targets}
            entry = None if targets <= held else lane.queue.head()
            if entry is None:
                lanes.remove(lane)
                continue
            waiter = entry.waiter
            blocked = None if waiter is None else waiter.place(lane)
            if blocked is not None:
                entry.blocked = blocked
                lanes.remove(lane)
                if blocked in (NoPlace.DOWN, NoPlace.DRAINING):
                    self._refuse(lane, entry, blocked)
                    lanes.append(lane)
                elif blocked is NoPlace.FULL:
                    held |= targets
                continue
            lane.queue.pop()
            entry.waiter = None
            self._leave(lane, entry)
            if waiter is not None:
                waiter.granted()
            if not lane.waiting:
                lanes.remove(lane)

    def sweep(self, now: float) -> None:
        """Refuses what has waited too long, updates the spill watermarks, pumps. Call it a few times a second."""
        while self._by_deadline and (self._by_deadline[0][0] <= now or not self._by_deadline[0][3].waiting):
            _, _, lane, entry = heappop(self._by_deadline)
            if entry.waiting:
                self._refuse(lane, entry, entry.blocked)
        for lane in self._lanes.values():
            wait_ms = lane.oldest_wait_seconds(now) * 1000 if lane.waiting else 0.0
            rule = lane.route.spill
            if wait_ms >= rule.enter_queue_wait_milliseconds:
                lane.spilling = True
            elif wait_ms < rule.leave_queue_wait_milliseconds:
                lane.spilling = False
        self.pump(now)

    def _order(self, lane: Lane, now: float) -> tuple[float, int, int, float]:
        head = lane.queue.head()
        arrived = head.arrived if head is not None else now
        return (-max(0.0, self._need(lane)), -lane.route.priority, lane.route.intent.rank, arrived)

    def _leave(self, lane: Lane, entry: Entry) -> None:
        depth = self._depth[lane.route.name]
        depth.count -= 1
        depth.size_bytes -= entry.size_bytes
        lane.waiting -= 1
        self.waiting -= 1

    def _refuse(self, lane: Lane, entry: Entry, blocked: NoPlace) -> None:
        waiter, entry.waiter = entry.waiter, None
        self._leave(lane, entry)
        if waiter is not None:
            waiter.refused(no_place(lane.route.name, lane.model, blocked))


_NO_PLACE_REASONS: Final = {
    NoPlace.FULL: Reason.QUEUE_EXPIRED,
    NoPlace.BUSY: Reason.ENGINE_BUSY,
    NoPlace.DOWN: Reason.NO_ENDPOINT,
    NoPlace.EMPTY: Reason.SCALING_FROM_ZERO,
    NoPlace.DRAINING: Reason.DRAINING,
}
_NO_PLACE_MESSAGES: Final = {
    NoPlace.FULL: "every engine stayed full for as long as the class may wait",
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
