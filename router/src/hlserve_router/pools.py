"""Step 5: the pools and endpoints of the routing table in force, with what is known of each endpoint."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from hlserve_api.routing import ClassRoute, Intent, Mode, PoolRoute, RoutingTable, TargetRole
from hlserve_router.endpoint import EndpointState, EngineGauges
from hlserve_router.errors import TableError
from hlserve_router.sessions import Sessions
from hlserve_router.state import Pace
from hlserve_router.upstream import link_to

BYTES_PER_TOKEN: Final = 4.0
REPLY_TOKENS: Final = 512.0
"""Start values of a pool's estimates; they follow what its engines report."""
KV_SHARE: Final = 0.9
"""Share of an endpoint's KV that active sessions may count for: the rest is for the growth of their replies."""
LEND_BELOW: Final = 0.25
RECALL_ABOVE: Final = 0.5
"""Watermarks on an Interactive pool's use, in requests over its capacity, for Batch work that spills into it."""


@dataclass(slots=True, eq=False)
class Pool:
    """One pool: its route of the newest table, its endpoints, what its classes hold of it."""

    route: PoolRoute
    endpoints: dict[str, EndpointState] = field(default_factory=dict)
    in_flight_by_class: dict[str, int] = field(default_factory=dict)
    tokens_by_class: dict[str, int] = field(default_factory=dict)
    max_in_flight: int | None = None
    max_tokens: int | None = None
    """Requests, and tokens, that each endpoint may have in flight; None: not bounded."""
    lending: bool = False
    """True while an Interactive pool is so little used that Batch work may spill into it."""
    bytes_per_token: float = BYTES_PER_TOKEN
    reply_tokens: float = REPLY_TOKENS
    """Mean length of its replies, recent ones counting most."""
    last_used: float | None = None
    elsewhere: dict[str, int] = field(default_factory=dict)
    """Of `in_flight_by_class`: what the pod's other workers hold, as last read."""

    @property
    def in_flight(self) -> int:
        """Requests at its endpoints now."""
        return sum(self.in_flight_by_class.values())

    def own_by_class(self) -> dict[str, int]:
        """Requests at its endpoints now of this worker alone, by class."""
        return {name: count - self.elsewhere.get(name, 0) for name, count in self.in_flight_by_class.items()}

    def learn_reply(self, tokens: int) -> None:
        """Moves the mean reply a little towards one."""
        self.reply_tokens += 0.05 * (tokens - self.reply_tokens)

    def kv_need(self, prompt_tokens: int, output_tokens: int) -> int:
        """KV that a request will come to need. A limit on the reply is no forecast of it: twice the mean bounds it."""
        return prompt_tokens + min(output_tokens, int(2 * self.reply_tokens) + 1)

    def learn_token_size(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """Moves the estimate a little towards what one request had."""
        if prompt_bytes >= 256 and prompt_tokens > 0:
            seen = min(16.0, max(1.0, prompt_bytes / prompt_tokens))
            self.bytes_per_token += 0.1 * (seen - self.bytes_per_token)


@dataclass(slots=True, eq=False)
class Offer:
    """A pool as one class may use it."""

    pool: Pool
    weight: int
    max_percent: int = 100
    """Share of the pool that the class may hold."""


class Pools:
    """The table in force. Applied whole: a request sees one table or the next, never a mixture."""

    def __init__(self, pace: Pace | None = None) -> None:
        self.pace = pace or Pace()
        self.table: RoutingTable | None = None
        self.classes: dict[str, ClassRoute] = {}
        self.pools: dict[str, Pool] = {}
        self.sessions = Sessions(pace=self.pace)
        self._offers: dict[tuple[str, str, TargetRole], tuple[Offer, ...]] = {}
        self._turn = 0

    def apply(self, table: RoutingTable, now: float, unready: Collection[str] = ()) -> None:
        """Puts `table` in force. `unready`: ids of endpoints whose pod is not ready: nothing new goes there.

        Raises TableError, and changes nothing, if the table names what it does not have.
        """
        known = {pool.name for pool in table.pools}
        for route in table.classes:
            for target in route.targets:
                if target.pool not in known:
                    raise TableError(
                        f"Class {route.name!r} targets pool {target.pool!r}, which the table does not have."
                    )
        proven = {state.url for state in self.endpoints()}
        for pool_route in table.pools:
            for endpoint in pool_route.endpoints:
                if endpoint.url in proven:
                    continue
                try:
                    link_to(endpoint.url)
                except ValueError as error:
                    raise TableError(f"Pool {pool_route.name!r}: {error}.") from error
        for name in [name for name in self.pools if name not in known]:
            self._retire(self.pools.pop(name).endpoints.values())
        for pool_route in table.pools:
            self._apply_pool(pool_route, now, unready)
        self.classes = {route.name: route for route in table.classes}
        self._offers.clear()
        self.table = table

    def _apply_pool(self, route: PoolRoute, now: float, unready: Collection[str]) -> None:
        pool = self.pools.get(route.name)
        first = pool is None or not pool.endpoints
        if pool is None:
            pool = self.pools[route.name] = Pool(route)
        pool.route = route
        pool.max_in_flight, pool.max_tokens = route.max_in_flight, route.in_flight_tokens
        wanted = {endpoint.id or endpoint.url: endpoint for endpoint in route.endpoints}
        own_caps = {id_: caps for caps in route.replica_caps for id_ in caps.endpoints}
        gone = [id_ for id_, state in pool.endpoints.items() if id_ not in wanted or wanted[id_].url != state.url]
        self._retire(pool.endpoints.pop(id_) for id_ in gone)
        for id_, endpoint in wanted.items():
            if id_ not in pool.endpoints:
                pool.endpoints[id_] = EndpointState(
                    id_,
                    endpoint.url,
                    route.name,
                    link_to(endpoint.url),
                    added_at=now,
                    label=endpoint.name or id_,
                    seasoned=first,
                    pace=self.pace,
                )
            pool.endpoints[id_].draining = id_ in route.draining
            pool.endpoints[id_].ready = id_ not in unready
            pool.endpoints[id_].caps = own_caps.get(id_)
            self._bound_kv(pool, pool.endpoints[id_])

    def heard(self, endpoint: EndpointState, gauges: EngineGauges | None) -> None:
        """News of an engine; None: its metrics page says nothing."""
        endpoint.gauges = gauges
        pool = self.pools.get(endpoint.pool)
        if pool is not None and not endpoint.removed:
            self._bound_kv(pool, endpoint)

    def _bound_kv(self, pool: Pool, endpoint: EndpointState) -> None:
        """The bound on active sessions' contexts: the table's KV size, else the engine's own. HumanLess pools only."""
        tokens = pool.route.kv_tokens if endpoint.caps is None else endpoint.caps.kv_tokens
        if tokens is None and endpoint.gauges is not None and not pool.route.foreign:
            tokens = endpoint.gauges.kv_tokens
        admits = pool.route.mode is Mode.HUMAN_LESS and self.pace.session_idle_seconds > 0
        endpoint.kv_budget = int(KV_SHARE * tokens) if tokens and admits else None

    def _retire(self, endpoints: Iterable[EndpointState]) -> None:
        gone = tuple(endpoints)
        for endpoint in gone:
            endpoint.removed = True
            endpoint.link.drop_idle(float("inf"))
        if gone:  # all at once: there may be a hundred thousand sessions
            self.sessions.forget_homes(gone)

    def endpoints(self) -> Iterator[EndpointState]:
        """Every endpoint of every pool."""
        return (endpoint for pool in self.pools.values() for endpoint in pool.endpoints.values())

    def serving(self, route: ClassRoute, model: str) -> tuple[PoolRoute, ...]:
        """The pools of a class that serve a model, by its name or an alias, in target order."""
        found = []
        for target in route.targets:
            pool = self.pools.get(target.pool)
            if pool is not None and (pool.route.model == model or model in pool.route.aliases):
                found.append(pool.route)
        return tuple(found)

    def rest_seconds(self, route: ClassRoute, model: str, now: float) -> float | None:
        """Until the first of the engines that asked to be left alone may be asked again; None if none did."""
        states = (state for pool in self.serving(route, model) for state in self.pools[pool.name].endpoints.values())
        return min((state.busy_until - now for state in states if state.busy_until > now), default=None)

    def models(self, route: ClassRoute) -> dict[str, str]:
        """Every name that a class's pools answer to, with the model it stands for."""
        names: dict[str, str] = {}
        for target in route.targets:
            pool = self.pools.get(target.pool)
            if pool is not None:
                for name in (pool.route.model, *pool.route.aliases):
                    names.setdefault(name, pool.route.model)
        return names

    def offers(self, route: ClassRoute, model: str, role: TargetRole) -> tuple[Offer, ...]:
        """The pools of a class's targets of one role that serve `model`. Made once for each table."""
        key = (route.name, model, role)
        found = self._offers.get(key)
        if found is None:
            found = self._offers[key] = tuple(
                Offer(self.pools[target.pool], target.weight, route.share.max_percent)
                for target in route.targets
                if target.role is role and target.pool in self.pools and _serves(self.pools[target.pool].route, model)
            )
        return found

    def spill_offers(self, route: ClassRoute, model: str, now: float) -> tuple[Offer, ...]:
        """The Spill targets that a class may use now.

        Batch work enters an Interactive pool only while that is lending; chat enters a HumanLess pool only where nothing
        waits: it would stand in the queue of agents.
        """
        found = self.offers(route, model, TargetRole.SPILL)
        if route.intent is Intent.BATCH:
            return tuple(o for o in found if o.pool.route.mode is Mode.HUMAN_LESS or o.pool.lending)
        if route.intent is Intent.INTERACTIVE:
            return tuple(o for o in found if o.pool.route.mode is Mode.INTERACTIVE or not _queues(o.pool, now))
        return found

    def sweep(self, now: float) -> None:
        """Forgets idle sessions and sets which pools lend. Call it a few times a second."""
        self.sessions.sweep(now)
        for pool in self.pools.values():
            capacity = self.capacity(pool)
            if pool.route.mode is Mode.INTERACTIVE and capacity:
                use = pool.in_flight / capacity
                pool.lending = use < (RECALL_ABOVE if pool.lending else LEND_BELOW)
            else:
                pool.lending = False

    @staticmethod
    def capacity(pool: Pool) -> int | None:
        """Requests that the pool's endpoints may have in flight together from this process; None: not bounded."""
        total = 0
        for endpoint in pool.endpoints.values():
            cap = pool.max_in_flight if endpoint.caps is None else endpoint.caps.max_in_flight
            if cap is None:
                return None
            total += cap
        return total if pool.endpoints or pool.max_in_flight is not None else None

    def below_share(self, route: ClassRoute) -> float:
        """How much of its minimum share a class lacks, 0 to 1 of a pool; 0 if it has all of it."""
        lack = 0.0
        if route.share.min_percent <= 0:
            return lack
        for target in route.targets:
            pool = self.pools.get(target.pool)
            cap = None if pool is None else self.capacity(pool)
            if pool is not None and cap:
                held = pool.in_flight_by_class.get(route.name, 0)
                lack = max(lack, route.share.min_percent / 100 - held / cap)
        return lack

    def take(self, endpoint: EndpointState, class_name: str, tokens: int, work_tokens: int, now: float) -> Pool:
        """A request of `class_name` goes to `endpoint`. Returns the pool, to be given back to."""
        endpoint.begin(tokens, work_tokens, now)
        self._turn += 1
        endpoint.turn = self._turn
        pool = self.pools[endpoint.pool]
        held = pool.in_flight_by_class
        held[class_name] = held.get(class_name, 0) + 1
        held = pool.tokens_by_class
        held[class_name] = held.get(class_name, 0) + tokens
        pool.last_used = now
        return pool

    @staticmethod
    def give_back(pool: Pool, endpoint: EndpointState, class_name: str, tokens: int, work_tokens: int) -> None:
        """That request has left `endpoint`."""
        endpoint.end(tokens, work_tokens)
        pool.in_flight_by_class[class_name] -= 1
        pool.tokens_by_class[class_name] -= tokens


def at_max_share(offer: Offer, class_name: str) -> bool:
    """True if the class holds all of the pool that it may."""
    cap = Pools.capacity(offer.pool)
    if cap is None:
        return False
    return offer.pool.in_flight_by_class.get(class_name, 0) >= max(1, cap * offer.max_percent // 100)


def _queues(pool: Pool, now: float) -> bool:
    """True if some of its engines say that requests wait there."""
    oldest = now - (next(iter(pool.endpoints.values())).pace.gauge_max_age_seconds if pool.endpoints else 0.0)
    return any(
        state.gauges is not None and state.gauges.at >= oldest and state.gauges.queued > 0
        for state in pool.endpoints.values()
    )


def _serves(route: PoolRoute, model: str) -> bool:
    return route.model == model or model in route.aliases
