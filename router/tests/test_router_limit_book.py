"""The rule by which routers share a client's limits: in Python, and the same in the Valkey server's script."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_router.limit_account import NO_CAPS, NOTHING
from hlserve_router.limit_book import (
    PERMIT_SECONDS,
    WINDOW_SECONDS,
    Amounts,
    Ask,
    Caps,
    Dimension,
    Document,
    period_of,
    settle_ask,
)
from hlserve_router.limit_store_valkey import ValkeyStore
from hlserve_router.testing.valkey_server import valkey_server

NOW = 1_800_000_000.0
EARLY = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)
LATE = datetime.fromtimestamp(7_000_000_000, UTC).replace(tzinfo=None)


def ask(
    number: int = 1, holder: str = "a", caps: Caps = NO_CAPS, need: Amounts = NOTHING, more: Amounts = NOTHING,
    held: int = 0, spent: Sequence[tuple[int, int, int]] = (), spent_budget: int = 0, period: int = -1, floor: int = 0,
) -> Ask:  # fmt: skip
    return Ask("coder", holder, number, held, tuple(spent), spent_budget, period, floor, need, more, caps)


@pytest.mark.parametrize(
    ("moment", "day", "month"),
    [
        pytest.param(datetime(1970, 1, 1, tzinfo=UTC), 0, 1970 * 12, id="the epoch"),
        pytest.param(datetime(2024, 2, 29, 23, 59, 59, tzinfo=UTC), 19_782, 2024 * 12 + 1, id="a leap day's end"),
        pytest.param(datetime(2024, 3, 1, tzinfo=UTC), 19_783, 2024 * 12 + 2, id="the second after"),
        pytest.param(datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC), 20_818, 2026 * 12 + 11, id="a year's end"),
        pytest.param(datetime(2027, 1, 1, tzinfo=UTC), 20_819, 2027 * 12, id="a new year"),
    ],
)
def test_periods_are_utc_days_and_months(moment: datetime, day: int, month: int) -> None:
    assert period_of("Day", moment.timestamp()) == day
    assert period_of("Month", moment.timestamp()) == month


@given(st.datetimes(timezones=st.just(UTC), min_value=EARLY, max_value=LATE))
def test_months_are_those_of_the_calendar(moment: datetime) -> None:
    assert period_of("Month", moment.timestamp()) == moment.year * 12 + moment.month - 1


def test_need_is_all_or_nothing_and_more_is_what_is_there() -> None:
    book: Document = {}
    caps = Caps(requests=10, tokens=1000)
    first = settle_ask(book, ask(1, caps=caps, need=Amounts(0, 1, 100), more=Amounts(0, 5, 100)), NOW)
    assert first.granted == Amounts(0, 6, 200)
    second = settle_ask(book, ask(2, caps=caps, need=Amounts(0, 1, 100), more=Amounts(0, 50, 9000)), NOW)
    assert second.granted == Amounts(0, 4, 800)
    third = settle_ask(book, ask(3, caps=caps, need=Amounts(0, 1, 1)), NOW + 1)
    assert (third.granted, third.blocked) == (Amounts(), Dimension.REQUESTS)
    assert third.wait_seconds == WINDOW_SECONDS - 1
    assert settle_ask(book, ask(4, caps=caps, need=Amounts(0, 1, 1)), NOW + WINDOW_SECONDS).blocked == ""


def test_an_ask_that_is_sent_again_is_applied_once_and_answered_alike() -> None:
    book: Document = {}
    message = ask(1, caps=Caps(requests=10, budget=100), need=Amounts(0, 2, 0, 30), period=20_833, spent_budget=5)
    first = settle_ask(book, message, NOW)
    again = settle_ask(book, message, NOW + 0.5)
    assert first.granted == again.granted == Amounts(0, 2, 0, 30)
    assert first.used == again.used == 35


def test_permits_of_a_holder_that_died_are_free_after_a_while() -> None:
    book: Document = {}
    caps = Caps(permits=2)
    assert settle_ask(book, ask(1, "a", caps, Amounts(1), held=1), NOW).granted == Amounts(1)
    full = settle_ask(book, ask(1, "b", caps, Amounts(1)), NOW + 1)
    assert (full.blocked, full.left) == (Dimension.PERMITS, 0)
    assert settle_ask(book, ask(2, "b", caps, Amounts(1)), NOW + PERMIT_SECONDS + 0.1).granted == Amounts(1)


def test_what_is_given_back_makes_room_at_once() -> None:
    book: Document = {}
    caps = Caps(requests=2)
    taken = settle_ask(book, ask(1, "a", caps, Amounts(0, 2)), NOW)
    assert settle_ask(book, ask(1, "b", caps, Amounts(0, 1)), NOW + 1).blocked == Dimension.REQUESTS
    settle_ask(book, ask(2, "a", caps, spent=[(taken.step, -1, 0)]), NOW + 1)
    assert settle_ask(book, ask(2, "b", caps, Amounts(0, 1)), NOW + 1).granted == Amounts(0, 1)


def test_one_request_above_the_whole_rate_runs_alone() -> None:
    book: Document = {}
    caps = Caps(tokens=1000)
    assert settle_ask(book, ask(1, caps=caps, need=Amounts(0, 0, 5000)), NOW).granted.tokens == 5000
    assert settle_ask(book, ask(2, caps=caps, need=Amounts(0, 0, 1)), NOW).blocked == Dimension.TOKENS


def test_a_budget_admits_while_anything_is_left_and_knows_what_was_used_before_the_data_was_lost() -> None:
    caps = Caps(budget=100)
    book: Document = {}
    first = settle_ask(book, ask(1, caps=caps, need=Amounts(budget=90)), NOW)
    assert settle_ask(book, ask(2, caps=caps, need=Amounts(budget=90)), NOW).used == 180
    assert settle_ask(book, ask(3, caps=caps, need=Amounts(budget=1)), NOW).blocked == Dimension.BUDGET
    lost: Document = {}
    told = settle_ask(lost, ask(4, caps=caps, need=Amounts(budget=1), period=first.period, floor=180), NOW + 1)
    assert (told.blocked, told.used) == (Dimension.BUDGET, 180)
    assert settle_ask(book, ask(5, caps=caps, need=Amounts(budget=1)), NOW + 86_400).granted.budget == 1


amounts = st.builds(Amounts, st.integers(0, 3), st.integers(0, 3), st.integers(0, 400), st.integers(0, 400))
caps_ = st.builds(
    Caps, st.none() | st.integers(1, 5), st.none() | st.integers(1, 9), st.none() | st.integers(1, 900),
    st.none() | st.integers(0, 2000), st.sampled_from(["Day", "Month"]),
)  # fmt: skip


@given(
    st.lists(st.tuples(st.floats(0, 20), st.sampled_from("abc"), amounts, amounts), max_size=40),
    st.integers(1, 9), st.integers(1, 900),
)  # fmt: skip
def test_no_window_grants_more_than_the_limits(
    steps: list[tuple[float, str, Amounts, Amounts]], requests: int, tokens: int
) -> None:
    book: Document = {}
    caps, now, granted = Caps(requests=requests, tokens=tokens), NOW, []
    for number, (gap, holder, need, more) in enumerate(steps):
        now += gap
        answer = settle_ask(book, ask(number + 1, holder, caps, need, more), now)
        granted.append((answer.step, answer.granted))
    for first, _ in granted:
        window = [amount for step, amount in granted if first <= step < first + WINDOW_SECONDS]
        assert sum(amount.requests for amount in window) <= requests
        above = [amount.tokens for amount in window if amount.tokens > tokens]
        assert sum(amount.tokens for amount in window) <= (above[0] if above else tokens)


async def test_the_script_of_the_server_says_what_the_rule_says(tmp_path: Path) -> None:
    """Random messages to both. The server has its own clock, so answers are compared with the rule at the server's second."""
    drawn: list[tuple[str, Caps, Amounts, Amounts, int, int]] = []

    @given(st.tuples(st.sampled_from("abc"), caps_, amounts, amounts, st.integers(0, 3), st.integers(-50, 50)))
    def draw(message: tuple[str, Caps, Amounts, Amounts, int, int]) -> None:
        drawn.append(message)

    draw()
    async with valkey_server(tmp_path) as server:
        store = ValkeyStore(server.address, 5)
        books: dict[str, Document] = {}
        numbers: dict[tuple[str, str], int] = {}
        step = period = 0
        for index, (holder, caps, need, more, held, correction) in enumerate(drawn):
            client = f"client-{index % 3}"
            number = numbers[client, holder] = numbers.get((client, holder), 0) + (0 if index % 7 == 3 else 1)
            sent = Ask(
                client, holder, number, held, ((step, correction % 3 - 1, correction),) if step else (), correction,
                period, 0 if index % 11 else 77, need, more, caps,
            )  # fmt: skip
            (answer,) = (await store.exchange("h", [sent])).answers
            ours = settle_ask(books.setdefault(client, {}), sent, answer.step)
            assert abs(answer.wait_seconds - ours.wait_seconds) <= 1, (
                index,
                sent,
            )  # only the server knows the fraction
            assert msgspec.structs.replace(answer, wait_seconds=ours.wait_seconds) == ours, (index, sent)
            step, period = answer.step, answer.period
        await store.close()
    assert len(drawn) >= 50
