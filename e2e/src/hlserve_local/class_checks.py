"""Checks between pools and classes that no schema can see. Pure: objects in, problems out."""

from collections.abc import Iterator

from hlserve_api.compile import mode_mismatches, overcommitments
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
        for found in mode_mismatches(placed.value, [pool.value for pool in objects.pools]):
            yield error(placed.place, f"{found.message}.", f"spec.targets[{found.target}]")
    yield from _check_shares(objects)
    yield from _check_reached(objects)


def _check_target(objects: Objects, placed: Placed[WorkloadClass], target: ClassTarget) -> Iterator[Problem]:
    spec = placed.value.spec
    path = f"spec.targets[{target.name}]"
    pools = tuple(objects.pools_of(target))
    if not pools and not _may_be_broken(objects, target):
        yield _nothing_found(objects, placed, target, path)
    for pool in pools:
        human_less = pool.value.spec.mode is Mode.HUMAN_LESS
        if human_less and spec.intent is Intent.INTERACTIVE and target.role is TargetRole.PRIMARY:
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
    places = {pool.value.name: pool.place for pool in objects.pools}
    classes = [placed.value for placed in objects.classes]
    for found in overcommitments(classes, [pool.value for pool in objects.pools]):
        yield error(places[found.pool], f"{found.message}.")


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
