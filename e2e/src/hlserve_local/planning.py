"""From valid objects to what shall run: flags and replicas of each pool, and which key opens what. Pure but for new keys and the time."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from hlserve_api.new_key import new_key
from hlserve_api.v1alpha1 import ServingPool
from hlserve_api.v1alpha1.client_key import Credential, KeyEncoding
from hlserve_capacity.derive import DerivedPool, derive, engine_args
from hlserve_local.engines import EngineSpec
from hlserve_local.fleet import Wanted
from hlserve_local.objects import Objects
from hlserve_local.problems import Problem
from hlserve_local.snippets import Access
from hlserve_local.validation import Validation

DEFAULT_REPLICAS: Final = 1
DEFAULT_ACCELERATOR: Final = "A100-80G"
DEFAULT_SHAPE: Final = "llama-3.1-8b"


class NotSimulatedError(ValueError):
    """A pool that the simulator cannot stand in for. The message says what to do."""


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """How the simulated engines run. `time_scale` 10: ten engine seconds in one second."""

    time_scale: float = 1.0
    seed: int = 0
    session_idle_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One pool: its manifest, what was derived from it, and who serves it."""

    pool: ServingPool
    derived: DerivedPool
    foreign: tuple[str, ...]
    """Base URLs of somebody else's engines; empty: we simulate."""
    wanted: Wanted | None
    """What we start; None if `foreign`."""

    @property
    def name(self) -> str:
        """Name of the ServingPool."""
        return self.pool.name

    @property
    def settings(self) -> tuple[str, ...]:
        """The derived settings, one a line with source and reason: `maxRunningRequests  21  Estimate  TPOT …`."""
        values = self.derived.values
        names = max((len(item.name) for item in values), default=0)
        widths = max((len(item.value) for item in values), default=0)
        sources = max((len(item.source) for item in values), default=0)
        return tuple(
            f"{item.name:<{names}}  {item.value:>{widths}}  {item.source:<{sources}}  {item.why}".rstrip()
            for item in values
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that one reading of the folder asks for."""

    objects: Objects
    warnings: tuple[Problem, ...]
    pools: tuple[PoolPlan, ...]
    accesses: tuple[Access, ...]
    secret_values: Mapping[tuple[str, str], str]
    """(Secret name, key) → plain text, those made for this run included."""
    generated_keys: Mapping[tuple[str, str], str]
    """The part of `secret_values` that no manifest holds."""

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        """The engines to run."""
        return tuple(pool.wanted for pool in self.pools if pool.wanted is not None)

    @property
    def pool_names(self) -> tuple[str, ...]:
        """Names of all pools, in file order."""
        return tuple(pool.name for pool in self.pools)

    @property
    def foreign(self) -> dict[str, tuple[str, ...]]:
        """Pool name → URLs, for pools with somebody else's engines."""
        return {pool.name: pool.foreign for pool in self.pools if pool.foreign}

    @property
    def summary(self) -> str:
        """`2 pools, 3 classes, 3 keys`."""
        counts = ((len(self.pools), "pool"), (len(self.objects.classes), "class"), (len(self.objects.keys), "key"))
        return ", ".join(f"{count} {word}{_plural(word) if count != 1 else ''}" for count, word in counts)


def make_plan(
    validation: Validation,
    foreign: Mapping[str, tuple[str, ...]],
    simulation: SimulationOptions,
    generated: Mapping[tuple[str, str], str],
) -> Plan:
    """What to run for valid objects. Keys in `generated` are used again, so that a reload does not change them.

    Raises NotSimulatedError.
    """
    objects = validation.objects
    fresh = _generated_keys(objects, generated)
    values = {**fresh, **objects.secret_values}
    pools = tuple(_plan_pool(placed.value, foreign.get(placed.value.name, ()), simulation) for placed in objects.pools)
    return Plan(objects, validation.warnings, pools, _accesses(objects, values, datetime.now(UTC)), values, fresh)


def _plan_pool(pool: ServingPool, foreign: tuple[str, ...], simulation: SimulationOptions) -> PoolPlan:
    derived = derive(pool)
    if foreign:
        return PoolPlan(pool, derived, foreign, None)
    hardware, shape = pool.spec.hardware, pool.spec.model.shape
    if shape is not None and shape.name is None:
        raise NotSimulatedError(
            f"The pool {pool.name} gives its model's shape by numbers, which the simulator does not take: give model.shape.name "
            f"(hlserve size --list), or serve the pool with --engine {pool.name}=URL."
        )
    arguments = (
        "--model-path", pool.spec.model.name,
        "--served-model-name", pool.spec.model.name,
        "--device", DEFAULT_ACCELERATOR if hardware is None else hardware.accelerator,
        "--model-shape", DEFAULT_SHAPE if shape is None or shape.name is None else shape.name,
        "--session-idle-timeout", str(simulation.session_idle_seconds),
        "--time-scale", str(simulation.time_scale),
        *engine_args(pool, derived),
    )  # fmt: skip
    spec = EngineSpec(pool.name, arguments, float(derived.grace_seconds), simulation.seed)
    replicas = DEFAULT_REPLICAS if pool.spec.replicas is None else pool.spec.replicas
    return PoolPlan(pool, derived, (), Wanted(spec, replicas))


def _generated_keys(objects: Objects, generated: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """Keys for credentials whose manifest names no Secret: on a cluster the operator would make one."""
    given = objects.secret_values
    fresh: dict[tuple[str, str], str] = {}
    for placed in objects.keys:
        for credential in placed.value.spec.credentials:
            place = credential.secret(placed.value.name)
            if credential.secret_ref is None and place not in given:
                fresh[place] = generated.get(place) or new_key()
    return fresh


def _accesses(objects: Objects, values: Mapping[tuple[str, str], str], now: datetime) -> tuple[Access, ...]:
    classes = {placed.value.name: placed.value for placed in objects.classes}
    accesses: list[Access] = []
    for placed in objects.keys:
        spec = placed.value.spec
        plain = [item for item in spec.credentials if item.encoding is KeyEncoding.PLAIN and _valid_at(item, now)]
        item = classes[spec.workload_class_ref.name]
        pools = [pool.value for target in item.spec.targets for pool in objects.pools_of(target)]
        models = [pool.spec.model.name for pool in pools if not spec.models or pool.spec.model.name in spec.models]
        if plain and models:
            key = values[plain[0].secret(placed.value.name)]
            names = tuple(dict.fromkeys(pool.name for pool in pools))
            accesses.append(Access(placed.value.name, key, item.name, names, models[0]))
    return tuple(accesses)


def _valid_at(credential: Credential, now: datetime) -> bool:
    started = credential.not_before is None or credential.not_before <= now
    return started and (credential.not_after is None or now < credential.not_after)


def _plural(word: str) -> str:
    return "es" if word.endswith("s") else "s"
