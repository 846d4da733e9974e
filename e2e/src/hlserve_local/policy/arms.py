"""The arms of the policy benchmark: what is compared, each from the quickstart's manifests with one thing changed."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

from hlserve_api.routing import (
    ClassRoute,
    FairnessBy,
    Intent,
    KeyEntry,
    PoolRoute,
    RoutingTable,
    ShareRule,
    SpillRule,
    Target,
    TargetRole,
)
from hlserve_capacity.engine.types import EngineConfig, SchedulePolicy
from hlserve_capacity.virtual.arms import PoolConfig
from hlserve_local.demo_arms import demo_arm, plan_of
from hlserve_local.demo_cell import CLASS_BLIND, QUICKSTART, find_examples
from hlserve_local.documents import make_documents
from hlserve_local.policy.load import BATCH, CHAT, keys_for
from hlserve_router.state import Pace

CODERS = ("coder-a", "coder-b", "coder-c", "coder-d")
SHARED_WAITING = 0
"""Requests that may wait in each engine of the shared pool, where the comparison is about the router's queue."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve the load."""

    name: str
    table: RoutingTable
    engines: tuple[PoolConfig, ...]
    keys: tuple[KeyEntry, ...]
    pace: Pace = field(default_factory=Pace)
    cache_aware: bool = False
    """sglang-router's policy chooses the agents' engines, not our router."""


def quickstart() -> Arm:
    """One Interactive engine and three HumanLess ones, as `hlserve up` would run them."""
    return Arm("quickstart", _table(QUICKSTART), _engines(QUICKSTART), _keys())


def stock(engine: EngineConfig, policy: SchedulePolicy) -> EngineConfig:
    """The same flags on an engine that knows nothing of sessions: SGLang orders up to 128 waiting requests by prefix."""
    return replace(engine, kv_aware_admission=False, throughput_mode=False, schedule_policy=policy, lpm_max_waiting=128)


def with_agents_engine(arm: Arm, change: Callable[[EngineConfig], EngineConfig], name: str) -> Arm:
    """Other engines in the agents' pool."""
    engines = tuple(
        replace(pool, engine=change(pool.engine)) if pool.name == "agents" else pool for pool in arm.engines
    )
    return replace(arm, engines=engines, name=name)


def with_pool(arm: Arm, pool: str, **changes: object) -> Arm:
    """A pool's route changed."""
    pools = tuple(route.model_copy(update=changes) if route.name == pool else route for route in arm.table.pools)
    return replace(arm, table=arm.table.model_copy(update={"pools": pools}))


def with_class(arm: Arm, class_name: str, **changes: object) -> Arm:
    """A class's route changed."""
    classes = tuple(
        route.model_copy(update=changes) if route.name == class_name else route for route in arm.table.classes
    )
    return replace(arm, table=arm.table.model_copy(update={"classes": classes}))


def without_session_admission(arm: Arm) -> Arm:
    """The router does not hold sessions to the KV size."""
    return with_pool(arm, "agents", kv_tokens=None)


def with_session_idle(arm: Arm, seconds: float) -> Arm:
    """A session keeps its place in the KV for so long after a reply."""
    return replace(arm, pace=replace(arm.pace, session_idle_seconds=seconds))


def least_loaded(arm: Arm) -> Arm:
    """Agents go to the endpoint with the fewest tokens in flight, wherever their prefix is."""
    return with_class(without_session_admission(arm), "agent", intent=Intent.INTERACTIVE)


def one_flow(arm: Arm) -> Arm:
    """All agent clients share one place in the queue: first come, first served."""
    shared = keys_for([(client, "agent") for client in CODERS], tenant="all")
    others = tuple(key for key in arm.keys if key.class_name != "agent")
    return replace(with_class(arm, "agent", fairness=FairnessBy.TENANT), keys=(*others, *shared))


def batch_spills(arm: Arm, **spill: int) -> Arm:
    """Batch work may use the Interactive pool's idle KV."""
    targets = (Target(pool="agents"), Target(pool="chat", role=TargetRole.SPILL))
    return with_class(
        arm,
        "batch",
        targets=targets,
        spill=SpillRule(enter_queue_wait_milliseconds=1000, leave_queue_wait_milliseconds=500),
        share=ShareRule(max_percent=spill.get("max_percent", 50)),
    )


def shared_pool(*, one_queue: bool, agents_percent: int = 100) -> Arm:
    """Four class-blind engines. `one_queue`: chat and agents are one class; else chat goes first, from its own queue."""
    arm = Arm("shared", _table(CLASS_BLIND), _engines(CLASS_BLIND), _keys())
    pool = arm.engines[0]
    route = arm.table.pools[0].model_copy(
        update={"max_in_flight": pool.engine.max_running_requests + SHARED_WAITING, "kv_tokens": None}
    )
    source = _table(QUICKSTART).classes
    targets = (Target(pool=route.name),)
    classes = tuple(
        each.model_copy(
            update={
                "targets": targets,
                "share": ShareRule(max_percent=agents_percent if each.name == "agent" else 100),
            }
        )
        for each in source
    )
    if one_queue:
        names = [(CHAT, "agent"), (BATCH, "agent"), *((client, "agent") for client in CODERS)]
        flat = next(each for each in classes if each.name == "agent")
        return replace(
            arm,
            table=arm.table.model_copy(update={"pools": (route,), "classes": (_one_fifo(flat),)}),
            keys=keys_for(names, tenant="all"),
        )
    return replace(arm, table=arm.table.model_copy(update={"pools": (route,), "classes": classes}))


def _one_fifo(route: ClassRoute) -> ClassRoute:
    return route.model_copy(update={"fairness": FairnessBy.TENANT})


def _keys() -> tuple[KeyEntry, ...]:
    return keys_for([(CHAT, "interactive"), (BATCH, "batch"), *((client, "agent") for client in CODERS)])


@cache
def _table(folder: str) -> RoutingTable:
    table = make_documents(plan_of(find_examples() / folder), ()).table
    pools: tuple[PoolRoute, ...] = tuple(
        route.model_copy(update={"model": "m1", "aliases": ()}) for route in table.pools
    )
    return table.model_copy(update={"pools": pools, "keyring_shards": ()})


@cache
def _engines(folder: str) -> tuple[PoolConfig, ...]:
    return demo_arm(folder).arm.pools
