"""What splitting by class buys, on a synthetic load of the demo's kind: four A100-80G, Llama-3.1-8B, TTFT 1 s, TPOT 20 ms.

Lengths are drawn like the public traces' (chat: input median 1,000, output 130; agents: contexts that grow to 30,000 tokens).
"""

from dataclasses import replace
from functools import cache
from math import log
from random import Random

import pytest

from hlserve_capacity import devices, shapes
from hlserve_capacity.engine.types import EngineConfig, SchedulePolicy
from hlserve_capacity.roofline import Roofline
from hlserve_capacity.virtual.arms import Arm, PoolConfig
from hlserve_capacity.virtual.cluster import Timeline, simulate
from hlserve_capacity.virtual.testing import Slo, WindowMetrics, window_metrics
from hlserve_capacity.virtual.workload import AgentRound, AgentSession, ChatArrival, Workload

SECOND = 1_000_000
COST = Roofline(shapes.by_name("llama-3.1-8b"), devices.by_name("A100"))
SLO = Slo(ttft_us=SECOND, tpot_us=20_000)
TIMELINE = Timeline(warm_up_us=60 * SECOND, window_us=90 * SECOND)
SEEDS = (1, 2)

BLIND = EngineConfig(
    pool_tokens=COST.pool_tokens, max_running_requests=5, chunked_prefill_size=96, mixed_chunk=True
)  # fmt: skip
CHAT = replace(BLIND, max_running_requests=21, chunked_prefill_size=128)
ADMITTED = replace(BLIND, kv_aware_admission=True)
HUMAN_LESS = replace(
    ADMITTED, max_running_requests=11, throughput_mode=True, schedule_policy=SchedulePolicy.LPM
)  # fmt: skip


def shared(engine: EngineConfig) -> Arm:
    return Arm(
        name="shared", pools=(PoolConfig(name="all", replicas=4, engine=engine),), chat_pool="all", agent_pool="all"
    )


def split(chat: EngineConfig, agents: EngineConfig) -> Arm:
    pools = (PoolConfig(name="chat", replicas=1, engine=chat), PoolConfig(name="agents", replicas=3, engine=agents))
    return Arm(name="split", pools=pools, chat_pool="chat", agent_pool="agents")


ARMS = {
    "class-blind": shared(BLIND),
    "split": split(BLIND, BLIND),
    "chat flags": split(CHAT, BLIND),
    "admission": split(CHAT, ADMITTED),
    "HlServe": split(CHAT, HUMAN_LESS),
}


@cache
def workload(seed: int) -> Workload:
    random = Random(seed)
    chat, at = [], 0.0
    while at < 150:
        at += random.expovariate(2.0)
        chat.append(
            ChatArrival(round(at * SECOND), lognormal(random, 900, 0.9, 5_000), lognormal(random, 130, 0.9, 800))
        )
    sessions = tuple(grown_session(random, f"s{number}") for number in range(150))
    return Workload(
        chat=tuple(chat),
        sessions=sessions,
        slot_start_us=tuple(slot * 5 * SECOND // 60 for slot in range(60)),
        first_rounds=tuple(random.randrange(len(sessions[slot].rounds)) for slot in range(60)),
    )


def lognormal(random: Random, median: float, sigma: float, most: int) -> int:
    return min(most, 1 + int(random.lognormvariate(log(median), sigma)))


def grown_session(random: Random, name: str) -> AgentSession:
    rounds = [AgentRound(random.randrange(22_000, 29_000), lognormal(random, 220, 1.0, 2_048))]
    for index in range(1, random.randrange(6, 13)):
        before = rounds[-1].input_tokens
        grown = min(30_700, before + lognormal(random, 400, 1.0, 5_000))
        think_us = random.randrange(2 * SECOND)
        rounds.append(AgentRound(grown, lognormal(random, 220, 1.0, 2_048), think_us, index - 1, before - before % 64))
    return AgentSession(name, tuple(rounds))


@cache
def metrics(arm: str, seed: int) -> WindowMetrics:
    return window_metrics(simulate(ARMS[arm], workload(seed), COST, TIMELINE), SLO)


@pytest.mark.parametrize("seed", SEEDS)
def test_hlserve_meets_the_chat_slo_and_gives_agents_more_than_half_as_much_again(seed: int) -> None:
    blind, ours = metrics("class-blind", seed), metrics("HlServe", seed)
    assert (blind.chat_goodput or 0) < 0.1
    assert (ours.chat_goodput or 0) > 0.95
    assert ours.agent_tokens_per_second > 1.5 * blind.agent_tokens_per_second
    assert ours.agent_sessions_per_hour > 1.5 * blind.agent_sessions_per_hour


def test_the_split_and_the_chat_flags_buy_chat_and_admission_buys_agents() -> None:
    blind, alone, chat_flags, admission = (
        metrics(arm, SEEDS[0]) for arm in ("class-blind", "split", "chat flags", "admission")
    )
    assert (alone.chat_goodput or 0) < 0.3
    assert (chat_flags.chat_goodput or 0) > 0.95
    assert chat_flags.agent_tokens_per_second < 1.1 * blind.agent_tokens_per_second, (
        "the split alone gives agents nothing"
    )
    assert admission.agent_tokens_per_second > 1.4 * chat_flags.agent_tokens_per_second
    assert (admission.agent_prefix_hit_rate or 0) > 2 * (chat_flags.agent_prefix_hit_rate or 0)
