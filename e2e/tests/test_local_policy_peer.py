"""sglang-router's `cache_aware` as it is modelled for runs without a clock, and our router beside it."""

from array import array
from dataclasses import replace
from functools import partial

import pytest

from hlserve_capacity.engine.types import SchedulePolicy
from hlserve_capacity.virtual.cluster import Timeline
from hlserve_local.policy.arms import quickstart, stock, with_agents_engine
from hlserve_local.policy.cache_aware import MAX_TREE_TOKENS, CacheAware, CacheAwareRules, TreeFullError
from hlserve_local.policy.experiments import Case, Row, run_case

SHORT = Timeline(warm_up_us=60_000_000, window_us=60_000_000, drain_us=1_000_000)


def prompt(session: int, tokens: int) -> "array[int]":
    """A session's context: a longer one extends a shorter one."""
    return array("q", (session * 1_000_000 + index for index in range(tokens)))


def test_a_session_stays_and_a_new_one_goes_where_fewest_requests_are() -> None:
    policy = CacheAware(3)
    assert [policy.take(prompt(session, 100)) for session in (1, 2, 3)] == [0, 1, 2]
    policy.give_back(0)
    assert policy.take(prompt(2, 150)) == 1
    assert policy.take(prompt(4, 100)) == 0


@pytest.mark.parametrize(
    ("shared", "engine"),
    [
        pytest.param(31, 0, id="more than the threshold of the text was sent there"),
        pytest.param(30, 1, id="no more than it, so the lightest"),
    ],
)
def test_the_threshold_is_a_share_of_the_request(shared: int, engine: int) -> None:
    policy = CacheAware(2, CacheAwareRules(cache_threshold=0.3))
    policy.take(prompt(1, 1000))
    assert policy.take(prompt(1, shared) + prompt(2, 100 - shared)) == engine


def test_the_engine_that_was_sent_a_prefix_last_gets_it_next() -> None:
    policy = CacheAware(2, CacheAwareRules(balance_abs_threshold=1, balance_rel_threshold=1.1))
    assert [policy.take(prompt(1, 100)) for _ in range(2)] == [0, 0]
    assert policy.take(prompt(1, 100)) == 1, "imbalanced: fewest requests, whatever the text"
    assert policy.take(prompt(1, 120)) == 1


def test_defaults_find_a_difference_of_64_requests_no_imbalance() -> None:
    policy = CacheAware(2)
    assert {policy.take(prompt(1, 100)) for _ in range(65)} == {0}
    assert policy.take(prompt(1, 100)) == 1


def test_what_its_tree_would_evict_is_not_passed_over() -> None:
    policy = CacheAware(1)
    with pytest.raises(TreeFullError, match="shorter load"):
        policy.take(range(MAX_TREE_TOKENS + 1))


@pytest.fixture(scope="module")
def beside() -> dict[str, Row]:
    """All contexts fit, on engines that order by prefix: what the peer's policy does best."""
    arm = with_agents_engine(quickstart(), partial(stock, policy=SchedulePolicy.LPM), "stock")
    arms = (replace(arm, name="ours"), replace(arm, name="theirs", cache_aware=True))
    return {each.name: run_case(Case("peer", "x", each, 24), 11, SHORT) for each in arms}


def test_sessions_keep_their_prefixes_as_well_as_with_a_router_that_never_leaves_one(beside: dict[str, Row]) -> None:
    ours, theirs = beside["ours"].values, beside["theirs"].values
    assert (ours["agent_hit_rate"] or 0) > (theirs["agent_hit_rate"] or 1) - 0.03
    assert (ours["agent_tokens_per_second"] or 0) > 0.95 * (theirs["agent_tokens_per_second"] or 1)
