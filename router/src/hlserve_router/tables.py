"""Puts routing documents in force, wherever they come from. What cannot be used is a problem that is told; the last good one stays."""

import logging
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256

from pydantic import ValidationError

from hlserve_api.routing import (
    DocumentError,
    PoolRoute,
    RoutingTable,
    parse_engine_credentials,
    parse_keyring,
    parse_table,
)
from hlserve_router.admission import Lane
from hlserve_router.credentials import Credentials
from hlserve_router.errors import TableError
from hlserve_router.proxy import Proxy
from hlserve_router.replicas import Replica, as_endpoints

_log = logging.getLogger("hlserve_router.tables")


class Kind(StrEnum):
    """What a source gives; also the values of the metrics' labels."""

    TABLE = "table"
    KEYRING = "keyring"
    ENGINE_CREDENTIALS = "engine_credentials"
    ENDPOINTS = "endpoints"
    CERTIFICATE = "certificate"


@dataclass(slots=True, eq=False)
class Tables:
    """The documents and endpoints in force, and what is wrong with newer ones. A source is a file, an object or a Service, by name."""

    proxy: Proxy
    credentials: Credentials = field(default_factory=Credentials)
    shards_wait_seconds: float = 10.0
    """How long the first readiness waits for the very shards that the table names, once there are some of each."""
    applied_at: float = 0.0
    """Unix seconds of the last table put in force."""
    problems: dict[str, str] = field(default_factory=dict)
    """Source -> why its newest content is not in force, or why it cannot be read."""
    awaited: set[str] = field(default_factory=set)
    """Sources that the first readiness waits for."""
    _table: RoutingTable | None = None
    _replicas: dict[str, tuple[Replica, ...]] = field(default_factory=dict)
    _peopled: dict[str, "_Peopled"] = field(default_factory=dict)
    _digests: dict[str, str] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)
    _heard: dict[tuple[Kind, str], float] = field(default_factory=dict)
    _complete_at: float | None = None
    _was_ready: bool = False

    # what sources call ------------------------------------------------------------------------------------------------

    def await_source(self, kind: Kind, source: str) -> None:
        """A source that must have given something before the router is ready for the first time."""
        self.awaited.add(source)
        self._heard.setdefault((kind, source), self.proxy.now())

    def heard(self, kind: Kind, source: str) -> None:
        """The source was read or gave a sign of life, with or without news."""
        self._heard[kind, source] = self.proxy.now()

    def offer(self, kind: Kind, source: str, data: bytes) -> None:
        """A document's bytes. They come into force if they differ from the last ones and are valid."""
        self.heard(kind, source)
        digest = sha256(data).hexdigest()
        if digest == self._digests.get(source):
            self._settle(source)
            return
        self._digests[source] = digest
        self._refused.pop(source, None)
        try:
            self._apply(kind, source, data)
        except (ValidationError, DocumentError, TableError) as error:
            self._refused[source] = f"{source} is not in force: {_sentence(error)}"
            self.refuse(kind, source, self._refused[source])
            return
        self.awaited.discard(source)
        self._settle(source)
        _log.info("document applied", extra={"fields": {"document": kind.value, "source": source}})

    def _settle(self, source: str) -> None:
        """The source can be read: what is wrong with it now is at most what it says."""
        if source in self._refused:
            self.problems[source] = self._refused[source]
        else:
            self.problems.pop(source, None)

    def absent(self, kind: Kind, source: str) -> None:
        """The source says that there is no such thing, and that is as good."""
        self.heard(kind, source)
        self.problems.pop(source, None)
        self.awaited.discard(source)

    def knows(self, source: str) -> bool:
        """True if the source ever gave a document."""
        return source in self._digests

    def refuse(self, kind: Kind, source: str, sentence: str) -> None:
        """A document that is not used, or is not there. Counted and logged once."""
        if self.tell(source, sentence, "document refused"):
            self.proxy.metrics.count("hlserve_router_document_errors_total", (kind.value,))

    def tell(self, source: str, sentence: str, message: str = "source away") -> bool:
        """Notes what is wrong with a source; False if that is known."""
        if self.problems.get(source) == sentence:
            return False
        self.problems[source] = sentence
        _log.warning(message, extra={"fields": {"source": source, "why": sentence}})
        return True

    def offer_replicas(self, service: str, replicas: tuple[Replica, ...]) -> None:
        """The pods behind a Service, all of them."""
        source = service_source(service)
        self.heard(Kind.ENDPOINTS, source)
        self.problems.pop(source, None)
        former = self._replicas.get(service)
        if former == replicas:
            return
        self._replicas[service] = replicas
        try:
            if self._table is not None:
                self._put_in_force(self._table)
        except TableError as error:
            if former is not None:
                self._replicas[service] = former
            self.tell(source, f"{source} are not in force: {error}")

    def forget_service(self, service: str) -> None:
        """No pool has that Service any more."""
        self._heard.pop((Kind.ENDPOINTS, service_source(service)), None)
        self._replicas.pop(service, None)
        self.problems.pop(service_source(service), None)

    # what others ask --------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """True once a table and all that it needs have been in force; from then on only a lost table counts."""
        if self.proxy.pools.table is None:
            return False
        if not self._was_ready:
            self._was_ready = self._complete()
        return self._was_ready

    @property
    def services(self) -> frozenset[str]:
        """Services whose pods the table in force asks for."""
        pools = () if self._table is None else self._table.pools
        return frozenset(pool.service for pool in pools if pool.service)

    @property
    def shards(self) -> frozenset[str]:
        """Names of the keyring shards that the table in force names."""
        return frozenset(() if self._table is None else (shard.name for shard in self._table.keyring_shards))

    @property
    def waiting_for(self) -> list[str]:
        """Sources of which nothing has been in force yet."""
        missing = (service_source(service) for service in self.services if service not in self._replicas)
        return sorted({*self.awaited, *missing})

    @property
    def late_shards(self) -> list[str]:
        """Shards that the table names with a content that is not in force, as long as the first readiness waits for them."""
        if self._table is None or self._was_ready:
            return []
        held = set(self.proxy.keyrings.generations.values())
        return sorted(shard.name for shard in self._table.keyring_shards if shard.digest not in held)

    def ages(self) -> dict[Kind, float]:
        """Seconds since each kind of source was heard of; of several the oldest."""
        now = self.proxy.now()
        ages: dict[Kind, float] = {}
        for (kind, _), at in self._heard.items():
            ages[kind] = max(ages.get(kind, 0.0), now - at)
        return ages

    # ------------------------------------------------------------------------------------------------------------------

    def _complete(self) -> bool:
        if self._table is None or self.waiting_for:
            self._complete_at = None
            return False
        if not self.late_shards:
            return True
        # A writer that died between shards and table must not keep every router that starts from serving.
        if self._complete_at is None:
            self._complete_at = self.proxy.now()
        return self.proxy.now() - self._complete_at >= self.shards_wait_seconds

    def _apply(self, kind: Kind, source: str, data: bytes) -> None:
        if kind is Kind.TABLE:
            self._apply_table(data)
        elif kind is Kind.KEYRING:
            self._apply_keyring(source, data)
        else:
            self._apply_credentials(data)

    def _apply_table(self, data: bytes) -> None:
        table = parse_table(data)
        self._put_in_force(table)
        self._table = table
        self.applied_at = self.proxy.clocks.wall()

    def _apply_keyring(self, source: str, data: bytes) -> None:
        self.proxy.keyrings.apply(source, parse_keyring(data))
        self.proxy.limits.keep_only(self.proxy.keyrings.clients())

    def _apply_credentials(self, data: bytes) -> None:
        self.credentials.apply(parse_engine_credentials(data))
        if self._table is not None:
            self._put_in_force(self._table)

    def _put_in_force(self, table: RoutingTable) -> None:
        """The table with the pods of its Services. A request sees all of it or nothing of it. Raises TableError."""
        unready: set[str] = set()
        pools = tuple(self._with_pods(pool, unready) for pool in table.pools)
        now = self.proxy.now()
        self.proxy.pools.apply(table.model_copy(update={"pools": pools}), now, unready)
        self._peopled = {pool.name: self._peopled[pool.name] for pool in pools if pool.name in self._peopled}
        self.credentials.dress(self.proxy.pools.pools.values())
        self.proxy.admission.retire(self._serves)
        self.proxy.admission.pump(now)

    def _serves(self, lane: Lane) -> bool:
        pools = self.proxy.pools
        route = pools.classes.get(lane.route.name)
        return route is not None and bool(pools.serving(route, lane.model))

    def _with_pods(self, pool: PoolRoute, unready: set[str]) -> PoolRoute:
        if pool.service is None:
            return pool
        replicas = self._replicas.get(pool.service, ())
        basis = (pool, replicas, self.credentials.scheme(pool.name))
        former = self._peopled.get(pool.name)
        if former is None or former.basis != basis:
            former = self._peopled[pool.name] = self._people(basis)
        unready |= former.unready
        return former.route

    def _people(self, basis: tuple[PoolRoute, tuple[Replica, ...], str]) -> "_Peopled":
        pool, replicas, scheme = basis
        known = self.proxy.pools.pools.get(pool.name)
        urls = {} if known is None else {state.id: state.url for state in known.endpoints.values()}
        found = as_endpoints(replicas, scheme, urls)
        draining = tuple({*pool.draining, *found.terminating})
        route = pool.model_copy(update={"endpoints": found.endpoints, "draining": draining})
        return _Peopled(basis, route, found.unready)


@dataclass(frozen=True, slots=True)
class _Peopled:
    """A pool's route with its pods, and what it was made from: of many pools, only one changes at a time."""

    basis: tuple[PoolRoute, tuple[Replica, ...], str]
    route: PoolRoute
    unready: frozenset[str]


def service_source(service: str) -> str:
    """The name under which the problems of a Service's pods are told."""
    return f"EndpointSlices of Service {service}"


def _sentence(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        return f"{where}: {first['msg']}{more}."
    return str(error)
