"""From a pool and what was derived from it to its children. Pure: the same input gives the same plan, byte for byte."""

from hlserve_api.v1alpha1 import ServingPool
from hlserve_api.v1alpha1.pool_engine import OWNED_FLAGS
from hlserve_capacity.derive import DerivedPool, engine_args
from hlserve_operator.render.access import disruption_budget, network_policy, service
from hlserve_operator.render.deployment import deployment
from hlserve_operator.render.leader_worker_set import leader_worker_set, node_arguments
from hlserve_operator.render.monitoring import pod_monitor
from hlserve_operator.render.scaling import horizontal_pod_autoscaler, scaled_object
from hlserve_operator.render.volumes import model_path
from hlserve_operator.revision import revision
from hlserve_operator.state import (
    ENGINE_PORT,
    ArgumentRejectedError,
    EnginePlan,
    Manifest,
    NotRenderableError,
    Plan,
    Release,
)


def plan(pool: ServingPool, derived: DerivedPool, release: Release) -> Plan:
    """The children of `pool`, all replicas on the current revision.

    Raises NotRenderableError, in one sentence, on what cannot be rendered.
    """
    engine = engine_plan(pool, derived, release)
    current = revision(engine)
    objects = (*shared_objects(engine, release), child(engine, release, current, wanted_replicas(pool)))
    return Plan(revision=current, objects=objects)


def shared_objects(engine: EnginePlan, release: Release) -> tuple[Manifest, ...]:
    """What all revisions of a pool share, for a cluster that knows every optional kind, in the order in which it is applied."""
    objects: tuple[Manifest | None, ...] = (
        network_policy(engine, release),
        service(engine, release),
        disruption_budget(engine, release),
        scaled_object(engine.pool, release),
        horizontal_pod_autoscaler(engine.pool, release),
        pod_monitor(engine.pool, release) if release.monitoring_namespace_labels else None,
    )
    return tuple(manifest for manifest in objects if manifest is not None)


def child(engine: EnginePlan, release: Release, current: str, replicas: int) -> Manifest:
    """The Deployment of a revision, or its LeaderWorkerSet if a replica spans nodes. Raises PatchRejectedError like `plan`."""
    if engine.pool.spec.parallelism.nodes > 1:
        return leader_worker_set(engine, release, current, replicas)
    return deployment(engine, release, current, replicas)


def engine_plan(pool: ServingPool, derived: DerivedPool, release: Release) -> EnginePlan:
    """How the pool's engines are run. Raises NotRenderableError like `plan`."""
    image = pool.spec.engine.image or release.default_image
    if image is None:
        raise NotRenderableError(f"ServingPool {pool.name}: no engine image. Set engine.image, or give --engine-image.")
    for argument in pool.spec.engine.extra_args:
        flag = argument.partition("=")[0].replace("_", "-")
        owned = next((name for name in OWNED_FLAGS if flag.startswith("--") and name.startswith(flag)), None)
        if owned is not None:
            raise ArgumentRejectedError(
                f"ServingPool {pool.name}: engine.extraArgs holds {argument!r}, which sets or abbreviates {owned}. That flag is "
                "the operator's: remove it, and use the field of model, parallelism or engine."
            )
    return EnginePlan(
        pool=pool,
        arguments=(*engine_args(pool, derived), *_launch_arguments(pool)),
        grace_seconds=derived.grace_seconds,
        image=image,
    )


def _launch_arguments(pool: ServingPool) -> tuple[str, ...]:
    source, nodes = pool.spec.model.source, pool.spec.parallelism.nodes
    revision_argument = () if source.revision is None else ("--revision", source.revision)
    return (
        *("--model-path", model_path(pool), *revision_argument, "--host", "0.0.0.0", "--port", str(ENGINE_PORT)),
        *(node_arguments(nodes) if nodes > 1 else ()),
    )


def wanted_replicas(pool: ServingPool) -> int:
    """Replicas before anybody scaled the pool: `replicas`, else autoscaling's minimum, else 1."""
    if pool.spec.replicas is not None:
        return pool.spec.replicas
    return 1 if pool.spec.autoscaling is None else pool.spec.autoscaling.min_replicas
