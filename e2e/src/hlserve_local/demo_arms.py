"""From manifests to arms: the virtual engines get the very flags that `hlserve up` and the operator would give real ones."""

from dataclasses import dataclass
from pathlib import Path

from hlserve_bench.report.model import PoolReport
from hlserve_capacity.roofline import Roofline
from hlserve_capacity.virtual.arms import Arm, PoolConfig
from hlserve_local.demo_cell import AGENT_CLIENT, CHAT_CLIENT, CLASS_BLIND, QUICKSTART, find_examples
from hlserve_local.planning import Plan, SimulationOptions, make_plan
from hlserve_local.validation import validate
from hlserve_sim.engine_setup import resolve
from hlserve_sim.flags import parse

NAMES = {CLASS_BLIND: "class-blind", QUICKSTART: "HlServe"}
DESCRIPTIONS = {
    CLASS_BLIND: "One shared pool with session affinity and one unbounded queue, first come, first served; its engines run with the "
    "largest batch and chunk that keep the time per output token.",
    QUICKSTART: "An Interactive pool for chat and a HumanLess pool for agents; the flags of each are derived from its manifest.",
}


@dataclass(frozen=True, slots=True)
class DemoArm:
    """One arm as its manifests describe it."""

    arm: Arm
    pools: dict[str, PoolReport]
    description: str
    device: str
    model: str
    cost: Roofline


def demo_arm(folder: str, examples: Path | None = None) -> DemoArm:
    """The arm that the manifests in `examples/<folder>` make. Raises ExamplesMissingError, ValueError for refused manifests."""
    return arm_from_plan(folder, plan_of((examples or find_examples()) / folder))


def plan_of(folder: Path) -> Plan:
    """What `hlserve up -f folder` would run."""
    validation = validate(folder)
    if not validation.usable:
        raise ValueError("\n".join(str(problem) for problem in validation.problems))
    return make_plan(validation, {}, SimulationOptions(), {})


def arm_from_plan(folder: str, plan: Plan) -> DemoArm:
    """The arm of one plan: its pools, and which of them each client's class goes to first."""
    configs: list[PoolConfig] = []
    costs: list[Roofline] = []
    devices: set[str] = set()
    for wanted in plan.wanted:
        flags = parse(wanted.spec.arguments)
        setup = resolve(flags)
        configs.append(
            PoolConfig(name=wanted.spec.pool, replicas=wanted.replicas, engine=setup.config, cost=setup.cost)
        )
        costs.append(setup.cost)
        devices.add(setup.cost.device.name)
    replicas = sum(config.replicas for config in configs)
    return DemoArm(
        arm=Arm(
            name=NAMES.get(folder, folder),
            pools=tuple(configs),
            chat_pool=first_pool(plan, CHAT_CLIENT),
            agent_pool=first_pool(plan, AGENT_CLIENT),
        ),
        pools=pool_reports(plan),
        description=DESCRIPTIONS.get(folder, ""),
        device=f"{replicas} × {', '.join(sorted(devices))}",
        model=costs[0].shape.name,
        cost=costs[0],
    )


def pool_reports(plan: Plan) -> dict[str, PoolReport]:
    """The pools as a report shows them: mode, engines, and the flags that the manifests lead to."""
    modes = {pool.name: pool.pool.spec.mode for pool in plan.pools}
    return {
        wanted.spec.pool: PoolReport(
            mode=str(modes[wanted.spec.pool]),
            replicas=wanted.replicas,
            flags=_pairs(wanted.spec.arguments),
        )
        for wanted in plan.wanted
    }


def first_pool(plan: Plan, client: str) -> str:
    """The pool that requests of a client's own class go to first."""
    for access in plan.accesses:
        if access.client == client:
            return access.pools[0]
    raise ValueError(f"The manifests have no ClientKey {client}, which the demo sends with: add it.")


def _pairs(arguments: tuple[str, ...]) -> list[str]:
    """`--flag value` as one text each."""
    pairs: list[str] = []
    for argument in arguments:
        if argument.startswith("--") or not pairs:
            pairs.append(argument)
        else:
            pairs[-1] = f"{pairs[-1]} {argument}"
    return list(dict.fromkeys(pairs))
