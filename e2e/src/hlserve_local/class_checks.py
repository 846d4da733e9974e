"""Checks between pools and classes that no schema can see. Pure: objects in, problems out."""

from collections import defaultdict
from collections.abc import Iterator

from hlserve_api.routing import Intent, Mode, TargetRole
from hlserve_api.v1alpha1 import ServingPool, WorkloadClass
from hlserve_api.v1alpha1.workload_class import ClassTarget
from hlserve_local.manifests import Kind
from hlserve_local.names import hint
from hlserve_local.objects import Objects, Placed
from hlserve_local.problems import Place, Problem, error, warning


def check_classes(objects: Objects) -> Iterator[Problem]:
    """Everything that can be wrong between WorkloadClasses and ServingPools."""
    if not objects.pools and not objects.any_broken(Kind.SERVING_POOL):
        yield error(Place(), "holds no ServingPool, so there is nothing that could serve a request: add one.")
    for placed in objects.classes:
        for target in placed.value.spec.targets:
            yield from _check_target(objects, placed, target)
    yield from _check_shares(objects)
    yield from _check_reached(objects)


def _check_target(objects: Objects, placed: Placed[WorkloadClass], target: ClassTarget) -> Iterator[Problem]:
    spec = placed.value.spec
    path = f"spec.targets[{target.name}]"
    pools = tuple(objects.pools_of(target))
    if not pools and not _may_be_broken(objects, target):
        yield _nothing_found(objects, placed, target, path)
    for pool in pools:
        mode = pool.value.spec.mode
        if (
            spec.intent is Intent.BATCH
            and target.role is TargetRole.SPILL
            and mode is Mode.INTERACTIVE
            and spec.share.max_percent == 100
        ):
            yield error(
                placed.place,
                f"this Batch class may spill into the Interactive pool {pool.value.name} and fill all of it: set "
                "spec.share.maxPercent below 100, so that chat keeps a part.",
                path,
            )
        if spec.intent is Intent.INTERACTIVE and target.role is TargetRole.PRIMARY and mode is Mode.HUMAN_LESS:
            yield warning(
                placed.place,
                f"this Interactive class has the HumanLess pool {pool.value.name} as a primary, and that pool keeps no latency "
                "target: target an Interactive pool, or make it role: Spill.",
                path,
            )


def _may_be_broken(objects: Objects, target: ClassTarget) -> bool:
    if target.pool_ref is not None:
        return (Kind.SERVING_POOL, target.pool_ref.name) in objects.broken
    return objects.any_broken(Kind.SERVING_POOL)


def _nothing_found(objects: Objects, placed: Placed[WorkloadClass], target: ClassTarget, path: str) -> Problem:
    if target.pool_ref is not None:
        wanted = target.pool_ref.name
        names = [pool.value.name for pool in objects.pools]
        return error(
            placed.place, f"no ServingPool is named {wanted}; {hint(wanted, names, 'ServingPool')}", f"{path}.poolRef"
        )
    labels = target.pool_selector.match_labels if target.pool_selector is not None else {}
    text = ",".join(f"{key}={value}" for key, value in labels.items())
    return error(
        placed.place,
        f"no ServingPool has the labels {text}: put them on a pool, or correct the selector.",
        f"{path}.poolSelector",
    )


def _check_shares(objects: Objects) -> Iterator[Problem]:
    by_pool: dict[str, list[Placed[WorkloadClass]]] = defaultdict(list)
    for placed in objects.classes:
        names = {pool.value.name for target in placed.value.spec.targets for pool in objects.pools_of(target)}
        for name in names:
            by_pool[name].append(placed)
    for pool in objects.pools:
        sharing = [placed.value for placed in by_pool[pool.value.name] if placed.value.spec.share.min_percent > 0]
        total = sum(item.spec.share.min_percent for item in sharing)
        if total > 100:
            parts = " + ".join(f"{item.spec.share.min_percent} ({item.name})" for item in sharing)
            yield error(
                pool.place,
                f"its classes are promised {parts} = {total} percent of it: lower spec.share.minPercent until the sum is at most 100.",
            )


def _check_reached(objects: Objects) -> Iterator[Problem]:
    if objects.any_broken(Kind.WORKLOAD_CLASS):
        return
    reached = {
        pool.value.name
        for placed in objects.classes
        for target in placed.value.spec.targets
        for pool in objects.pools_of(target)
    }
    for pool in objects.pools:
        if pool.value.name not in reached:
            yield warning(pool.place, _unreached(pool.value))


def _unreached(pool: ServingPool) -> str:
    return f"no class reaches this pool, so it would run idle: name {pool.name} in a WorkloadClass's spec.targets, or remove the pool."
