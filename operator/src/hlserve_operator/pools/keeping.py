"""When a revision stays although rendering its pool would give another one today.

Pods hold streams and take minutes to load. So they roll for what users change: the spec, the image. What changes by itself, a new
calibration's noise or what a newer operator renders, rolls them only if a derived setting moves by more than a threshold.
"""

from collections.abc import Iterable
from typing import Final

from hlserve_capacity.derive import DerivedPool
from hlserve_operator.pools.engines import Revision
from hlserve_operator.pools.observed import ChildView, PoolObserved
from hlserve_operator.state import ENGINE_CONTAINER, EnginePlan

THRESHOLD: Final = 0.15
"""Share by which a derived number may differ from the one in force before pods roll for it."""


def kept_revision(
    observed: PoolObserved, engine: EnginePlan, derived: DerivedPool, revisions: Iterable[Revision]
) -> str | None:
    """The revision that stays the current one; None: what the spec comes to today is right.

    It is the one that the status names, if the status is about this very spec and the image is the same.
    """
    status = observed.pool.status
    if status.engine is None or status.observed_generation != observed.pool.metadata.generation:
        return None
    name = status.engine.template_hash
    child = next((known.child for known in revisions if known.child.revision == name), None)
    if child is None or image_of(child) != engine.image:
        return None
    former = {value.name: value.value for value in status.derived}
    moved = any(_moved(former[value.name], value.value) for value in derived.values if value.name in former)
    return None if moved else name


def image_of(child: ChildView) -> str | None:
    """The engine image of a child, from the spec that it was made with; None if that is not known."""
    spec = child.template or {}
    template = spec.get("template") or (spec.get("leaderWorkerTemplate") or {}).get("leaderTemplate") or {}
    containers = (template.get("spec") or {}).get("containers") or []
    image = next((c.get("image") for c in containers if c.get("name") == ENGINE_CONTAINER), None)
    return image if isinstance(image, str) else None


def _moved(former: str, value: str) -> bool:
    try:
        before, after = float(former), float(value)
    except ValueError:
        return former != value
    return abs(after - before) > THRESHOLD * abs(before)
