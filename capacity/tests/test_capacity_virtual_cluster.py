"""The cluster by example: who sends when, where it goes, and what is written down."""

from dataclasses import replace
from random import Random

import pytest

from hlserve_capacity.engine.testing import LinearCost
from hlserve_capacity.engine.types import EngineConfig
from hlserve_capacity.virtual.arms import Arm, PoolConfig, Shedding
from hlserve_capacity.virtual.cluster import RunResult, Timeline, simulate
from hlserve_capacity.virtual.records import Outcome, RequestRecord, Traffic
from hlserve_capacity.virtual.testing import Slo, window_metrics
from hlserve_capacity.virtual.workload import AgentRound, AgentSession, ChatArrival, Workload

SECOND = 1_000_000
COST = LinearCost()
ENGINE = EngineConfig(pool_tokens=10_000, context_length=10_000, mixed_chunk=True)
TIMELINE = Timeline(warm_up_us=0, window_us=10 * SECOND, drain_us=2 * SECOND)


def blind(engine: EngineConfig = ENGINE, replicas: int = 1, **more: object) -> Arm:
    arm = Arm(
        name="blind",
        pools=(PoolConfig(name="all", replicas=replicas, engine=engine),),
        chat_pool="all",
        agent_pool="all",
    )
    return replace(arm, **more)  # type: ignore[arg-type]


def split(agents: int = 1) -> Arm:
    pools = (
        PoolConfig(name="chat", replicas=1, engine=ENGINE),
        PoolConfig(
            name="agents", replicas=agents, engine=replace(ENGINE, throughput_mode=True, kv_aware_admission=True)
        ),
    )
    return Arm(name="split", pools=pools, chat_pool="chat", agent_pool="agents")


def session(name: str, rounds: int = 3, think_us: int = 0, output_tokens: int = 5) -> AgentSession:
    made = [AgentRound(100, output_tokens)]
    for index in range(1, rounds):
        made.append(AgentRound(100 + 20 * index, output_tokens, think_us, index - 1, made[-1].input_tokens))
    return AgentSession(name, tuple(made))


def agents(slots: int, **shape: int) -> Workload:
    listed = tuple(session(f"s{number}", **shape) for number in range(3 * slots))
    return Workload(sessions=listed, slot_start_us=(0,) * slots, first_rounds=(0,) * slots)


def of(result: RunResult, traffic: Traffic) -> list[RequestRecord]:
    return [record for record in result.records if record.traffic is traffic]


def test_chat_is_open_loop_and_latency_counts_from_the_scheduled_time() -> None:
    chat = tuple(ChatArrival(at, 100, 3) for at in (0, 1_000, 5 * SECOND))
    result = simulate(blind(), Workload(chat=chat), COST, TIMELINE)
    first, second, third = result.records
    assert first.ttft_us == 8_400
    assert second.ttft_us == 8_400 - 1_000 + 8_700, "it waits for the step that runs, then shares one with a decode row"
    assert third.ttft_us == first.ttft_us
    assert first.outcome is Outcome.OK
    assert third.tpot_us == 8_300
    assert third.e2e_us == 8_400 + 2 * 8_300


def test_a_round_is_sent_after_the_former_reply_ended_and_the_think_time() -> None:
    result = simulate(blind(), agents(1, think_us=700_000), COST, TIMELINE)
    first, second, third, *_ = result.records
    assert first.end_us is not None
    assert second.scheduled_us == first.end_us + 700_000
    assert (first.round_index, second.round_index, third.round_index) == (0, 1, 2)
    assert second.cached_tokens == 100


def test_a_finished_session_is_replaced_at_once_by_a_new_one() -> None:
    result = simulate(blind(), agents(1), COST, TIMELINE)
    third, fourth = result.records[2:4]
    assert fourth.scheduled_us == third.end_us
    assert fourth.session != third.session
    assert fourth.cached_tokens == 0


def test_sessions_start_in_the_middle_and_over_time() -> None:
    listed = (session("a"), session("b"))
    workload = Workload(sessions=listed, slot_start_us=(0, 3 * SECOND), first_rounds=(2, 1))
    result = simulate(blind(), workload, COST, TIMELINE)
    starts = {record.session: record for record in reversed(result.records)}
    assert (starts["a#0"].scheduled_us, starts["a#0"].round_index) == (0, 2)
    assert (starts["b#1"].scheduled_us, starts["b#1"].round_index) == (3 * SECOND, 1)


def test_class_blind_mixes_the_traffic_and_a_split_does_not() -> None:
    workload = replace(agents(4), chat=tuple(ChatArrival(n * 100_000, 50, 5) for n in range(40)))
    mixed, apart = simulate(blind(replicas=2), workload, COST, TIMELINE), simulate(split(2), workload, COST, TIMELINE)
    assert {(r.traffic, r.pool) for r in apart.records} == {(Traffic.CHAT, "chat"), (Traffic.AGENT, "agents")}
    assert {r.replica for r in of(mixed, Traffic.CHAT)} == {r.replica for r in of(mixed, Traffic.AGENT)} == {0, 1}


def test_a_session_stays_on_its_engine_and_sessions_spread() -> None:
    listed = tuple(session(f"s{number}", 6, 100_000 + 70_000 * number, 20 + 17 * number) for number in range(18))
    workload = Workload(sessions=listed, slot_start_us=(0,) * 6, first_rounds=(0,) * 6)
    result = simulate(split(3), workload, COST, TIMELINE)
    homes: dict[str, set[int | None]] = {}
    for record in result.records:
        homes.setdefault(record.session or "", set()).add(record.replica)
    assert all(len(replicas) == 1 for replicas in homes.values())
    assert {next(iter(replicas)) for replicas in homes.values()} == {0, 1, 2}


def test_chat_goes_to_the_engine_with_the_fewest_prompt_tokens_in_flight() -> None:
    chat = (ChatArrival(0, 3_000, 400), ChatArrival(1, 100, 400), ChatArrival(2, 100, 400), ChatArrival(3, 100, 400))
    result = simulate(blind(replicas=2), Workload(chat=chat), COST, TIMELINE)
    assert [record.replica for record in result.records] == [0, 1, 1, 1]


def test_nothing_is_sent_after_the_window_and_the_drain_lets_replies_end() -> None:
    chat = (ChatArrival(10 * SECOND - 1, 100, 50), ChatArrival(10 * SECOND, 100, 5))
    result = simulate(blind(), replace(agents(2), chat=chat), COST, TIMELINE)
    assert len(of(result, Traffic.CHAT)) == 1
    assert of(result, Traffic.CHAT)[0].outcome is Outcome.OK
    assert max(record.scheduled_us for record in result.records) < 10 * SECOND


def test_what_the_drain_does_not_finish_is_unfinished_and_keeps_its_tokens() -> None:
    result = simulate(blind(), Workload(chat=(ChatArrival(0, 100, 5_000),)), COST, TIMELINE)
    record = result.records[0]
    assert record.outcome is Outcome.UNFINISHED
    assert record.end_us is None
    assert record.output_tokens == pytest.approx(12 * SECOND / 8_300, rel=0.01)
    assert record.tokens_between(0, 12 * SECOND) == pytest.approx(record.output_tokens)


# -- shedding and caps -------------------------------------------------------------------------------------------------

NARROW = replace(ENGINE, max_running_requests=1)


def test_what_waits_longer_than_its_time_to_live_is_shed_and_what_has_started_is_not() -> None:
    chat = tuple(ChatArrival(n, 100, 200) for n in range(3))
    result = simulate(blind(NARROW, shedding=Shedding(ttl_us=900_000)), Workload(chat=chat), COST, TIMELINE)
    first, *others = result.records
    assert first.outcome is Outcome.OK
    assert [(r.outcome, r.reason, (r.end_us or 0) - r.scheduled_us) for r in others] == [
        (Outcome.SHED, "queue_expired", 900_000)
    ] * 2


def test_a_full_queue_sheds_at_once() -> None:
    chat = tuple(ChatArrival(n, 100, 50) for n in range(4))
    result = simulate(blind(NARROW, shedding=Shedding(queued_per_replica=2)), Workload(chat=chat), COST, TIMELINE)
    assert [record.reason for record in result.records] == [None, None, None, "queue_full"]
    assert result.records[3].end_us == result.records[3].scheduled_us


def test_a_shed_agent_comes_again_and_its_wait_counts() -> None:
    workload = replace(agents(1), chat=(ChatArrival(0, 100, 200), ChatArrival(0, 100, 2)))
    arm = blind(NARROW, shedding=Shedding(queued_per_replica=1, agent_retry_us=2 * SECOND))
    result = simulate(arm, workload, COST, TIMELINE)
    agent = of(result, Traffic.AGENT)[0]
    assert agent.attempts == 2
    assert agent.sent_us == 2 * SECOND
    assert agent.ttft_us is not None
    assert agent.ttft_us > 2 * SECOND
    assert (agent.outcome, agent.reason) == (Outcome.OK, None)


def test_a_shed_agent_does_not_come_again_after_the_window() -> None:
    workload = replace(agents(1), chat=(ChatArrival(0, 100, 5_000), ChatArrival(0, 100, 2)))
    arm = blind(NARROW, shedding=Shedding(queued_per_replica=1, agent_retry_us=3 * SECOND))
    agent = of(simulate(arm, workload, COST, TIMELINE), Traffic.AGENT)[0]
    assert (agent.attempts, agent.outcome, agent.reason) == (4, Outcome.UNFINISHED, "queue_full")


def test_a_request_that_no_engine_can_hold_is_shed_with_the_engines_reason() -> None:
    result = simulate(blind(), Workload(chat=(ChatArrival(0, 10_000, 1),)), COST, TIMELINE)
    assert (result.records[0].outcome, result.records[0].reason) == (Outcome.SHED, "too_long")


def test_an_agent_request_that_no_engine_can_hold_ends_its_session() -> None:
    listed = (AgentSession("big", (AgentRound(10_000, 1),)), session("small"))
    workload = Workload(sessions=listed, slot_start_us=(0,), first_rounds=(0,))
    result = simulate(blind(), workload, COST, TIMELINE)
    assert [record.outcome for record in result.records[:2]] == [Outcome.SHED, Outcome.OK]
    assert result.records[1].session == "small#1"


def test_a_session_limit_holds_whole_sessions_back_and_lets_them_in_in_order() -> None:
    result = simulate(blind(agent_session_limit=2), agents(5), COST, TIMELINE)
    firsts = [record for record in result.records if record.round_index == 0]
    assert [record.session for record in firsts[:6]] == ["s0#0", "s1#1", "s2#2", "s3#3", "s4#4", "s5#5"]
    open_now, most = 0, 0
    edges = []
    for record in result.records:
        if record.round_index == 0:
            edges.append((record.scheduled_us, 1))
        if record.round_index == 2 and record.end_us is not None:
            edges.append((record.end_us, -1))
    for _, change in sorted(edges):
        open_now += change
        most = max(most, open_now)
    assert most == 2


def test_chat_first_serves_chat_before_agents_that_came_earlier() -> None:
    workload = replace(agents(6, output_tokens=40), chat=(ChatArrival(1_000, 100, 5),))
    waits = {}
    for priority in (0, 1):
        arm = blind(replace(NARROW, priority_scheduling=True), chat_priority=priority)
        waits[priority] = of(simulate(arm, workload, COST, TIMELINE), Traffic.CHAT)[0].ttft_us or 0
    assert waits[1] < 500_000 < waits[0]


# -- measuring ---------------------------------------------------------------------------------------------------------


def test_window_metrics_count_every_arrival_of_the_window_and_only_its_tokens() -> None:
    chat = tuple(ChatArrival(at * SECOND, 100, tokens) for at, tokens in ((1, 5), (4, 5), (5, 9_000), (6, 1)))
    timeline = Timeline(warm_up_us=2 * SECOND, window_us=8 * SECOND, drain_us=SECOND)
    metrics = window_metrics(
        simulate(blind(), Workload(chat=chat), COST, timeline), Slo(ttft_us=SECOND, tpot_us=20_000)
    )
    assert metrics.chat_requests == 3
    assert metrics.chat_goodput == pytest.approx(2 / 3)
    assert metrics.agent_rounds == 0
    assert metrics.agent_prefix_hit_rate is None


@pytest.mark.parametrize(
    ("slo", "goodput"),
    [(Slo(ttft_us=9_000, tpot_us=9_000), 1.0), (Slo(ttft_us=8_000, tpot_us=9_000), 0.0), (Slo(ttft_us=9_000, tpot_us=8_000), 0.0)],
    ids=["both met", "TTFT missed", "TPOT missed"],
)  # fmt: skip
def test_goodput_needs_both_bounds(slo: Slo, goodput: float) -> None:
    result = simulate(blind(), Workload(chat=(ChatArrival(0, 100, 5),)), COST, TIMELINE)
    assert window_metrics(result, slo).chat_goodput == goodput


def test_agent_throughput_is_tokens_and_fractions_of_sessions() -> None:
    result = simulate(blind(), agents(2), COST, TIMELINE)
    metrics = window_metrics(result, Slo(ttft_us=SECOND, tpot_us=SECOND))
    ended = [r for r in result.records if r.end_us is not None and r.end_us < 10 * SECOND]
    assert metrics.agent_rounds == len(ended)
    assert metrics.agent_sessions_per_hour == pytest.approx(len(ended) / 3 * 360)
    assert metrics.agent_tokens_per_second == pytest.approx(sum(r.output_tokens for r in ended) / 10, rel=0.01)
    assert metrics.chat_goodput is None


def test_the_same_run_twice_is_the_same() -> None:
    random = Random(7)
    chat = tuple(ChatArrival(n * 90_000, random.randrange(50, 400), random.randrange(1, 60)) for n in range(100))
    workload = replace(agents(8), chat=chat)
    first, second = (simulate(split(2), workload, COST, TIMELINE) for _ in range(2))
    assert first.records == second.records


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"agent_pool": "nowhere"}, "sends traffic to pool nowhere"),
        ({"pools": split().pools + split().pools}, "two pools of one name"),
    ],
    ids=["a pool that is not there", "two pools of one name"],
)
def test_an_arm_that_cannot_be_is_refused(change: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        replace(split(), **change)  # type: ignore[arg-type]


def test_a_queue_bound_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Shedding(queued_per_replica=0)


def test_a_pool_without_replicas_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        PoolConfig(name="empty", replicas=0, engine=ENGINE)
