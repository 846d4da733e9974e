"""The arms that stand beside the demo's two: stronger class-blind ones, each cause alone, and other mixtures. Pure.

Every one runs the demo's cell. What has to be found by search (a batch, a cap) is a parameter; `demo_search` finds it on other seeds
than those that are shown.
"""

from dataclasses import dataclass, replace

from hlserve_capacity.engine.types import EngineConfig, SchedulePolicy
from hlserve_capacity.virtual.arms import Arm, PoolConfig, Shedding
from hlserve_local.demo_arms import DemoArm

SHED_AFTER_US = 900_000
AGENT_RETRY_US = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One arm of the benchmark page."""

    key: str
    title: str
    arm: DemoArm


def shedding(blind: DemoArm, max_running: int) -> DemoArm:
    """Class-blind with a bounded queue: what has not started after 0.9 s gets a 503; agents come again after 2 s."""
    arm = with_batch(blind, max_running)
    bound = Shedding(ttl_us=SHED_AFTER_US, agent_retry_us=AGENT_RETRY_US)
    return replace(arm, arm=replace(arm.arm, name="class-blind that sheds", shedding=bound))


def causes(blind: DemoArm, ours: DemoArm) -> list[Variant]:
    """From class-blind to HlServe, one change at a time."""
    shared = _engine(blind, blind.arm.agent_pool)
    chat = _engine(ours, ours.arm.chat_pool)
    agents = _engine(ours, ours.arm.agent_pool)
    admission = replace(shared, kv_aware_admission=True)
    batch = replace(admission, max_running_requests=agents.max_running_requests)
    greedy = replace(batch, chunked_prefill_size=agents.chunked_prefill_size, throughput_mode=True)
    steps = (
        ("split", "split 1 + 3, all engines with the class-blind flags", shared, shared),
        ("chat_flags", "… and the chat pool's own flags", chat, shared),
        ("admission", "… and KV-aware admission for agents", chat, admission),
        ("kv_batch", "… and a batch bounded by KV instead of TPOT", chat, batch),
        ("greedy", "… and greedy chunks", chat, greedy),
        ("lpm", "… and longest prefix first (= HlServe)", chat, agents),
    )
    return [
        Variant(key=f"cause_{key}", title=title, arm=_split(ours, title, first, second))
        for key, title, first, second in steps
    ]


def others(blind: DemoArm, ours: DemoArm) -> list[Variant]:
    """Mixtures that one may ask for."""
    shared = _engine(blind, blind.arm.agent_pool)
    agents = _engine(ours, ours.arm.agent_pool)
    first = replace(shared, priority_scheduling=True)
    lpm = replace(shared, schedule_policy=SchedulePolicy.LPM)
    rows = (
        (
            "admission_unsplit",
            "KV-aware admission without splitting",
            _shared(blind, replace(shared, kv_aware_admission=True)),
        ),
        ("lpm_unsplit", "class-blind with longest prefix first", _shared(blind, lpm)),
        ("chat_first", "class-blind with chat first in every queue", _prefer_chat(_shared(blind, first))),
        (
            "humanless_plain",
            "HumanLess flags on all four, without admission",
            _shared(blind, replace(agents, kv_aware_admission=False)),
        ),
        ("humanless", "HumanLess flags on all four", _shared(blind, agents)),
    )
    return [Variant(key=key, title=title, arm=_renamed(arm, title)) for key, title, arm in rows]


def with_batch(arm: DemoArm, max_running: int, chunk: int | None = None) -> DemoArm:
    """A one-pool arm with another batch, and another chunk if given."""
    engine = replace(_engine(arm, arm.arm.agent_pool), max_running_requests=max_running)
    if chunk is not None:
        engine = replace(engine, chunked_prefill_size=chunk)
    return _shared(arm, engine)


def _engine(arm: DemoArm, pool: str) -> EngineConfig:
    return next(config.engine for config in arm.arm.pools if config.name == pool)


def _shared(arm: DemoArm, engine: EngineConfig) -> DemoArm:
    pools = tuple(replace(pool, engine=engine) for pool in arm.arm.pools)
    return replace(arm, arm=replace(arm.arm, pools=pools))


def _split(ours: DemoArm, name: str, chat: EngineConfig, agents: EngineConfig) -> DemoArm:
    engines = {ours.arm.chat_pool: chat, ours.arm.agent_pool: agents}
    pools: tuple[PoolConfig, ...] = tuple(replace(pool, engine=engines[pool.name]) for pool in ours.arm.pools)
    return _renamed(replace(ours, arm=replace(ours.arm, pools=pools)), name)


def _prefer_chat(arm: DemoArm) -> DemoArm:
    return replace(arm, arm=replace(arm.arm, chat_priority=1))


def _renamed(arm: DemoArm, name: str) -> DemoArm:
    changed: Arm = replace(arm.arm, name=name)
    return replace(arm, arm=changed)
