"""The routing table and keyrings of a plan, as files. The same documents that the operator writes on a cluster."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hlserve_api.compile import PoolRuntime, compile_keyrings, compile_table, document_json
from hlserve_api.routing import Endpoint, Keyring, RoutingTable
from hlserve_local.engines import Engine, EngineState
from hlserve_local.planning import Plan, PoolPlan
from hlserve_local.runtime_dir import write_private

ROUTABLE_STATES = (EngineState.READY, EngineState.DRAINING)


@dataclass(frozen=True, slots=True)
class Documents:
    """What the router reads."""

    table: RoutingTable
    keyrings: tuple[Keyring, ...]

    def write(self, directory: Path) -> tuple[Path, tuple[Path, ...]]:
        """Write table and keyring shards; returns their paths. Keyrings first: the table names their digests."""
        shards = tuple(directory / f"keyring-{number}.json" for number in range(len(self.keyrings)))
        for path, keyring in zip(shards, self.keyrings, strict=True):
            write_private(path, document_json(keyring))
        table = directory / "table.json"
        write_private(table, document_json(self.table))
        return table, shards


def make_documents(plan: Plan, engines: Iterable[Engine]) -> Documents:
    """Compile a plan and the engines that run now. Pure but for the time that expired keys are compared with."""
    keys = compile_keyrings([placed.value for placed in plan.objects.keys], plan.secret_values, now=datetime.now(UTC))
    running = tuple(engines)
    table = compile_table(
        [(pool.pool, _runtime(pool, running)) for pool in plan.pools],
        [placed.value for placed in plan.objects.classes],
        shards=keys.shards,
    )
    return Documents(table, keys.keyrings)


def _runtime(plan: PoolPlan, engines: Iterable[Engine]) -> PoolRuntime:
    derived = plan.derived
    mine = [engine for engine in engines if engine.spec.pool == plan.name and engine.state in ROUTABLE_STATES]
    endpoints = tuple(Endpoint(url=engine.url, id=engine.id) for engine in mine)
    return PoolRuntime(
        max_in_flight=derived.max_in_flight,
        in_flight_tokens=derived.in_flight_tokens,
        kv_tokens=None if plan.foreign else derived.kv_tokens,
        queue_ttl_milliseconds=derived.queue_ttl_milliseconds,
        context_length=derived.context_length,
        priority_order=derived.priority_order,
        endpoints=tuple(Endpoint(url=url) for url in plan.foreign) or endpoints,
        draining=tuple(engine.id for engine in mine if engine.state is EngineState.DRAINING),
        foreign=bool(plan.foreign),
    )
