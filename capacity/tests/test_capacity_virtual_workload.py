"""Prompts of a virtual run: exact prefixes, and nothing shared that should not be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_capacity.virtual.workload import AgentRound, AgentSession, ChatArrival, Workload, chat_prompt


def shared_tokens(first: list[int], second: list[int]) -> int:
    count = 0
    while count < min(len(first), len(second)) and first[count] == second[count]:
        count += 1
    return count


@st.composite
def sessions(draw: st.DrawFn) -> AgentSession:
    rounds: list[AgentRound] = []
    for index in range(draw(st.integers(1, 5))):
        tokens = draw(st.integers(1, 40))
        parent = draw(st.one_of(st.none(), st.integers(0, index - 1))) if index else None
        prefix = draw(st.integers(0, min(tokens, rounds[parent].input_tokens))) if parent is not None else 0
        rounds.append(AgentRound(tokens, 5, 0, parent, prefix))
    return AgentSession("s", tuple(rounds))


@given(session=sessions())
def test_a_prompt_has_its_length_and_shares_exactly_its_prefix_with_its_parent(session: AgentSession) -> None:
    run = Workload(sessions=(session,), slot_start_us=(0,), first_rounds=(0,)).run_of(0, 0)
    for index, current in enumerate(session.rounds):
        prompt = list(run.prompt(index))
        assert len(prompt) == current.input_tokens
        if current.parent is not None:
            assert shared_tokens(prompt, list(run.prompt(current.parent))) == current.prefix_tokens


def test_two_sessions_two_replays_of_one_session_and_chat_share_nothing() -> None:
    session = AgentSession("s", (AgentRound(10, 1),))
    workload = Workload(sessions=(session,), slot_start_us=(0, 0), first_rounds=(0, 0))
    prompts = [list(workload.run_of(slot, position).prompt()) for slot in (0, 1) for position in (0, 1)]
    prompts += [list(chat_prompt(number, 10)) for number in (0, 1)]
    assert len({prompt[0] for prompt in prompts}) == len(prompts)


def test_slots_walk_through_the_sessions_and_only_the_first_starts_in_the_middle() -> None:
    listed = tuple(AgentSession(f"s{n}", (AgentRound(10, 1), AgentRound(12, 1))) for n in range(3))
    workload = Workload(sessions=listed, slot_start_us=(0, 0), first_rounds=(1, 0))
    runs = [workload.run_of(0, position) for position in range(4)]
    assert [run.session.id for run in runs] == ["s0", "s2", "s1", "s0"]
    assert [run.round_index for run in runs] == [1, 0, 0, 0]
    assert len({run.key for run in runs}) == 4


@pytest.mark.parametrize(
    ("rounds", "match"),
    [
        ((), "1 to 4096"),
        ((AgentRound(10, 1, 0, 0, 5),), "not an earlier one"),
        ((AgentRound(10, 1), AgentRound(20, 1, 0, 0, 11)), "more tokens than one of the prompts"),
    ],
    ids=["no round", "a round that continues itself", "a prefix longer than the parent"],
)
def test_a_session_that_cannot_be_is_refused(rounds: tuple[AgentRound, ...], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        AgentSession("s", rounds)


@pytest.mark.parametrize(
    ("starts", "firsts", "listed", "match"),
    [
        ((0, 0), (0,), 1, "2 slot starts but 1 first rounds"),
        ((0,), (0,), 0, "at least one session"),
        ((0,), (2,), 1, "starts at round 2"),
    ],
    ids=["unequal lists", "no session", "a first round past the end"],
)
def test_slots_that_cannot_be_are_refused(
    starts: tuple[int, ...], firsts: tuple[int, ...], listed: int, match: str
) -> None:
    session = AgentSession("s", (AgentRound(10, 1), AgentRound(12, 1)))
    with pytest.raises(ValueError, match=match):
        Workload(sessions=(session,) * listed, slot_start_us=starts, first_rounds=firsts)


def test_a_workload_may_be_chat_only() -> None:
    assert Workload(chat=(ChatArrival(0, 1, 1),)).slot_start_us == ()
