"""What follows from a key, the class it asks for and a model's name alone: worked out once for a table and a keyring.

Every refusal that these alone can cause is raised here (`class_missing`, `unknown_class`, `class_not_allowed`,
`missing_model`, `model_not_found`); a request of a known kind costs one look-up.
"""

from dataclasses import dataclass
from typing import Final

from hlserve_api import headers as names
from hlserve_api.routing import ClassRoute, Intent, KeyEntry, PoolRoute, PriorityOrder
from hlserve_router.admission import Admission, Lane
from hlserve_router.checks import Bounds, bounds_of, require_store
from hlserve_router.classify import Classified, classify
from hlserve_router.estimate import flow_of, queue_ttl_seconds
from hlserve_router.keys import Keyrings
from hlserve_router.limit_book import Caps
from hlserve_router.limits import caps_of
from hlserve_router.meters import ClassMeters, PoolMeters
from hlserve_router.metrics import Metrics
from hlserve_router.models import allowed_models, choose_model
from hlserve_router.pools import Pool, Pools

MAX_PLANS: Final = 16_384
"""About 10 MB. Names come from clients, but only those of models and classes that exist make a plan."""


@dataclass(slots=True, eq=False)
class PoolPlan:
    """One pool as the class's requests use it."""

    route: PoolRoute
    foreign: bool
    model: str
    """The model that its engines serve."""
    served: bytes
    """What an answer says of who served it, as lines of its head."""
    priority: int | None
    """The class's priority as the pool's engines count it; None: it is not sent."""
    meters: PoolMeters


@dataclass(slots=True, eq=False)
class Plan:
    """What the steps need to know of a kind of request."""

    found: Classified
    route: ClassRoute
    name: str
    """The class's."""
    intent: Intent
    caps: Caps
    """The client's limits in the class."""
    model: str
    serving: tuple[PoolRoute, ...]
    """The class's pools that serve the model, in target order."""
    sizes: Pool
    """The pool whose bytes per token count in estimates."""
    bounds: Bounds
    has_affinity: bool
    """Requests go back to where their session's prefix is."""
    lane: Lane
    flow: str
    ttl_seconds: float
    """How long a request may wait in its queue."""
    total_seconds: float
    """How long it may take in all."""
    meters: ClassMeters
    pools: dict[str, PoolPlan]
    """By name; more are added as requests reach them."""


class Plans:
    """The plans of the table and keyring in force."""

    def __init__(self, keyrings: Keyrings, pools: Pools, admission: Admission, metrics: Metrics) -> None:
        self._keyrings = keyrings
        self._pools = pools
        self._admission = admission
        self._metrics = metrics
        self._plans: dict[tuple[str, str | None, str | None, bool], Plan] = {}
        self._basis: tuple[object, int] = (None, 0)

    def find(self, key: KeyEntry, asked_class: str | None, model: str | None, *, demoted: bool = False) -> Plan:
        """The plan for a key, the class that a header asks for, and the model that a body names. Raises Refusal."""
        if self._basis[0] is not self._pools.table or self._basis[1] != self._keyrings.revision:
            self._plans.clear()
            self._basis = (self._pools.table, self._keyrings.revision)
        name = (key.digest, asked_class, model, demoted)
        plan = self._plans.get(name)
        if plan is None:
            found = classify(key, asked_class, self._pools.classes, demoted=demoted)
            models = allowed_models(key, self._pools.models(found.route))
            plan = self._make(key, found, choose_model(models, model))
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[name] = plan
        return plan

    def stored(self, key: KeyEntry, asked_class: str | None) -> Plan:
        """The plan for GET and cancel of a stored response, which name no model. Raises Refusal."""
        found = classify(key, asked_class, self._pools.classes)
        pools = [self._pools.pools[target.pool].route for target in found.route.targets]
        require_store(pools)
        return self._make(key, found, pools[0].model)

    def pool(self, plan: Plan, name: str) -> PoolPlan:
        """The pool that a request went to."""
        found = plan.pools.get(name)
        if found is None:
            route = self._pools.pools[name].route
            meters = PoolMeters(self._metrics, plan.route.name, name)
            found = plan.pools[name] = PoolPlan(
                route,
                route.foreign,
                route.model,
                served_lines(plan.name, name),
                _priority(plan.route, route),
                meters,
            )
        return found

    def _make(self, key: KeyEntry, found: Classified, model: str) -> Plan:
        route = found.route
        serving = self._pools.serving(route, model)
        return Plan(
            found,
            route,
            route.name,
            route.intent,
            caps_of(key, route),
            model,
            serving,
            self._pools.pools[serving[0].name],
            bounds_of(route, serving),
            route.intent is not Intent.INTERACTIVE,
            self._admission.lane(route, model),
            flow_of(key, route),
            queue_ttl_seconds(route, serving),
            float(route.timeouts.total_seconds),
            ClassMeters(self._metrics, key.client, route.name),
            {},
        )


def served_lines(class_name: str, pool_name: str) -> bytes:
    """The class and pool of a request, as far as they are known, as lines of its answer's head."""
    pairs = ((names.CLASS, class_name), (names.POOL, pool_name))
    return b"".join(f"{name}: {value}\r\n".encode() for name, value in pairs if value)


def _priority(route: ClassRoute, pool: PoolRoute) -> int | None:
    if pool.foreign or pool.priority_order is PriorityOrder.NONE:
        return None
    return route.priority if pool.priority_order is PriorityOrder.HIGHER_FIRST else -route.priority
