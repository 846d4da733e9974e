"""Step 5: the pools and endpoints of the routing table in force, with what is known of each endpoint."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from hlserve_api.routing import ClassRoute, KeyEntry, Keyring, PoolRoute, RoutingTable, TargetRole
from hlserve_router.endpoint import EndpointState
from hlserve_router.errors import TableError
from hlserve_router.sessions import Sessions
from hlserve_router.state import EndpointView, NoPlace
from hlserve_router.upstream import link_to

BYTES_PER_TOKEN: Final = 4.0
"""Start value of a pool's estimate; it follows what its engines report."""


@dataclass(slots=True, eq=False)
class Pool:
    """One pool: its route of the newest table, its endpoints, what its classes hold of it."""

    route: PoolRoute
    endpoints: dict[str, EndpointState] = field(default_factory=dict)
    in_flight_by_class: dict[str, int] = field(default_factory=dict)
    tokens_by_class: dict[str, int] = field(default_factory=dict)
    bytes_per_token: float = BYTES_PER_TOKEN
    last_used: float | None = None

    def learn_token_size(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """Moves the estimate a little towards what one request had."""
        if prompt_bytes >= 256 and prompt_tokens > 0:
            seen = min(16.0, max(1.0, prompt_bytes / prompt_tokens))
            self.bytes_per_token += 0.1 * (seen - self.bytes_per_token)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The endpoints that one request may go to, at one moment; `states` are the same ones, in the same order."""

    views: tuple[EndpointView, ...]
    states: tuple[EndpointState, ...]
    verdict: NoPlace | None
    """Why there is no usable endpoint among them, or None if there is one."""


class Pools:
    """The table in force. Applied whole: a request sees one table or the next, never a mixture."""

    def __init__(self, share: float = 1.0) -> None:
        self.table: RoutingTable | None = None
        self.classes: dict[str, ClassRoute] = {}
        self.pools: dict[str, Pool] = {}
        self.sessions = Sessions()
        self._share = share
        self._turn = 0

    def next_turn(self) -> int:
        """Breaks ties between endpoints in rotation."""
        self._turn += 1
        return self._turn

    def apply(self, table: RoutingTable, now: float) -> None:
        """Puts `table` in force. Raises TableError, and changes nothing, if it names what it does not have."""
        known = {pool.name for pool in table.pools}
        for route in table.classes:
            for target in route.targets:
                if target.pool not in known:
                    raise TableError(
                        f"Class {route.name!r} targets pool {target.pool!r}, which the table does not have."
                    )
        for pool_route in table.pools:
            for endpoint in pool_route.endpoints:
                try:
                    link_to(endpoint.url)
                except ValueError as error:
                    raise TableError(f"Pool {pool_route.name!r}: {error}.") from error
        for name in [name for name in self.pools if name not in known]:
            self._retire(self.pools.pop(name).endpoints.values())
        for pool_route in table.pools:
            self._apply_pool(pool_route, now)
        self.classes = {route.name: route for route in table.classes}
        self.table = table

    def _apply_pool(self, route: PoolRoute, now: float) -> None:
        pool = self.pools.get(route.name)
        first = pool is None or not pool.endpoints
        if pool is None:
            pool = self.pools[route.name] = Pool(route)
        pool.route = route
        wanted = {endpoint.id or endpoint.url: endpoint for endpoint in route.endpoints}
        gone = [id_ for id_, state in pool.endpoints.items() if id_ not in wanted or wanted[id_].url != state.url]
        self._retire(pool.endpoints.pop(id_) for id_ in gone)
        for id_, endpoint in wanted.items():
            if id_ not in pool.endpoints:
                pool.endpoints[id_] = EndpointState(
                    id_, endpoint.url, route.name, link_to(endpoint.url), added_at=now, seasoned=first
                )
            pool.endpoints[id_].draining = id_ in route.draining

    @staticmethod
    def _retire(endpoints: Iterable[EndpointState]) -> None:
        for endpoint in endpoints:
            endpoint.removed = True
            endpoint.link.drop_idle(float("inf"))

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

    def models(self, route: ClassRoute) -> dict[str, str]:
        """Every name that a class's pools answer to, with the model it stands for."""
        names: dict[str, str] = {}
        for target in route.targets:
            pool = self.pools.get(target.pool)
            if pool is not None:
                for name in (pool.route.model, *pool.route.aliases):
                    names.setdefault(name, pool.route.model)
        return names

    def snapshot(
        self, route: ClassRoute, model: str, role: TargetRole, now: float, avoid: frozenset[str] = frozenset()
    ) -> Snapshot:
        """The endpoints of a class's targets of one role that serve `model`, without those in `avoid`.

        A pool where the class already holds its `share.maxPercent` takes no more of it. If every breaker of a pool is
        open, its endpoints stay eligible: a breaker never takes out the last one.
        """
        views: list[EndpointView] = []
        states: list[EndpointState] = []
        for target in route.targets:
            pool = self.pools.get(target.pool)
            if pool is None or target.role is not role or not _serves(pool.route, model):
                continue
            max_in_flight, max_tokens = self._caps(pool.route)
            full = self._at_max_share(pool, route)
            panic = not any(state.usable(now) for state in pool.endpoints.values())
            for state in pool.endpoints.values():
                if state.id in avoid:
                    continue
                states.append(state)
                views.append(
                    state.view(
                        now, weight=target.weight, max_in_flight=0 if full else max_in_flight, max_tokens=max_tokens,
                        panic=panic,
                    )
                )  # fmt: skip
        return Snapshot(tuple(views), tuple(states), _verdict(views, states, now))

    def _caps(self, route: PoolRoute) -> tuple[int | None, int | None]:
        in_flight = None if route.max_in_flight is None else max(1, round(route.max_in_flight * self._share))
        tokens = None if route.in_flight_tokens is None else max(1, round(route.in_flight_tokens * self._share))
        return in_flight, tokens

    def capacity(self, pool: Pool) -> int | None:
        """Requests that the pool's endpoints may have in flight together from this process; None: not bounded."""
        cap, _ = self._caps(pool.route)
        return None if cap is None else cap * len(pool.endpoints)

    def _at_max_share(self, pool: Pool, route: ClassRoute) -> bool:
        cap = self.capacity(pool)
        if cap is None or route.share.max_percent >= 100:
            return False
        held = pool.in_flight_by_class.get(route.name, 0)
        return held >= max(1, cap * route.share.max_percent // 100)

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

    def take(self, endpoint: EndpointState, class_name: str, tokens: int, now: float) -> Pool:
        """A request of `class_name` goes to `endpoint`. Returns the pool, to be given back to."""
        endpoint.begin(tokens, now)
        pool = self.pools[endpoint.pool]
        pool.in_flight_by_class[class_name] = pool.in_flight_by_class.get(class_name, 0) + 1
        pool.tokens_by_class[class_name] = pool.tokens_by_class.get(class_name, 0) + tokens
        pool.last_used = now
        return pool

    @staticmethod
    def give_back(pool: Pool, endpoint: EndpointState, class_name: str, tokens: int) -> None:
        """That request has left `endpoint`."""
        endpoint.end(tokens)
        pool.in_flight_by_class[class_name] -= 1
        pool.tokens_by_class[class_name] -= tokens


def _serves(route: PoolRoute, model: str) -> bool:
    return route.model == model or model in route.aliases


def _verdict(views: list[EndpointView], states: list[EndpointState], now: float) -> NoPlace | None:
    if any(view.usable for view in views):
        return None
    if not states:
        return NoPlace.EMPTY
    if any(state.busy(now) for state in states if state.reachable and not state.draining):
        return NoPlace.BUSY
    if any(state.draining and state.reachable for state in states):
        return NoPlace.DRAINING
    return NoPlace.DOWN


class Keyrings:
    """The credentials in force, by digest. Each shard replaces its former self at once; revocation never waits."""

    def __init__(self) -> None:
        self._shards: dict[str, Keyring] = {}
        self._by_digest: dict[str, KeyEntry] = {}

    def apply(self, name: str, keyring: Keyring) -> None:
        """Puts one shard in force."""
        self._shards[name] = keyring
        entries: dict[str, KeyEntry] = {}
        doubled: set[str] = set()
        for shard in self._shards.values():
            for entry in shard.keys:
                if entry.digest in entries and entries[entry.digest].client != entry.client:
                    doubled.add(entry.digest)
                entries[entry.digest] = entry
        for digest in doubled:  # whose key it is cannot be known: both are refused
            del entries[digest]
        self._by_digest = entries

    def find(self, digest: str) -> KeyEntry | None:
        """The credential with this digest."""
        return self._by_digest.get(digest)

    @property
    def loaded(self) -> bool:
        """True once a shard is in force."""
        return bool(self._shards)

    @property
    def generations(self) -> dict[str, str]:
        """Generation of each shard."""
        return {name: shard.generation for name, shard in self._shards.items()}

    def clients(self) -> frozenset[str]:
        """Names of all clients."""
        return frozenset(entry.client for entry in self._by_digest.values())

    def __len__(self) -> int:
        return len(self._by_digest)
