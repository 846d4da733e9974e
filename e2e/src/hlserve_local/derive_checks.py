"""What derivation says about pools before anything runs: unknown hardware, and latency targets that no replica can meet. Pure."""

from collections.abc import Iterator

from hlserve_api.v1alpha1.pool_model import SloEnforcement
from hlserve_capacity.derive import derivation_inputs, derive
from hlserve_local.objects import Objects
from hlserve_local.problems import Problem, warning


def check_derivation(objects: Objects) -> Iterator[Problem]:
    """Warnings about pools whose settings cannot be derived, or not so that the SLO holds."""
    for placed in objects.pools:
        spec = placed.value.spec
        derived = derive(placed.value)
        if not derived.calibrated and (missing := derivation_inputs(placed.value).missing_basis):
            yield warning(placed.place, f"settings are not derived, the engine's own defaults hold: {missing}.", "spec")
        elif (
            derived.slo_attainable is False and spec.slo is not None and spec.slo.enforcement is SloEnforcement.ENFORCE
        ):
            yield warning(placed.place, f"a replica cannot meet the SLO: {derived.slo_message}.", "spec.slo")
