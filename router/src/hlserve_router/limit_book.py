"""What is kept of one client's limits where routers share them, and the one rule that changes it. Pure.

A router (or one worker of it) is a *holder*. It sends an `Ask`: what it has spent beyond or below what it was granted, how
many permits it holds, what it needs now and what it would like ahead. `settle_ask` applies it to the client's document.
The Lua script of the Valkey store is the same rule over the same document; a test compares the two.
"""

from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from hlserve_api.routing import BudgetPeriod

HOLD_SECONDS: Final = 1
"""How long a holder may keep what it was granted ahead; after that it is given back."""
WINDOW_SECONDS: Final = 60 + 1 + HOLD_SECONDS
"""A grant counts for a minute, plus its one-second step, plus the time until it is spent at the latest: so what is spent
in any 60 s was granted within one window, and is never above the limit."""
PERMIT_SECONDS: Final = 15.0
"""Permits of a holder that says nothing for so long are free again: it died."""
HOLDER_SECONDS: Final = 600.0
"""How long a holder's last number is remembered, so that an ask that is sent again is not applied again."""

Document = dict[str, Any]
"""`w`: step (Unix second) -> [requests, tokens]; `h`: holder -> [permits, until, number, seen, granted]; `p`, `u`: budget
period and tokens used in it."""


class Dimension(StrEnum):
    """What a client can run out of."""

    PERMITS = "permits"
    REQUESTS = "requests"
    TOKENS = "tokens"
    BUDGET = "budget"


class Amounts(NamedTuple):
    """Permits, requests, tokens of the minute, tokens of the budget."""

    permits: int = 0
    requests: int = 0
    tokens: int = 0
    budget: int = 0


class Caps(NamedTuple):
    """A client's limits; None: not limited."""

    permits: int | None = None
    requests: int | None = None
    tokens: int | None = None
    budget: int | None = None
    period: str = BudgetPeriod.DAY.value


class Ask(msgspec.Struct, array_like=True, frozen=True):
    """One holder's message about one client."""

    client: str
    holder: str
    number: int
    """Rises with each new ask of the holder about the client; the same one again gets the same answer again."""
    held: int
    """Permits that the holder has, without those it asks for."""
    spent: tuple[tuple[int, int, int], ...]
    """Step (0: the present one), requests, tokens: corrections of earlier grants, either sign."""
    spent_budget: int
    period: int
    """The budget period that `spent_budget` and `floor` belong to."""
    floor: int
    """Tokens that were known to be used of the budget before the store lost its data; 0: nothing is known."""
    need: Amounts
    """All of it or nothing."""
    more: Amounts
    """As much of it as there is."""
    caps: Caps


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """What the book says to an ask."""

    granted: Amounts
    blocked: str
    """The `Dimension` for whose lack `need` was not granted; empty: it was."""
    wait_seconds: float
    """Until the need fits, as far as the past minute tells."""
    left: int
    """What is left of the dimension that is blocked."""
    step: int
    """The store's second."""
    period: int
    used: int
    """Tokens of the budget that are granted or spent, by all holders."""


def period_of(period: str, unix_seconds: float) -> int:
    """Number of the UTC calendar day or month that a moment is in.

    Months by the civil calendar in whole days (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms"): no time zone,
    no table, and the same few lines in Lua.
    """
    days = int(unix_seconds // 86_400)
    if period == BudgetPeriod.DAY.value:
        return days
    shifted = days + 719_468
    era = shifted // 146_097
    day = shifted - era * 146_097
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    month = (5 * (day - (365 * year + year // 4 - year // 100)) + 2) // 153  # 0 = March
    return (year + era * 400) * 12 + month + 2


def settle_ask(book: Document, ask: Ask, now: float) -> Answer:
    """Applies `ask` to the client's document at `now`, the store's Unix seconds, and answers it."""
    step = int(now)
    window: dict[str, list[int]] = book.setdefault("w", {})
    holders: dict[str, list[Any]] = book.setdefault("h", {})
    for old in [at for at in window if step - int(at) >= WINDOW_SECONDS]:
        del window[old]
    for gone in [name for name, row in holders.items() if now - row[3] >= HOLDER_SECONDS]:
        del holders[gone]
    period = period_of(ask.caps.period, now)
    if book.get("p") != period:
        book["p"], book["u"] = period, 0
    mine = holders.setdefault(ask.holder, [0, 0.0, 0, 0.0, [0, 0, 0, 0]])
    repeated = mine[2] == ask.number
    mine[1], mine[3] = now + PERMIT_SECONDS, now
    if repeated:
        return Answer(Amounts(*mine[4]), "", 0.0, 0, step, period, book["u"])
    mine[0], mine[2] = ask.held, ask.number
    for at, requests, tokens in ask.spent:
        if at <= 0 or step - at < WINDOW_SECONDS:
            _charge(window, min(at, step) if at > 0 else step, requests, tokens)
    if ask.period == period:
        book["u"] = max(0, book["u"], ask.floor) + ask.spent_budget
    blocked, wait, left = _blocked(book, ask, now)
    granted = Amounts() if blocked else _granted(book, ask, now)
    if granted.requests or granted.tokens:
        _charge(window, step, granted.requests, granted.tokens)
    book["u"] += granted.budget
    mine[0] += granted.permits
    mine[4] = list(granted)
    return Answer(granted, blocked, wait, left, step, period, book["u"])


def _charge(window: dict[str, list[int]], step: int, requests: int, tokens: int) -> None:
    at = window.setdefault(str(step), [0, 0])
    at[0] += requests
    at[1] += tokens


def _room(book: Document, ask: Ask, now: float) -> tuple[int | None, ...]:
    """What is left of each dimension; None: no limit."""
    caps = ask.caps
    permits = sum(row[0] for row in book["h"].values() if row[1] > now)
    requests = sum(row[0] for row in book["w"].values())
    tokens = sum(row[1] for row in book["w"].values())
    taken = (permits, requests, tokens, book["u"])
    return tuple(None if cap is None else cap - used for cap, used in zip(caps[:4], taken, strict=True))


def _blocked(book: Document, ask: Ask, now: float) -> tuple[str, float, int]:
    permits, requests, tokens, budget = _room(book, ask, now)
    need = ask.need
    if permits is not None and need.permits > max(0, permits):
        return Dimension.PERMITS.value, 1.0, max(0, permits)
    if requests is not None and need.requests > max(0, requests):
        return Dimension.REQUESTS.value, _wait(book, 0, need.requests - requests, now), max(0, requests)
    # A request above the whole limit runs alone: refused for ever, it could never be served.
    alone = tokens is not None and ask.caps.tokens is not None and tokens >= ask.caps.tokens
    if tokens is not None and need.tokens > max(0, tokens) and not alone:
        return Dimension.TOKENS.value, _wait(book, 1, need.tokens - tokens, now), max(0, tokens)
    if budget is not None and need.budget and budget <= 0:
        return Dimension.BUDGET.value, 60.0, 0
    return "", 0.0, 0


def _granted(book: Document, ask: Ask, now: float) -> Amounts:
    room = _room(book, ask, now)
    return Amounts(
        *(
            need + (more if left is None else max(0, min(more, left - need)))
            for need, more, left in zip(ask.need, ask.more, room, strict=True)
        )
    )


def _wait(book: Document, column: int, lacking: int, now: float) -> float:
    """Seconds until `lacking` more is free."""
    for step in sorted(int(at) for at in book["w"]):
        lacking -= book["w"][str(step)][column]
        if lacking <= 0:
            return max(0.0, float(step + WINDOW_SECONDS - now))
    return float(WINDOW_SECONDS)
