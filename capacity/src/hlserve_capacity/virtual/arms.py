"""What is compared: pools of engines, and how the router sends the two kinds of traffic to them."""

from dataclasses import dataclass

from hlserve_capacity.engine.types import EngineConfig, StepCost


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """Engines with the same flags. `cost` None: the run's."""

    name: str
    replicas: int
    engine: EngineConfig
    cost: StepCost | None = None

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError(f"pool {self.name} has {self.replicas} replicas; it needs at least one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shedding:
    """The router refuses what would wait too long. Agents come again, a person does not."""

    queued_per_replica: int | None = None
    """With as many waiting already: 503."""
    ttl_us: int | None = None
    """Not started after this long: 503."""
    agent_retry_us: int = 2_000_000

    def __post_init__(self) -> None:
        if self.queued_per_replica is not None and self.queued_per_replica < 1:
            raise ValueError(
                "queued_per_replica must be at least 1: a request passes the queue even if it starts at once"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to serve the load.

    `chat_pool` and `agent_pool` are names of `pools`; the same name for both is class-blind. Chat goes to the replica with the
    fewest prompt tokens in flight; an agent's session stays where its first round went.
    """

    name: str
    pools: tuple[PoolConfig, ...]
    chat_pool: str
    agent_pool: str
    shedding: Shedding | None = None
    agent_session_limit: int | None = None
    """At most this many agent sessions at once; the others wait, in order, until one has ended."""
    chat_priority: int = 0
    """Priority of chat over agents, for engines that schedule by priority."""

    def __post_init__(self) -> None:
        names = [pool.name for pool in self.pools]
        if len(set(names)) != len(names):
            raise ValueError(f"arm {self.name} has two pools of one name")
        for wanted in (self.chat_pool, self.agent_pool):
            if wanted not in names:
                raise ValueError(f"arm {self.name} sends traffic to pool {wanted}, but has {', '.join(names)}")
