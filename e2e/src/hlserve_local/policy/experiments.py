"""The experiments in virtual time: which arms are compared under which load, and their rows."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context

from hlserve_bench.traces.workload import LoadSpec, draw_workload, load_sample
from hlserve_capacity.engine.types import SchedulePolicy
from hlserve_capacity.virtual.cluster import Timeline
from hlserve_capacity.virtual.testing import Slo
from hlserve_local.demo_virtual import to_virtual
from hlserve_local.policy.arms import (
    CODERS,
    Arm,
    batch_spills,
    least_loaded,
    one_flow,
    quickstart,
    shared_pool,
    stock,
    with_agents_engine,
    with_session_idle,
    without_session_admission,
)
from hlserve_local.policy.cluster import Cluster
from hlserve_local.policy.load import Load, drive
from hlserve_local.policy.measures import measure

SEEDS = (11, 12, 13, 14, 15)
TIMELINE = Timeline(warm_up_us=60_000_000, window_us=180_000_000)
AGENTS_POOL = "agents"
PEER = "sglang-router cache_aware"
SLO = Slo(ttft_us=1_000_000, tpot_us=20_000)
IDLE_SECONDS = (1.0, 5.0, 15.0, 30.0)
FLOOD = ("coder-a", "coder-a", "coder-a", "coder-b", "coder-c", "coder-d")
"""Half of the sessions belong to one client."""


@dataclass(frozen=True, slots=True)
class Case:
    """One arm under one load."""

    experiment: str
    load: str
    arm: Arm
    sessions: int
    agents: tuple[str, ...] = CODERS
    batch_jobs: int = 0
    session_header: bool = True
    chat_rps: float = 2.0
    """Open-loop chat, which has a pool of its own unless the arm says otherwise."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    experiment: str
    load: str
    arm: str
    seed: int
    values: dict[str, float | int | None]


CHAT_COUNTS = frozenset({"queue", "batch"})
"""Experiments that are about chat too. In the others agents have engines of their own, and chat would only take time."""


def cases() -> Iterator[Case]:
    """Every arm of every experiment."""
    for case in _cases():
        yield case if case.experiment in CHAT_COUNTS else replace(case, chat_rps=0.0)


def _cases() -> Iterator[Case]:
    ours = quickstart()
    engines = {
        "HumanLess engine (own admission)": replace(ours, name="HumanLess engine (own admission)"),
        "stock engine, longest prefix first": with_agents_engine(
            ours, partial(stock, policy=SchedulePolicy.LPM), "stock engine, longest prefix first"
        ),
        "stock engine, first come first served": with_agents_engine(
            ours, partial(stock, policy=SchedulePolicy.FCFS), "stock engine, first come first served"
        ),
    }
    for sessions in (24, 36, 60):
        for name, arm in engines.items():
            load = f"{sessions} sessions, {name}"
            yield Case("admission", load, replace(arm, name="router admits sessions"), sessions)
            off = without_session_admission(arm)
            yield Case("admission", load, replace(off, name="router admits requests only"), sessions)
    yield from _session_idle(engines)
    lpm = engines["stock engine, longest prefix first"]
    plain = without_session_admission(lpm)
    for sessions in (24, 60):
        load = f"{sessions} sessions"
        yield Case("choice", load, replace(plain, name="affinity with escape, session header"), sessions)
        turn = replace(plain, name="affinity with escape, first turn only")
        yield Case("choice", load, turn, sessions, session_header=False)
        yield Case("choice", load, replace(least_loaded(lpm), name="least loaded"), sessions)
    yield from _beside_the_peer(engines)
    load = "chat 2 rps, 60 sessions on 4 engines"
    yield Case("queue", load, replace(shared_pool(one_queue=True), name="one queue, one pool"), 60)
    yield Case("queue", load, replace(shared_pool(one_queue=False), name="class queues, one pool"), 60)
    capped = replace(
        shared_pool(one_queue=False, agents_percent=50), name="class queues, agents hold at most half of one pool"
    )
    yield Case("queue", load, capped, 60)
    yield Case("queue", load, replace(ours, name="class queues and pools (quickstart)"), 60)
    load = "60 sessions, half of them one client's"
    yield Case("fairness", load, replace(lpm, name="fair between clients (default)"), 60, FLOOD)
    yield Case("fairness", load, replace(one_flow(lpm), name="first come, first served"), 60, FLOOD)
    yield Case("fairness", load, replace(plain, name="no session admission: the engines' queues decide"), 60, FLOOD)
    load = "chat 2 rps, 60 sessions, 16 batch jobs"
    yield Case("batch", load, replace(lpm, name="no spill (default)"), 60, batch_jobs=16)
    for percent in (20, 50):
        arm = replace(batch_spills(lpm, max_percent=percent), name=f"spill, maxPercent {percent}")
        yield Case("batch", load, arm, 60, batch_jobs=16)


def _session_idle(engines: Mapping[str, Arm]) -> Iterator[Case]:
    """How long a place is kept for a session's next round: too short and its prefix is gone, too long and places lie empty."""
    for name in ("stock engine, longest prefix first", "stock engine, first come first served"):
        for sessions in (36, 60):
            for seconds in IDLE_SECONDS:
                default = " (default)" if seconds == engines[name].pace.session_idle_seconds else ""
                arm = replace(with_session_idle(engines[name], seconds), name=f"{seconds:g} s{default}")
                yield Case("idle", f"{sessions} sessions, {name}", arm, sessions)


def _beside_the_peer(engines: Mapping[str, Arm]) -> Iterator[Case]:
    """Stock engines as an operator may have set them, our router before them, and sglang-router's policy."""
    for name in ("stock engine, longest prefix first", "stock engine, first come first served"):
        ours = engines[name]
        for sessions in (24, 36, 60):
            load = f"{sessions} sessions, {name}"
            yield Case("peer", load, replace(ours, name="HlServe, session admission"), sessions)
            plain = replace(without_session_admission(ours), name="HlServe, affinity only")
            yield Case("peer", load, plain, sessions)
            yield Case("peer", load, replace(least_loaded(ours), name="least loaded"), sessions)
            yield Case("peer", load, replace(plain, name=PEER, cache_aware=True), sessions)


def run_case(case: Case, seed: int, timeline: Timeline = TIMELINE) -> Row:
    """One run."""
    seconds = timeline.window_end_us / 1e6
    spec = LoadSpec(chat_rps=case.chat_rps, agent_sessions=case.sessions, ramp_seconds=5.0, duration_seconds=seconds)
    workload = to_virtual(draw_workload(load_sample(), spec, seed))
    arm = case.arm
    peer_pool = AGENTS_POOL if arm.cache_aware else None
    cluster = Cluster(arm.table, arm.keys, arm.engines, arm.pace, seed, peer_pool)
    done = drive(cluster, Load(workload, case.agents, case.batch_jobs, case.session_header), timeline)
    return Row(case.experiment, case.load, arm.name, seed, measure(done, timeline, SLO, AGENTS_POOL).values())


def run_all(seeds: Sequence[int], jobs: int) -> list[Row]:
    """Every case at every seed, `jobs` at a time; a run that several experiments have in common once."""
    asked = list(cases())
    once: list[Case] = []
    for case in asked:
        if all(_nameless(case) != _nameless(other) for other in once):
            once.append(case)
    tasks = [(case, seed) for case in once for seed in seeds]
    with ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(run_case, [case for case, _ in tasks], [seed for _, seed in tasks]))
    found: list[Row] = []
    for case in asked:
        same = next(index for index, other in enumerate(once) if _nameless(other) == _nameless(case))
        mine = rows[same * len(seeds) : (same + 1) * len(seeds)]
        found.extend(replace(row, experiment=case.experiment, load=case.load, arm=case.arm.name) for row in mine)
    return found


def _nameless(case: Case) -> Case:
    return replace(case, experiment="", load="", arm=replace(case.arm, name=""))
