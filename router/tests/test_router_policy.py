"""Step 6: the choice of an endpoint."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_api.routing import Intent
from hlserve_router.endpoint import EndpointState
from hlserve_router.policy import ESCAPE_MAX_TOKENS, ESCAPE_MIN_TOKENS, ESCAPE_RATIO, Pick, fits, pick
from hlserve_router.sessions import Session
from hlserve_router.state import AffinityResult, NoPlace, Pace
from hlserve_router.testing.choice import a_session, an_ask, an_endpoint, an_offer


def chosen(
    endpoints: list[EndpointState], key: str | None = None, session: Session | None = None, **changes: Any
) -> str | NoPlace:
    found = pick([an_offer(*endpoints)], an_ask(key, session, **changes), 100.0)
    return found.endpoint.id if isinstance(found, Pick) else found


def fared(endpoints: list[EndpointState], session: Session, **changes: Any) -> tuple[str, AffinityResult] | NoPlace:
    found = pick([an_offer(*endpoints)], an_ask("s", session, **changes), 100.0)
    return (found.endpoint.id, found.affinity) if isinstance(found, Pick) else found


def test_interactive_goes_to_the_least_loaded_even_with_a_session() -> None:
    a, b = an_endpoint("a", 500), an_endpoint("b", 100)
    assert chosen([a, b], "s", a_session(a), intent=Intent.INTERACTIVE) == "b"


def test_of_equals_the_one_that_was_taken_longest_ago_is_next() -> None:
    assert chosen([an_endpoint("a", turn=3), an_endpoint("b", turn=1), an_endpoint("c", turn=2)]) == "b"


def test_weight_counts() -> None:
    offers = [an_offer(an_endpoint("a", 100)), an_offer(an_endpoint("b", 150), weight=2)]
    found = pick(offers, an_ask(intent=Intent.INTERACTIVE), 0.0)
    assert isinstance(found, Pick)
    assert found.endpoint.id == "b"


def test_a_young_endpoint_takes_less_than_its_share() -> None:
    young = an_endpoint("young", 100, seasoned=False, added_at=100.0)
    assert chosen([an_endpoint("old", 500), young]) == "old"
    assert chosen([an_endpoint("old", 5000), young]) == "young"


@pytest.mark.parametrize(("age", "room"), [(0.0, 1), (10.0, 4), (20.0, 8), (99.0, 8)])
def test_the_bound_of_a_young_endpoint_grows_with_it(age: float, room: int) -> None:
    young = an_endpoint("young", seasoned=False, added_at=0.0, pace=Pace(slow_start_seconds=20.0))
    for young.in_flight in range(room):
        assert isinstance(pick([an_offer(young, max_in_flight=8)], an_ask(), age), Pick)
    young.in_flight = room
    assert pick([an_offer(young, max_in_flight=8)], an_ask(), age) is NoPlace.FULL


def test_an_agent_goes_back_home() -> None:
    a, b = an_endpoint("a", 5000), an_endpoint("b")
    assert fared([a, b], a_session(a)) == ("a", AffinityResult.HIT)


@pytest.mark.parametrize(
    ("work", "context", "intent", "result"),
    [
        pytest.param(
            ESCAPE_MIN_TOKENS + 2, 1000, Intent.AGENT, AffinityResult.ESCAPED, id="a short session leaves early"
        ),
        pytest.param(ESCAPE_MIN_TOKENS - 2, 1000, Intent.AGENT, AffinityResult.HIT, id="but not for a little"),
        pytest.param(40_000, 50_000, Intent.AGENT, AffinityResult.HIT, id="a miss would cost more than the wait"),
        pytest.param(60_000, 50_000, Intent.AGENT, AffinityResult.ESCAPED, id="a miss would cost less"),
        pytest.param(
            ESCAPE_MAX_TOKENS[Intent.AGENT] + 2, 10**6, Intent.AGENT, AffinityResult.ESCAPED, id="the class's bound"
        ),
        pytest.param(
            ESCAPE_MAX_TOKENS[Intent.AGENT] + 2, 10**6, Intent.BATCH, AffinityResult.HIT, id="Batch waits longer"
        ),
    ],
)
def test_a_home_is_left_when_waiting_costs_more_than_a_miss(
    work: int, context: int, intent: Intent, result: AffinityResult
) -> None:
    a, b = an_endpoint("a", work), an_endpoint("b")
    found = fared([a, b], a_session(a, context_tokens=context), intent=intent)
    assert isinstance(found, tuple)
    assert found[1] is result


@pytest.mark.parametrize(
    ("others", "result"), [(0, AffinityResult.ESCAPED), (1, AffinityResult.HIT), (8, AffinityResult.HIT)]
)
def test_a_miss_costs_those_too_that_are_at_the_other_endpoint(others: int, result: AffinityResult) -> None:
    a, b = an_endpoint("a", 60_000), an_endpoint("b", in_flight=others)
    assert fared([a, b], a_session(a, context_tokens=50_000)) == (
        "b" if result is AffinityResult.ESCAPED else "a",
        result,
    )


def test_work_alone_is_no_reason_to_leave_if_the_others_have_as_much() -> None:
    a, b = an_endpoint("a", 10 * ESCAPE_MIN_TOKENS), an_endpoint("b", 8 * ESCAPE_MIN_TOKENS)
    assert chosen([a, b], "s", a_session(a)) == "a"


def test_a_home_without_a_free_slot_is_waited_for_and_then_left_for_this_once() -> None:
    a, b = an_endpoint("a", 10, in_flight=3), an_endpoint("b")
    offer, session = an_offer(a, b, max_in_flight=3), a_session(a)
    assert pick([offer], an_ask("s", session), 0.0) is NoPlace.TIGHT
    found = pick([offer], an_ask("s", session, waited_seconds=3.1), 0.0)
    assert isinstance(found, Pick)
    assert (found.endpoint.id, found.affinity) == ("b", AffinityResult.ESCAPED)
    session.in_flight = 1
    found = pick([offer], an_ask("s", session), 0.0)
    assert isinstance(found, Pick), "what runs beside another request of its session waits for no endpoint"


def test_a_dead_home_is_left_for_good_and_a_busy_one_for_now() -> None:
    dead, busy, other = an_endpoint("a", reachable=False), an_endpoint("c", busy_until=200.0), an_endpoint("b")
    assert fared([dead, other], a_session(dead)) == ("b", AffinityResult.MISS)
    assert fared([busy, other], a_session(busy)) == ("b", AffinityResult.ESCAPED)


def test_no_room_anywhere_is_no_choice() -> None:
    full = an_endpoint("b", in_flight=2)
    assert pick([an_offer(an_endpoint("a", reachable=False), full, max_in_flight=2)], an_ask(), 0.0) is NoPlace.FULL
    assert pick([an_offer(an_endpoint("c", 95), max_tokens=100)], an_ask("s"), 0.0) is NoPlace.TIGHT
    assert pick([an_offer()], an_ask(), 0.0) is NoPlace.EMPTY
    assert pick([an_offer(an_endpoint("a", reachable=False))], an_ask(), 0.0) is NoPlace.DOWN
    assert pick([an_offer(an_endpoint("a", draining=True))], an_ask(), 0.0) is NoPlace.DRAINING
    assert pick([an_offer(an_endpoint("a", busy_until=9.0))], an_ask(), 0.0) is NoPlace.BUSY


def test_breakers_never_take_out_the_last_endpoint() -> None:
    open_ = {"opened": True, "open_until": 200.0}
    assert chosen([an_endpoint("a", 50, **open_), an_endpoint("b", 10, **open_)]) == "b"
    assert chosen([an_endpoint("a", 50, **open_), an_endpoint("b", 10, **open_, reachable=False)]) == "a"
    assert chosen([an_endpoint("a", 50), an_endpoint("b", 10, **open_)]) == "a"


def test_one_request_above_the_token_bound_is_taken_alone() -> None:
    offer = an_offer(max_tokens=5)
    assert fits(offer.pool, an_endpoint("a"), an_ask())
    assert not fits(offer.pool, an_endpoint("a", 1), an_ask())


def test_a_session_that_is_not_active_needs_room_beside_those_that_are() -> None:
    full, roomy = an_endpoint("a", held_tokens=995, kv_budget=1000), an_endpoint("b", held_tokens=10, kv_budget=1000)
    assert chosen([full], "new") is NoPlace.TIGHT
    assert chosen([full], "s", a_session(full)) == "a", "an active one is counted already"
    assert chosen([full], "s", a_session(full, active=False)) is NoPlace.TIGHT
    assert fared([full, roomy], a_session(full, active=False)) == ("b", AffinityResult.MISS), "it settles anew"
    assert chosen([an_endpoint("c", kv_budget=5)], "new") == "c", "one above the whole bound is taken alone"


def test_every_router_finds_the_same_home_for_a_new_session() -> None:
    names = "abcd"
    for key in range(50):
        homes = {
            chosen([an_endpoint(name, turn=turn) for name in names[turn:] + names[:turn]], str(key))
            for turn in range(4)
        }
        assert len(homes) == 1


def test_sessions_spread_and_few_move_when_an_endpoint_joins() -> None:
    three = [an_endpoint(name) for name in "abc"]
    four = [*three, an_endpoint("d")]
    before = {key: chosen(three, str(key)) for key in range(3000)}
    after = {key: chosen(four, str(key)) for key in range(3000)}
    moved = [key for key in before if before[key] != after[key]]
    assert all(after[key] == "d" for key in moved)
    assert 600 < len(moved) < 900
    assert all(850 < count < 1150 for count in Counter(before.values()).values())


@pytest.mark.parametrize("known", [False, True], ids=["by sessions", "by KV"])
def test_b59_sixty_four_sessions_of_one_prompt_are_bounded_on_every_endpoint(known: bool) -> None:
    endpoints = {name: an_endpoint(name, kv_budget=10**6 if known else None) for name in "abcd"}
    for key in range(64):
        home = chosen(list(endpoints.values()), f"s{key}")
        assert isinstance(home, str)
        endpoints[home].sessions += 1
        endpoints[home].held_tokens += 6_000
    assert max(endpoint.sessions for endpoint in endpoints.values()) <= 1.4 * 16


endpoints_ = st.lists(
    st.builds(
        lambda name, work, in_flight, reachable, age, held: an_endpoint(
            name, work, in_flight=in_flight, reachable=reachable, seasoned=age is None, added_at=age or 0.0,
            held_tokens=held, kv_budget=1000,
        ),
        st.uuids().map(str), st.integers(0, 10**6), st.integers(0, 5), st.booleans(), st.none() | st.floats(0, 100),
        st.integers(0, 1100),
    ),
    max_size=8,
)  # fmt: skip


@given(
    endpoints_, st.sampled_from(list(Intent)), st.none() | st.text(max_size=5), st.booleans(), st.integers(0, 50_000)
)
def test_what_is_picked_has_room_and_no_cached_prefix_is_worth_any_wait(
    endpoints: list[EndpointState], intent: Intent, key: str | None, known: bool, context: int
) -> None:
    session = a_session(endpoints[0], context_tokens=context) if endpoints and known and key is not None else None
    offer, ask = an_offer(*endpoints, max_in_flight=4), an_ask(key, session, intent=intent)
    found = pick([offer], ask, 100.0)
    with_room = [
        endpoint
        for endpoint in endpoints
        if endpoint.usable(100.0)
        and endpoint.in_flight < max(1, int(4 * endpoint.ramp(100.0)))
        and fits(offer.pool, endpoint, ask)
    ]
    if not isinstance(found, Pick):
        assert not with_room or found is NoPlace.TIGHT
        return
    assert found.endpoint in with_room
    least = min(endpoint.work_tokens / endpoint.ramp(100.0) for endpoint in with_room)
    mine = found.endpoint.work_tokens / found.endpoint.ramp(100.0)
    if found.affinity is AffinityResult.HIT:
        assert mine - least <= ESCAPE_MAX_TOKENS[intent] or mine <= ESCAPE_RATIO * least
