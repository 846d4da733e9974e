"""The objects of a pool: which are wanted, which are in somebody else's hands, which are left over."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from hlserve_api.v1alpha1 import ServingPool
from hlserve_operator.caps import Caps
from hlserve_operator.plan import child, shared_objects
from hlserve_operator.pools.observed import ChildView, OptionalApis, PoolObserved
from hlserve_operator.pools.views import CHILD_KINDS, owned_by
from hlserve_operator.refs import Ref
from hlserve_operator.render.deployment import child_metadata
from hlserve_operator.render.metadata import CAPS_ANNOTATION, TEMPLATE_ANNOTATION
from hlserve_operator.state import EnginePlan, Manifest, Release

SHARED_KINDS = (
    ("v1", "Service"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("policy/v1", "PodDisruptionBudget"),
    ("autoscaling/v2", "HorizontalPodAutoscaler"),
    ("keda.sh/v1alpha1", "ScaledObject"),
    ("monitoring.coreos.com/v1", "PodMonitor"),
)
"""Kinds of which a pool has one object at most, under its own name: what is to be read by name."""
REVISION_KINDS = (("apps/v1", "Deployment"), ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"))
"""Kinds of which a pool has one object per revision: what is to be listed by the pool's label."""


def owned_refs(pool: ServingPool) -> tuple[Ref, ...]:
    """Everything to read by name for this pool, whether or not it is wanted: a name may be taken, an object left over."""
    return tuple(Ref(api_version, kind, pool.name) for api_version, kind in SHARED_KINDS)


def referenced_secrets(pool: ServingPool) -> tuple[str, ...]:
    """Names of the Secrets that the pool's pods need, sorted."""
    engine = pool.spec.engine
    references = [pool.spec.model.source.token_secret_ref, engine.api_key_secret_ref]
    references += [variable.value_from.secret_key_ref for variable in engine.env if variable.value_from is not None]
    names = {reference.name for reference in references if reference is not None}
    names |= {reference.name for reference in engine.image_pull_secrets}
    if engine.tls is not None:
        names.add(engine.tls.secret_name)
    return tuple(sorted(names))


def available(manifests: Iterable[Manifest], apis: OptionalApis) -> tuple[Manifest, ...]:
    """Those of the objects whose kind the cluster serves."""
    absent = {
        kind
        for kind, served in (
            ("LeaderWorkerSet", apis.leader_worker_set),
            ("ScaledObject", apis.keda),
            ("PodMonitor", apis.pod_monitor),
        )
        if not served
    }
    return tuple(manifest for manifest in manifests if manifest["kind"] not in absent)


def wanted_shared(engine: EnginePlan, release: Release, apis: OptionalApis) -> tuple[Manifest, ...]:
    """What all revisions share and this cluster can hold."""
    return available(shared_objects(engine, release), apis)


def new_child(engine: EnginePlan, release: Release, revision: str, replicas: int, caps: Caps) -> Manifest:
    """A revision's child as it is made, with its spec and its caps kept in annotations. Raises PatchRejectedError."""
    manifest = child(engine, release, revision, replicas)
    spec = {name: value for name, value in manifest["spec"].items() if name != "replicas"}
    return _annotated(manifest, spec, caps.text)


def kept_child(
    pool: ServingPool, release: Release, view: ChildView, stored: Manifest, replicas: int, caps: Caps | None = None
) -> Manifest:
    """An existing child with another number of replicas and the spec that it was made with: whatever a newer operator would render, and
    whatever somebody else wrote there, its pods stay as they are. Without the annotation what is stored counts as right.
    `caps`: new ones; None: they stay too."""
    spec = view.template
    if spec is None:
        spec = {name: value for name, value in stored["spec"].items() if name != "replicas"}
    metadata = child_metadata(pool, release, view.revision)
    metadata["name"] = view.ref.name
    annotations = {
        name: value
        for name, value in (stored["metadata"].get("annotations") or {}).items()
        if name.startswith("leaderworkerset.sigs.k8s.io/")
    }
    if annotations:
        metadata["annotations"] = annotations
    manifest = {
        "apiVersion": view.ref.api_version,
        "kind": view.ref.kind,
        "metadata": metadata,
        "spec": {"replicas": replicas, **spec},
    }
    return _annotated(manifest, spec, view.caps if caps is None else caps.text)


def taken_names(observed: PoolObserved, manifests: Iterable[Manifest]) -> tuple[str, ...]:
    """Wanted objects that exist and are not the pool's own, as people write them."""
    taken = []
    for manifest in manifests:
        known = observed.objects.get(Ref.of(manifest))
        if known is not None and not owned_by(known, observed.pool):
            taken.append(str(Ref.of(manifest)))
    return tuple(taken)


def left_over(observed: PoolObserved, wanted: Iterable[Manifest]) -> tuple[tuple[Ref, str], ...]:
    """Objects of the pool's own, children aside, that nothing wants any more, with their UIDs."""
    kept = {Ref.of(manifest) for manifest in wanted}
    kinds = {kind for _, kind in SHARED_KINDS}
    return tuple(
        (ref, manifest["metadata"].get("uid", ""))
        for ref, manifest in sorted(observed.objects.items())
        if ref not in kept
        and ref.kind in kinds
        and ref.kind not in CHILD_KINDS
        and owned_by(manifest, observed.pool)
        and "deletionTimestamp" not in manifest["metadata"]
    )


def _annotated(manifest: Manifest, spec: Mapping[str, Any], caps: str) -> Manifest:
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), TEMPLATE_ANNOTATION: text}
    if caps:
        annotations[CAPS_ANNOTATION] = caps
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}
