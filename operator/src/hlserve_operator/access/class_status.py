"""The status of a WorkloadClass. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from hlserve_api.compile import Overcommitment, mode_mismatches, resolve_targets, selects
from hlserve_api.conditions import ConditionReason, ConditionType
from hlserve_api.routing import Target, TargetRole
from hlserve_api.v1alpha1.workload_class import ResolvedPool, WorkloadClass, WorkloadClassStatus
from hlserve_operator.access.observed import PoolFacts
from hlserve_operator.verdicts import Verdict, conditions, verdict

KIND: Final = "WorkloadClass"
POOLS_SHOWN: Final = 64
SUMMARY_CHARACTERS: Final = 256

_R = ConditionReason


def class_status(
    workload: WorkloadClass,
    *,
    pools: Sequence[PoolFacts],
    promises: Sequence[Overcommitment],
    clients: int,
    pruned: str | None,
    now: datetime,
    taken: str | None = None,
) -> WorkloadClassStatus:
    """The status that the class should have. `promises`: pools that are promised too often; `clients`: ClientKeys of this class;
    `taken`: why the routing table cannot be written."""
    specs = [facts.pool for facts in pools]
    targets, _ = resolve_targets(workload, specs)
    return WorkloadClassStatus(
        observed_generation=workload.metadata.generation,
        resolved_pools=tuple(
            ResolvedPool(name=target.pool, target=_origin(workload, target, pools), role=target.role)
            for target in targets[:POOLS_SHOWN]
        ),
        pools_summary=_summary(targets),
        client_count=clients,
        conditions=conditions(
            workload.status.conditions,
            [_ready(workload, targets, pools, pruned, taken), _resolved(workload, pools, promises)],
            generation=workload.metadata.generation,
            now=now,
        ),
    )


def _origin(workload: WorkloadClass, target: Target, pools: Sequence[PoolFacts]) -> str:
    """Name of the target that a pool's role comes from."""
    pool = next(facts.pool for facts in pools if facts.pool.name == target.pool)
    return next(each.name for each in workload.spec.targets if each.role is target.role and selects(each, pool))


def _summary(targets: Sequence[Target]) -> str:
    text = ", ".join(target.pool for target in targets)
    return text if len(text) <= SUMMARY_CHARACTERS else text[: SUMMARY_CHARACTERS - 1] + "…"


def _ready(
    workload: WorkloadClass,
    targets: Sequence[Target],
    pools: Sequence[PoolFacts],
    pruned: str | None,
    taken: str | None,
) -> Verdict:
    if taken is not None:
        return verdict(KIND, ConditionType.READY, _R.NAME_TAKEN, taken)
    ready = {facts.pool.name: facts.ready_replicas for facts in pools}
    primaries = [target.pool for target in targets if target.role is TargetRole.PRIMARY]
    if not primaries:
        return verdict(
            KIND, ConditionType.READY, _R.POOL_NOT_FOUND,
            "No primary target stands for a ServingPool: create one, or correct spec.targets.",
        )  # fmt: skip
    if not any(ready[name] for name in primaries):
        spills = [target.pool for target in targets if target.role is TargetRole.SPILL and ready[target.pool]]
        helped = workload.spec.spill.when_unavailable and spills
        meanwhile = f" Meanwhile requests spill into {', '.join(spills)}." if helped else " Meanwhile requests wait."
        return verdict(
            KIND, ConditionType.READY, _R.POOL_NOT_READY,
            f"No replica of {', '.join(primaries)} is ready: look at the conditions of the pool.{meanwhile}",
        )  # fmt: skip
    if pruned is not None:
        return verdict(KIND, ConditionType.READY, _R.PRUNED_FIELD, pruned)
    return verdict(KIND, ConditionType.READY, _R.READY, "At least one primary pool serves.")


def _resolved(workload: WorkloadClass, pools: Sequence[PoolFacts], promises: Sequence[Overcommitment]) -> Verdict:
    found = list(_problems(workload, pools, promises))
    if not found:
        return verdict(KIND, ConditionType.TARGETS_RESOLVED, _R.RESOLVED, "Every target stands for at least one pool.")
    return verdict(KIND, ConditionType.TARGETS_RESOLVED, found[0][0], "; ".join(text for _, text in found))


def _problems(
    workload: WorkloadClass, pools: Sequence[PoolFacts], promises: Sequence[Overcommitment]
) -> Iterator[tuple[ConditionReason, str]]:
    specs = [facts.pool for facts in pools]
    _, missing = resolve_targets(workload, specs)
    for problem in (*missing, *mode_mismatches(workload, specs)):
        yield ConditionReason(problem.reason), problem.message
    for promise in promises:
        if workload.name in dict(promise.promised_percent):
            yield _R.OVERCOMMITTED, f"{promise.pool}: {promise.message}"
