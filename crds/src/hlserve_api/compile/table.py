"""Pools and classes to the `RoutingTable`, with defaults by intent."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from hlserve_api.compile.canonical import generation_of
from hlserve_api.compile.targets import resolve_targets
from hlserve_api.routing import (
    ClassLimits,
    ClassRoute,
    Endpoint,
    Intent,
    PoolRoute,
    PriorityOrder,
    QueueRule,
    ReplicaCaps,
    RoutingTable,
    ShardDigest,
    ShareRule,
    SpillRule,
    Target,
    TargetRole,
    Timeouts,
)
from hlserve_api.v1alpha1.serving_pool import ResponseStore, ServingPool
from hlserve_api.v1alpha1.workload_class import WorkloadClass


@dataclass(frozen=True, slots=True)
class PoolRuntime:
    """What a pool's route needs beyond its spec: derived caps (per replica) and where the replicas are.

    None: no bound. `endpoints` are used when `service` is None. `foreign`: the engines are somebody else's (`--engine`).
    """

    max_in_flight: int | None = None
    in_flight_tokens: int | None = None
    kv_tokens: int | None = None
    queue_ttl_milliseconds: int | None = None
    context_length: int | None = None
    priority_order: PriorityOrder = PriorityOrder.NONE
    service: str | None = None
    endpoints: tuple[Endpoint, ...] = ()
    draining: tuple[str, ...] = ()
    foreign: bool = False
    replica_caps: tuple[ReplicaCaps, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassDefaults:
    """Deadlines of a class whose spec leaves them out. `queue_ttl_milliseconds` holds if no pool has a TTFT target."""

    timeouts: Timeouts
    queue_ttl_milliseconds: int


def _defaults(
    total: int, silence: int, peek: int, ping: int, retry_cutoff: int, start: int, *, ttl: int
) -> ClassDefaults:
    timeouts = Timeouts(
        total_seconds=total,
        silence_seconds=silence,
        peek_milliseconds=peek,
        ping_seconds=ping,
        retry_cutoff_seconds=retry_cutoff,
        start_seconds=start,
    )
    return ClassDefaults(timeouts, ttl)


CLASS_DEFAULTS: Final = MappingProxyType(
    {
        Intent.INTERACTIVE: _defaults(600, 60, 2000, 15, 5, 30, ttl=30_000),
        # Below the 600 s after which the SDKs give up and send the whole run again.
        Intent.AGENT: _defaults(3600, 600, 5000, 15, 30, 600, ttl=540_000),
        Intent.BATCH: _defaults(21_600, 1800, 5000, 15, 60, 1800, ttl=3_600_000),
    }
)


def _primary_pools(targets: Sequence[Target], pools: Sequence[ServingPool]) -> tuple[ServingPool, ...]:
    names = {target.pool for target in targets if target.role is TargetRole.PRIMARY}
    return tuple(pool for pool in pools if pool.name in names)


def _queue_ttl_milliseconds(workload: WorkloadClass, primaries: Sequence[ServingPool]) -> int:
    if workload.spec.queue.ttl_milliseconds is not None:
        return workload.spec.queue.ttl_milliseconds
    default = CLASS_DEFAULTS[workload.spec.intent].queue_ttl_milliseconds
    if workload.spec.intent is not Intent.INTERACTIVE:
        return default
    targets = [pool.spec.slo.ttft_milliseconds for pool in primaries if pool.spec.slo is not None]
    # The largest, because each pool's own bound, which is smaller, counts for itself.
    return max((each for each in targets if each is not None), default=default)


def _timeouts(workload: WorkloadClass, primaries: Sequence[ServingPool]) -> Timeouts:
    default = CLASS_DEFAULTS[workload.spec.intent].timeouts
    given = workload.spec.timeouts.model_dump(exclude_none=True)
    if "total_seconds" not in given:
        wanted = [
            pool.spec.throughput.request_timeout_seconds for pool in primaries if pool.spec.throughput is not None
        ]
        known = [each for each in wanted if each is not None]
        if known:
            given["total_seconds"] = max(known)
    return default.model_copy(update=given)


def compile_class(workload: WorkloadClass, pools: Sequence[ServingPool]) -> ClassRoute:
    """One class's route. Targets that stand for no pool are left out (`resolve_targets` tells which)."""
    spec = workload.spec
    targets, _ = resolve_targets(workload, pools)
    primaries = _primary_pools(targets, pools)
    enter = spec.spill.enter_queue_wait_milliseconds
    leave = spec.spill.leave_queue_wait_milliseconds
    return ClassRoute(
        name=workload.name,
        intent=spec.intent,
        priority=spec.priority,
        targets=targets,
        spill=SpillRule(
            enter_queue_wait_milliseconds=enter,
            leave_queue_wait_milliseconds=enter // 2 if leave is None else leave,
            when_unavailable=spec.spill.when_unavailable,
        ),
        queue=QueueRule(
            max_depth=spec.queue.max_depth,
            max_bytes=spec.queue.max_bytes,
            ttl_milliseconds=_queue_ttl_milliseconds(workload, primaries),
        ),
        share=ShareRule(min_percent=spec.share.min_percent, max_percent=spec.share.max_percent),
        limits=ClassLimits(**spec.limits.model_dump()),
        timeouts=_timeouts(workload, primaries),
        fairness=spec.fairness.by,
        header_override=spec.header_override,
    )


def compile_pool(pool: ServingPool, runtime: PoolRuntime) -> PoolRoute:
    """One pool's route."""
    return PoolRoute(
        name=pool.name,
        mode=pool.spec.mode,
        model=pool.spec.model.name,
        aliases=pool.spec.model.aliases,
        service=runtime.service,
        endpoints=runtime.endpoints,
        priority_order=runtime.priority_order,
        max_in_flight=runtime.max_in_flight,
        in_flight_tokens=runtime.in_flight_tokens,
        kv_tokens=runtime.kv_tokens,
        replica_caps=runtime.replica_caps,
        queue_ttl_milliseconds=runtime.queue_ttl_milliseconds,
        context_length=runtime.context_length,
        draining=tuple(sorted(runtime.draining)),
        foreign=runtime.foreign,
        response_store=pool.spec.response_store is ResponseStore.ENABLED,
        allowed_media_domains=pool.spec.allowed_media_domains,
    )


def compile_table(
    pools: Sequence[tuple[ServingPool, PoolRuntime]],
    classes: Sequence[WorkloadClass],
    *,
    shards: Sequence[ShardDigest] = (),
) -> RoutingTable:
    """The routing table, its generation the hash of its content. The order of the arguments' items does not matter."""
    specs = tuple(pool for pool, _ in pools)
    table = RoutingTable(
        generation="",
        keyring_shards=tuple(sorted(shards, key=lambda shard: shard.name)),
        pools=tuple(sorted((compile_pool(pool, runtime) for pool, runtime in pools), key=lambda route: route.name)),
        classes=tuple(sorted((compile_class(each, specs) for each in classes), key=lambda route: route.name)),
    )
    return table.model_copy(update={"generation": generation_of(table)})
