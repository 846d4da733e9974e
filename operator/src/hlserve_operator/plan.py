"""From a pool and what was derived from it to its children. Pure: the same input gives the same plan, byte for byte."""

from hlserve_api.v1alpha1 import ServingPool
from hlserve_capacity.derive import DerivedPool, engine_args
from hlserve_operator.render.access import disruption_budget, network_policy, service
from hlserve_operator.render.deployment import deployment
from hlserve_operator.render.volumes import model_path
from hlserve_operator.revision import revision
from hlserve_operator.state import ENGINE_PORT, EnginePlan, Manifest, NotRenderableError, Plan, Release


def plan(pool: ServingPool, derived: DerivedPool, release: Release) -> Plan:
    """The children of `pool`, all replicas on the current revision.

    Raises NotRenderableError, in one sentence, on what this version cannot render.
    """
    engine = engine_plan(pool, derived, release)
    current = revision(engine)
    objects: list[Manifest | None] = [
        network_policy(engine, release),
        service(engine, release),
        disruption_budget(engine, release),
        deployment(engine, release, current, wanted_replicas(pool)),
    ]
    return Plan(revision=current, objects=tuple(manifest for manifest in objects if manifest is not None))


def engine_plan(pool: ServingPool, derived: DerivedPool, release: Release) -> EnginePlan:
    """How the pool's engines are run. Raises NotRenderableError like `plan`."""
    if pool.spec.parallelism.nodes > 1:
        raise NotRenderableError(
            f"ServingPool {pool.name}: a replica over {pool.spec.parallelism.nodes} nodes needs a LeaderWorkerSet, which is "
            "not rendered yet. Set parallelism.nodes to 1."
        )
    if pool.spec.pod_patch is not None:
        raise NotRenderableError(
            f"ServingPool {pool.name}: podPatch is not merged yet. Remove it, and patch the printed YAML."
        )
    image = pool.spec.engine.image or release.default_image
    if image is None:
        raise NotRenderableError(f"ServingPool {pool.name}: no engine image. Set engine.image, or give --engine-image.")
    return EnginePlan(
        pool=pool,
        arguments=(*engine_args(pool, derived), *_launch_arguments(pool)),
        grace_seconds=derived.grace_seconds,
        image=image,
    )


def _launch_arguments(pool: ServingPool) -> tuple[str, ...]:
    source = pool.spec.model.source
    revision_argument = () if source.revision is None else ("--revision", source.revision)
    return ("--model-path", model_path(pool), *revision_argument, "--host", "0.0.0.0", "--port", str(ENGINE_PORT))


def wanted_replicas(pool: ServingPool) -> int:
    """Replicas before anybody scaled the pool: `replicas`, else autoscaling's minimum, else 1."""
    if pool.spec.replicas is not None:
        return pool.spec.replicas
    return 1 if pool.spec.autoscaling is None else pool.spec.autoscaling.min_replicas
