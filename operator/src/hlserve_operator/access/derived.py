"""Remembers what was derived from each pool: access needs it of all of them, and a derivation takes up to milliseconds. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hlserve_api.v1alpha1.serving_pool import ServingPool
from hlserve_capacity.calibration import Calibration
from hlserve_capacity.derive import DerivedPool, derive


@dataclass(slots=True, eq=False)
class Derivations:
    """The newest derivation of each pool, by UID, and what it was made from."""

    _known: dict[str, tuple[int, Calibration | None, DerivedPool]] = field(default_factory=dict)

    def of(self, pool: ServingPool, calibration: Calibration | None) -> DerivedPool:
        """What follows from the pool; the same object as long as neither its spec nor its calibration changes."""
        uid, generation = pool.metadata.uid, pool.metadata.generation
        known = self._known.get(uid)
        if known is not None and known[:2] == (generation, calibration):
            return known[2]
        derived = derive(pool, calibration)
        if uid:
            # A pool from a file has neither UID nor generation to be known by.
            self._known[uid] = (generation, calibration, derived)
        return derived

    def keep_only(self, pools: Iterable[ServingPool]) -> None:
        """Forgets the pools that are gone."""
        live = {pool.metadata.uid for pool in pools}
        self._known = {uid: known for uid, known in self._known.items() if uid in live}
