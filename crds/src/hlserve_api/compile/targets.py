"""Which pools a class's targets stand for, and what is wrong between classes and pools. No single object's schema can see it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hlserve_api.routing import Intent, Mode, Target, TargetRole
from hlserve_api.v1alpha1.serving_pool import ServingPool
from hlserve_api.v1alpha1.workload_class import ClassTarget, WorkloadClass


class TargetProblemReason(StrEnum):
    """Reasons of the condition TargetsResolved; also in `hlserve_api.conditions`."""

    POOL_NOT_FOUND = "PoolNotFound"
    MODE_MISMATCH = "ModeMismatch"
    OVERCOMMITTED = "Overcommitted"


@dataclass(frozen=True, slots=True)
class TargetProblem:
    """What is wrong with one target of a class."""

    class_name: str
    target: str
    reason: TargetProblemReason
    message: str


@dataclass(frozen=True, slots=True)
class Overcommitment:
    """A pool that is promised more than once over: reason Overcommitted of each of its classes."""

    pool: str
    promised_percent: tuple[tuple[str, int], ...]
    """(class, its `share.minPercent`), of those that are promised anything."""

    @property
    def message(self) -> str:
        """The sum, and what to do."""
        parts = " + ".join(f"{percent} ({name})" for name, percent in self.promised_percent)
        total = sum(percent for _, percent in self.promised_percent)
        return f"its classes are promised {parts} = {total} percent of it: lower spec.share.minPercent until the sum is at most 100"


def selects(target: ClassTarget, pool: ServingPool) -> bool:
    """Whether a target names the pool, or selects it by all of its labels."""
    if target.pool_ref is not None:
        return pool.name == target.pool_ref.name
    if target.pool_selector is not None:
        return target.pool_selector.match_labels.items() <= pool.metadata.labels.items()
    return False


def resolve_targets(
    workload: WorkloadClass, pools: Sequence[ServingPool]
) -> tuple[tuple[Target, ...], tuple[TargetProblem, ...]]:
    """The pools that a class's targets stand for, and the targets that stand for none.

    A pool that several targets name counts once: as Primary if any says so, else by the first target.
    """
    found: dict[str, Target] = {}
    problems: list[TargetProblem] = []
    for target in workload.spec.targets:
        matching = [pool for pool in pools if selects(target, pool)]
        if not matching:
            problems.append(_not_found(workload, target))
        for pool in sorted(matching, key=lambda each: each.name):
            former = found.get(pool.name)
            if former is None or (former.role is TargetRole.SPILL and target.role is TargetRole.PRIMARY):
                found[pool.name] = Target(pool=pool.name, role=target.role, weight=target.weight)
    return tuple(found.values()), tuple(problems)


def mode_mismatches(workload: WorkloadClass, pools: Sequence[ServingPool]) -> Iterator[TargetProblem]:
    """Spill targets through which a Batch class may fill an Interactive pool, so that chat would keep nothing."""
    spec = workload.spec
    if spec.intent is not Intent.BATCH or spec.share.max_percent < 100:
        return
    for target in spec.targets:
        for pool in pools:
            if target.role is TargetRole.SPILL and pool.spec.mode is Mode.INTERACTIVE and selects(target, pool):
                yield TargetProblem(
                    workload.name,
                    target.name,
                    TargetProblemReason.MODE_MISMATCH,
                    f"this Batch class may spill into the Interactive pool {pool.name} and fill all of it: set "
                    "spec.share.maxPercent below 100, so that chat keeps a part",
                )


def overcommitments(classes: Sequence[WorkloadClass], pools: Sequence[ServingPool]) -> Iterator[Overcommitment]:
    """Pools whose classes' `share.minPercent` add up to more than 100."""
    for pool in pools:
        promised = tuple(
            (workload.name, workload.spec.share.min_percent)
            for workload in classes
            if workload.spec.share.min_percent > 0 and any(selects(target, pool) for target in workload.spec.targets)
        )
        if sum(percent for _, percent in promised) > 100:
            yield Overcommitment(pool.name, promised)


def _not_found(workload: WorkloadClass, target: ClassTarget) -> TargetProblem:
    if target.pool_ref is not None:
        text = (
            f"there is no ServingPool {target.pool_ref.name}: create it, or correct targets[{target.name}].poolRef.name"
        )
    else:
        text = f"no ServingPool has the labels of targets[{target.name}].poolSelector: label a pool, or correct the selector"
    return TargetProblem(workload.name, target.name, TargetProblemReason.POOL_NOT_FOUND, text)
