"""Replay: lengths, prefixes and seeds are exact."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlserve_bench.traces.agentic import AgentRound, AgentSession
from hlserve_bench.traces.replay import ReplayRules, scale_session, unique_tokens
from hlserve_bench.traces.workload import LoadSpec, TraceSample, draw_workload, load_sample

RULES = ReplayRules()


@pytest.fixture(scope="module")
def sample() -> TraceSample:
    return load_sample()


def common(first: list[int], second: list[int]) -> int:
    length = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        length += 1
    return length


@st.composite
def sessions(draw: st.DrawFn) -> AgentSession:
    rounds: list[AgentRound] = []
    for _ in range(draw(st.integers(1, 20))):
        size = draw(st.integers(1, 5000))
        reachable = max((row.input_tokens for row in rounds[-3:]), default=0)
        rounds.append(
            AgentRound(
                input_tokens=size,
                output_tokens=draw(st.integers(0, 4000)),
                prefix_tokens=draw(st.integers(0, min(size, reachable))),
                think_seconds=draw(st.floats(0, 100)),
            )
        )
    return AgentSession("s", 0, tuple(rounds))


@settings(max_examples=60, deadline=None)
@given(session=sessions(), limit=st.integers(2049, 9000))
def test_scaled_sessions_keep_the_rules_and_exact_prefixes(session: AgentSession, limit: int) -> None:
    rules = replace(RULES, max_context_tokens=limit)
    scaled = scale_session(session, rules)
    assert len(scaled.rounds) == min(len(session.rounds), rules.max_rounds)
    prompts = [scaled.prompt(index, namespace=7) for index in range(len(scaled.rounds))]
    for index, row in enumerate(scaled.rounds):
        assert len(prompts[index]) == row.input_tokens >= 1
        assert 1 <= row.output_tokens <= rules.max_output_tokens
        assert row.input_tokens + row.output_tokens <= limit
        assert row.think_seconds <= rules.max_think_seconds
        if row.parent is not None:
            assert common(prompts[index], prompts[row.parent]) == row.prefix_tokens


def test_the_sample_keeps_its_rules(sample: TraceSample) -> None:
    scaled = [scale_session(session, RULES) for session in sample.agents]
    rounds = [row for session in scaled for row in session.rounds]
    assert len(sample.agents) == 300
    assert max(len(session.rounds) for session in scaled) == 12
    assert max(row.input_tokens + row.output_tokens for row in rounds) == 32_768
    assert max(row.output_tokens for row in rounds) <= 2048
    assert max(row.think_seconds for row in rounds) == 2.0
    shared = sum(row.prefix_tokens for row in rounds) / sum(row.input_tokens for row in rounds)
    assert shared > 0.8, "agents reread most of their prompts; a sample without that would not show a cache"


def test_prompts_of_a_run_share_nothing_but_what_the_trace_says(sample: TraceSample) -> None:
    short = ReplayRules(max_context_tokens=200, max_output_tokens=20)
    workload = draw_workload(sample, LoadSpec(agent_sessions=4, duration_seconds=5, rules=short), seed=1)
    starts = [arrival.prompt()[0] for arrival in workload.chat]
    starts += [workload.agent_run(slot, position).prompt(0)[0] for slot in range(4) for position in range(200)]
    assert len(set(starts)) == len(starts)
    assert max(starts) < 10**9


def test_a_seed_is_a_workload(sample: TraceSample) -> None:
    spec = LoadSpec()
    assert draw_workload(sample, spec, 3) == draw_workload(sample, spec, 3)
    digests = {draw_workload(sample, spec, seed).digest for seed in range(6)}
    assert len(digests) == 6


def test_the_digest_sees_the_load(sample: TraceSample) -> None:
    one = draw_workload(sample, LoadSpec(), 3).digest
    assert one != draw_workload(sample, LoadSpec(chat_rps=2.1), 3).digest
    assert one != draw_workload(sample, LoadSpec(rules=ReplayRules(max_think_seconds=1.0)), 3).digest


def test_agents_start_mid_session_and_chat_is_poisson_at_the_rate(sample: TraceSample) -> None:
    few = TraceSample(sample.chat, sample.agents[:60])
    counts = []
    for seed in range(20):
        workload = draw_workload(few, LoadSpec(duration_seconds=300), seed)
        counts.append(len(workload.chat))
        assert len(set(workload.first_rounds)) > 5
        times = [arrival.at_seconds for arrival in workload.chat]
        assert times == sorted(times)
    # 20 runs of 300 s at 2 rps: 12,000 arrivals, standard deviation 110.
    assert abs(sum(counts) - 12_000) < 440


def test_a_slot_goes_on_with_other_sessions(sample: TraceSample) -> None:
    workload = draw_workload(sample, LoadSpec(agent_sessions=60), 1)
    runs = [workload.agent_run(5, position) for position in range(5)]
    assert len({run.session.session_id for run in runs}) == 5
    assert [run.first_round for run in runs[1:]] == [0, 0, 0, 0]
    again = workload.agent_run(5, 5)
    assert again.session == runs[0].session
    assert again.affinity_key != runs[0].affinity_key


def test_unique_tokens_have_the_length_asked_for() -> None:
    assert [len(unique_tokens(1, 0, count)) for count in (0, 1, 5)] == [0, 1, 5]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"max_rounds": 0}, id="no rounds"),
        pytest.param({"max_rounds": 257}, id="more rounds than a namespace holds"),
        pytest.param({"max_output_tokens": 32_768}, id="replies as long as the context"),
    ],
)
def test_rules_that_cannot_be_kept_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        replace(RULES, **wrong)
