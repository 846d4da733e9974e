"""How many replicas the load of a pool asks for. Pure."""

import math
from collections.abc import Sequence

from hlserve_api.v1alpha1 import ServingPool
from hlserve_operator.reported import RouterReport


def wanted_replicas_by_load(pool: ServingPool, reports: Sequence[RouterReport]) -> float:
    """Replicas that the tokens waiting and running at all routers would fill.

    A replica is full at 80 % of the tokens that it may have in flight (`status.derived`, `inFlightTokens`). Without that figure, and
    while no router answers, the pool is wanted as it is: a guess must not scale anything.
    """
    answered = [report for report in reports if report.answered]
    backlog = sum(report.backlog_tokens.get(pool.name, 0) for report in answered)
    capacity = _in_flight_tokens(pool)
    present = float(pool.spec.replicas or 0)
    if not answered or (backlog and capacity is None):
        return max(present, 1.0 if backlog else present)
    return 0.0 if not backlog or capacity is None else float(math.ceil(backlog / (FULL_SHARE * capacity)))


FULL_SHARE = 0.8
"""Share of a replica's tokens at which another one is wanted."""


def _in_flight_tokens(pool: ServingPool) -> int | None:
    for derived in pool.status.derived:
        if derived.name == "inFlightTokens" and derived.value.isdecimal() and int(derived.value):
            return int(derived.value)
    return None
