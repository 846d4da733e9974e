"""What the workers of a pod hold together: loads of endpoints, shares of pools, and whose turn it is. Pure over `cells`.

Where a pool is looked at, what the other workers hold there is folded into the same fields that this worker counts in; so
the choice, the caps and the shares are those of the pod, and a process that is alone does none of this.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from hlserve_router.admission import Depth, Lane
from hlserve_router.cells import Column, Shared
from hlserve_router.endpoint import EndpointState
from hlserve_router.pools import Pool, Pools

YIELD_SECONDS: Final = 0.02
"""How long room is left to an older request in another worker, which is woken. Room that is there after that is taken."""


class PodLoads:
    """Endpoints and pools of this worker with what the others have there."""

    def __init__(self, shared: Shared, pools: Pools) -> None:
        self._shared = shared
        self._pools = pools
        self._endpoints: dict[EndpointState, Column] = {}
        self._classes: dict[tuple[str, str], Column] = {}

    def refresh(self, names: Iterable[str]) -> None:
        """Folds in what the others hold of these pools now."""
        for name in names:
            pool = self._pools.pools.get(name)
            if pool is None:
                continue
            for endpoint in pool.endpoints.values():
                _fold(endpoint, self._column(endpoint).others())
            for class_name in self._pools.classes:
                self._fold_class(pool, class_name)

    def publish(self, endpoint: EndpointState, class_name: str) -> None:
        """Tells what this worker holds of an endpoint, and the class of its pool."""
        self._put(endpoint)
        pool = self._pools.pools.get(endpoint.pool)
        if pool is not None and class_name in self._pools.classes:
            held = pool.in_flight_by_class.get(class_name, 0) - pool.elsewhere.get(class_name, 0)
            self._class_column(endpoint.pool, class_name).put(held)

    def freed(self) -> None:
        """There may be room: workers that have waiters look again."""
        self._shared.ring()

    def sweep(self) -> None:
        """Tells everything again and forgets what is gone. Call it a few times a second."""
        self.refresh(self._pools.pools)
        for endpoint in tuple(self._endpoints):
            self._put(endpoint)
            if endpoint.removed and endpoint.in_flight == endpoint.elsewhere[0]:
                del self._endpoints[endpoint]
                if all(_name(other) != _name(endpoint) for other in self._endpoints):  # it may have come back
                    self._shared.forget(*_name(endpoint))
        pools, classes = self._pools.pools, self._pools.classes
        for key in [key for key in self._classes if key[0] not in pools or key[1] not in classes]:
            del self._classes[key]
            self._shared.forget("share", *key)

    def _column(self, endpoint: EndpointState) -> Column:
        found = self._endpoints.get(endpoint)
        if found is None:
            found = self._endpoints[endpoint] = self._shared.column(*_name(endpoint))
        return found

    def _class_column(self, pool: str, class_name: str) -> Column:
        key = (pool, class_name)
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = self._shared.column("share", *key)
        return found

    def _put(self, endpoint: EndpointState) -> None:
        in_flight, tokens, work, held = endpoint.elsewhere
        self._column(endpoint).put(
            endpoint.in_flight - in_flight,
            endpoint.in_flight_tokens - tokens,
            endpoint.work_tokens - work,
            endpoint.held_tokens - held,
        )

    def _fold_class(self, pool: Pool, class_name: str) -> None:
        now = self._class_column(pool.route.name, class_name).others()[0]
        before = pool.elsewhere.get(class_name, 0)
        if now != before:
            pool.elsewhere[class_name] = now
            pool.in_flight_by_class[class_name] = pool.in_flight_by_class.get(class_name, 0) + now - before


def _name(endpoint: EndpointState) -> tuple[str, ...]:
    return ("endpoint", endpoint.pool, endpoint.id, endpoint.url)


def _fold(endpoint: EndpointState, now: tuple[int, int, int, int]) -> None:
    before = endpoint.elsewhere
    if now != before:
        endpoint.elsewhere = now
        endpoint.in_flight += now[0] - before[0]
        endpoint.in_flight_tokens += now[1] - before[1]
        endpoint.work_tokens += now[2] - before[2]
        endpoint.held_tokens += now[3] - before[3]


@dataclass(slots=True)
class _Turn:
    """A lane's view of the oldest request that waits for the same in another worker."""

    column: Column
    since: float = 0.0
    """When it began to leave room to that one; 0: it does not."""


class PodQueues:
    """The class queues of all workers as one: bounded together, and oldest first between the workers."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._turns: dict[tuple[str, str], _Turn] = {}
        self._classes: dict[str, Column] = {}
        self.later: Callable[[], None] = _nobody
        """Called when this worker should look for room again after `YIELD_SECONDS`."""

    def depth(self, class_name: str) -> Depth:
        """What waits in a class in the other workers."""
        count, size_bytes, _, _ = self._of_class(class_name).others()
        return Depth(count, size_bytes)

    def others_wait(self, lane: Lane) -> bool:
        """True if requests of the lane wait in another worker: a new one does not pass them."""
        return self._turn(lane).column.earliest() != 0

    def tell(self, lane: Lane, depth: Depth, waiting: int) -> None:
        """Something joined or left the lane: tells what waits in it, in its class, and in all."""
        firsts = [at for at in (lane.queue.oldest(), lane.returning.oldest()) if at is not None]
        self._turn(lane).column.put_moment(min(firsts, default=None))
        self._of_class(lane.route.name).put(depth.count, depth.size_bytes)
        self._shared.waiting(waiting)

    def ring(self) -> None:
        """The workers that have waiters look again."""
        self._shared.ring()

    def yields(self, lane: Lane, now: float) -> bool:
        """True while room should be left to an older request of the lane in another worker."""
        turn = self._turn(lane)
        elder = turn.column.earliest()
        if not elder or elder >= turn.column.moment():
            turn.since = 0.0
            return False
        if not turn.since:
            turn.since = now
            self._shared.ring()
            self.later()
            return True
        if now - turn.since < YIELD_SECONDS:
            return True
        turn.since = 0.0
        return False

    def forget(self, lane: Lane, *, whole_class: bool) -> None:
        """Nothing waits in the lane here, or in any of its class, and no table asks for it."""
        key = (lane.route.name, lane.model)
        if self._turns.pop(key, None) is not None:
            self._shared.forget("lane", *key)
        if whole_class and self._classes.pop(lane.route.name, None) is not None:
            self._shared.forget("class", lane.route.name)

    def _turn(self, lane: Lane) -> _Turn:
        key = (lane.route.name, lane.model)
        found = self._turns.get(key)
        if found is None:
            found = self._turns[key] = _Turn(self._shared.column("lane", *key))
        return found

    def _of_class(self, class_name: str) -> Column:
        found = self._classes.get(class_name)
        if found is None:
            found = self._classes[class_name] = self._shared.column("class", class_name)
        return found


def _nobody() -> None:
    """Nobody is to be told."""
