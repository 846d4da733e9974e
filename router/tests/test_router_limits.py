"""Per-key limits."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_api.answers import Reason
from hlserve_api.routing import Budget, BudgetPeriod, ClassLimits, KeyEntry, KeyLimits, OnExhausted
from hlserve_router.errors import Refusal
from hlserve_router.limit_account import Reservation
from hlserve_router.limit_window import STEPS, SlidingMinute
from hlserve_router.limits import FREE, Limits
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_key

DAY = datetime(2026, 5, 4, 12, tzinfo=UTC).timestamp()
ROUTE = a_class("agent")


def key(**limits: int) -> KeyEntry:
    return a_key(AGENT_KEY, "coder", "agent", limits=KeyLimits(**limits))


def reserve(limits: Limits, entry: KeyEntry, tokens: int = 1, now: float = 1000.0, wall: float = DAY) -> Reservation:
    reservation = limits.reserve(entry, ROUTE, tokens, now, wall)
    assert reservation is not None, "a process that is alone never waits for a lease"
    return reservation


def refused(call: Callable[[], object]) -> Refusal:
    with pytest.raises(Refusal) as refusal:
        call()
    return refusal.value


def test_requests_a_minute_hold_in_every_minute() -> None:
    limits, entry = Limits(), key(requests_per_minute=60)
    passed = 0
    refusals = []
    for step in range(300):
        try:
            limits.settle(reserve(limits, entry, now=1000 + step / 30), 1, 1000 + step / 30)
        except Refusal as refusal:
            refusals.append(refusal)
        else:
            passed += 1
    assert all(refusal.reason is Reason.KEY_REQUESTS for refusal in refusals)
    assert all(1 <= (refusal.retry_after_seconds or 0) <= STEPS for refusal in refusals)
    assert passed == 60
    assert refused(lambda: reserve(limits, entry, now=1060.5)).reason is Reason.KEY_REQUESTS
    reserve(limits, entry, now=1061.0)


def test_tokens_are_reserved_and_settled_to_what_was_used() -> None:
    limits, entry = Limits(), key(tokens_per_minute=1000)
    first = reserve(limits, entry, 800)
    assert refused(lambda: reserve(limits, entry, 300)).reason is Reason.KEY_TOKENS
    limits.settle(first, 100, 1001.0)
    second = reserve(limits, entry, 300, now=1002.0)
    limits.settle(second, 900, 1003.0)
    assert refused(lambda: reserve(limits, entry, 1, now=1004.0)).reason is Reason.KEY_TOKENS
    reserve(limits, entry, 1, now=1062.0)


def test_one_request_above_the_whole_limit_is_let_through_alone() -> None:
    limits, entry = Limits(), key(tokens_per_minute=1000)
    reserve(limits, entry, 5000)
    assert refused(lambda: reserve(limits, entry, 1)).reason is Reason.KEY_TOKENS


@pytest.mark.parametrize("where", ["key", "class"])
def test_concurrency_is_held_until_settled(where: str) -> None:
    limits = Limits()
    route = a_class("agent", limits=ClassLimits(max_concurrent_per_client=2 if where == "class" else None))
    entry = key(max_concurrent=2) if where == "key" else key()

    def one() -> Reservation:
        reservation = limits.reserve(entry, route, 1, 1000.0, DAY)
        assert reservation is not None
        return reservation

    first = one()
    one()
    assert refused(one).reason is Reason.KEY_CONCURRENCY
    limits.settle(first, 1, 1001.0)
    limits.settle(first, 1, 1001.0)
    one()
    assert refused(one).reason is Reason.KEY_CONCURRENCY


def test_two_credentials_of_a_client_share_one_account() -> None:
    limits = Limits()
    reserve(limits, key(max_concurrent=1))
    other = a_key("another-key-of-the-same-client", "coder", "agent", limits=KeyLimits(max_concurrent=1))
    assert refused(lambda: reserve(limits, other)).reason is Reason.KEY_CONCURRENCY


@pytest.mark.parametrize(
    ("period", "next_period"),
    [
        pytest.param(BudgetPeriod.DAY, datetime(2026, 5, 5, tzinfo=UTC), id="day"),
        pytest.param(BudgetPeriod.MONTH, datetime(2026, 6, 1, tzinfo=UTC), id="month"),
    ],
)
def test_a_budget_ends_with_its_utc_period(period: BudgetPeriod, next_period: datetime) -> None:
    limits = Limits()
    entry = a_key(AGENT_KEY, "coder", "agent", budget=Budget(tokens=100, period=period))
    limits.settle(reserve(limits, entry, 10), 100, 1001.0)
    assert refused(lambda: reserve(limits, entry, 1, now=1002.0)).reason is Reason.BUDGET_EXHAUSTED
    last_moment = next_period.timestamp() - 0.5
    assert refused(lambda: reserve(limits, entry, 1, now=1003.0, wall=last_moment)).reason is Reason.BUDGET_EXHAUSTED
    reserve(limits, entry, 1, now=9000.0, wall=next_period.timestamp())


def test_what_is_in_flight_counts_for_a_budget() -> None:
    limits = Limits()
    entry = a_key(AGENT_KEY, "coder", "agent", budget=Budget(tokens=100))
    held = reserve(limits, entry, 100)
    assert refused(lambda: reserve(limits, entry, 1)).reason is Reason.BUDGET_EXHAUSTED
    limits.settle(held, 40, 1001.0)
    reserve(limits, entry, 1)


def test_a_budget_that_demotes_does_not_refuse() -> None:
    limits = Limits()
    entry = a_key(AGENT_KEY, "coder", "agent", budget=Budget(tokens=100, on_exhausted=OnExhausted.DEMOTE))
    limits.settle(reserve(limits, entry, 10), 100, 1001.0)
    assert limits.exhausted(entry, DAY)
    reserve(limits, entry, 1, now=1002.0)


def test_a_client_without_limits_has_no_account() -> None:
    limits = Limits()
    held = reserve(limits, key())
    assert held is FREE
    limits.settle(held, 100, 1001.0)
    assert len(limits) == 0


def test_accounts_of_unknown_clients_are_forgotten_when_idle() -> None:
    limits, entry = Limits(), key(max_concurrent=1)
    held = reserve(limits, entry)
    limits.keep_only(frozenset())
    assert limits.concurrent("coder") == 1
    limits.settle(held, 1, 1001.0)
    assert len(limits) == 0
    reserve(limits, entry)


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 100)), max_size=60))
def test_the_sliding_sum_is_that_of_the_last_sixty_seconds(steps: list[tuple[float, int]]) -> None:
    window, now = SlidingMinute(), 100.0
    added: list[tuple[float, int]] = []
    for gap, amount in steps:
        now += gap
        window.add(now, amount)
        added.append((now, amount))
        assert window.total == sum(amount for at, amount in added if int(now) - int(at) < STEPS)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=60), st.integers(1, 20))
def test_no_sixty_seconds_hold_more_than_the_limit(gaps: list[float], limit: int) -> None:
    limits, entry, now = Limits(), key(requests_per_minute=limit), 1000.0
    passed: list[float] = []
    for gap in gaps:
        now += gap
        try:
            reserve(limits, entry, now=now)
        except Refusal:
            continue
        passed.append(now)
    assert all(sum(first <= at <= first + 60 for at in passed) <= limit for first in passed)
