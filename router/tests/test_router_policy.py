"""Step 6: the choice of an endpoint."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hlserve_api.routing import Intent
from hlserve_router.policy import ESCAPE_GAP_TOKENS, Pick, has_room, load_of, pick
from hlserve_router.state import AffinityResult, EndpointView


def view(id_: str, tokens: float = 0, **changes: Any) -> EndpointView:
    defaults: dict[str, Any] = {
        "id": id_, "pool": "p", "weight": 1, "in_flight": 0, "load_tokens": tokens, "max_in_flight": None,
        "in_flight_tokens": int(tokens), "max_in_flight_tokens": None, "usable": True, "ramp": 1.0, "sessions": 0,
    }  # fmt: skip
    return EndpointView(**{**defaults, **changes})


def chosen(
    intent: Intent, views: list[EndpointView], key: str | None = None, home: str | None = None, turn: int = 0
) -> str | None:
    found = pick(intent, views, 10, key, home, turn)
    return None if found is None else views[found.index].id


def test_interactive_goes_to_the_least_loaded_even_with_a_session() -> None:
    assert chosen(Intent.INTERACTIVE, [view("a", 500), view("b", 100)], "s", "a") == "b"


def test_equal_loads_are_taken_in_turn() -> None:
    views = [view("a"), view("b"), view("c")]
    assert {chosen(Intent.INTERACTIVE, views, turn=turn) for turn in range(3)} == {"a", "b", "c"}


def test_weight_counts() -> None:
    assert chosen(Intent.INTERACTIVE, [view("a", 100), view("b", 150, weight=2)]) == "b"


def test_a_young_endpoint_takes_less_than_its_share() -> None:
    assert chosen(Intent.INTERACTIVE, [view("old", 500), view("young", 100, ramp=0.1)]) == "old"
    assert chosen(Intent.INTERACTIVE, [view("old", 5000), view("young", 100, ramp=0.1)]) == "young"


def test_an_agent_goes_back_home() -> None:
    found = pick(Intent.AGENT, [view("a", 5000), view("b")], 10, "s", "a", 0)
    assert found == Pick(0, AffinityResult.HIT)


def test_an_agent_leaves_a_home_that_is_far_more_loaded() -> None:
    found = pick(Intent.AGENT, [view("a", 2 * ESCAPE_GAP_TOKENS), view("b")], 10, "s", "a", 0)
    assert found == Pick(1, AffinityResult.ESCAPED)


def test_a_gap_alone_is_no_reason_to_leave() -> None:
    loads = [view("a", 10 * ESCAPE_GAP_TOKENS), view("b", 8 * ESCAPE_GAP_TOKENS)]
    assert chosen(Intent.AGENT, loads, "s", "a") == "a"


def test_a_full_home_is_left_for_now_and_a_dead_one_for_good() -> None:
    full = [view("a", in_flight=3, max_in_flight=3), view("b")]
    assert pick(Intent.AGENT, full, 10, "s", "a", 0) == Pick(1, AffinityResult.ESCAPED)
    dead = [view("a", usable=False), view("b")]
    assert pick(Intent.AGENT, dead, 10, "s", "a", 0) == Pick(1, AffinityResult.MISS)


def test_no_room_anywhere_is_no_choice() -> None:
    views = [
        view("a", usable=False),
        view("b", in_flight=2, max_in_flight=2),
        view("c", 95, in_flight=1, max_in_flight_tokens=100),
    ]
    assert chosen(Intent.AGENT, views, "s") is None


def test_one_request_above_the_token_bound_is_taken_alone() -> None:
    assert has_room(view("a", max_in_flight_tokens=5), 10)
    assert not has_room(view("a", in_flight=1, max_in_flight_tokens=5), 10)


def test_every_router_finds_the_same_home_for_a_new_session() -> None:
    views = [view(name) for name in "abcd"]
    for key in range(50):
        homes = {chosen(Intent.AGENT, views[turn:] + views[:turn], str(key), turn=turn) for turn in range(4)}
        assert len(homes) == 1


def test_sessions_spread_and_few_move_when_an_endpoint_joins() -> None:
    three = [view(name) for name in "abc"]
    four = [*three, view("d")]
    before = {key: chosen(Intent.AGENT, three, str(key)) for key in range(3000)}
    after = {key: chosen(Intent.AGENT, four, str(key)) for key in range(3000)}
    moved = [key for key in before if before[key] != after[key]]
    assert all(after[key] == "d" for key in moved)
    assert 600 < len(moved) < 900
    assert all(850 < count < 1150 for count in Counter(before.values()).values())


def test_sixty_four_sessions_of_one_prompt_are_bounded_on_every_endpoint() -> None:
    sessions: Counter[str] = Counter()
    for key in range(64):
        views = [view(name, sessions=sessions[name]) for name in "abcd"]
        home = chosen(Intent.AGENT, views, f"s{key}")
        assert home is not None
        sessions[home] += 1
    assert max(sessions.values()) <= 1.4 * 16


views_ = st.lists(
    st.builds(
        lambda name, load, in_flight, usable, ramp, weight: view(
            name, load, in_flight=in_flight, max_in_flight=4, usable=usable, ramp=ramp, weight=weight
        ),
        st.uuids().map(str), st.integers(0, 10**6), st.integers(0, 5), st.booleans(), st.floats(0.1, 1), st.integers(1, 100),
    ),
    max_size=8,
)  # fmt: skip


@given(views_, st.sampled_from(list(Intent)), st.none() | st.text(max_size=5), st.integers(0, 99))
def test_what_is_picked_has_room_and_is_never_far_more_loaded(
    views: list[EndpointView], intent: Intent, key: str | None, turn: int
) -> None:
    found = pick(intent, views, 10, key, views[0].id if views else None, turn)
    with_room = [candidate for candidate in views if has_room(candidate, 10)]
    assert (found is None) == (not with_room)
    if found is not None:
        assert views[found.index] in with_room
        lightest = min(load_of(candidate) for candidate in with_room)
        gap = load_of(views[found.index]) - lightest
        assert gap <= ESCAPE_GAP_TOKENS or load_of(views[found.index]) <= 1.5 * lightest
        if intent is Intent.INTERACTIVE:
            assert gap == 0
