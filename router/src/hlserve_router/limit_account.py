"""What one client has used and holds, in this process, and its lease of shared limits. Pure; callers pass the times."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hlserve_router.limit_book import (
    HOLD_SECONDS,
    PERMIT_SECONDS,
    WINDOW_SECONDS,
    Amounts,
    Answer,
    Ask,
    Caps,
    Dimension,
)
from hlserve_router.limit_window import SlidingMinute

BOUND: Final = 0.05
"""Share of a limit that all processes together may hold ahead, unspent: what clients may miss, never what they get more."""
AHEAD_SECONDS: Final = 0.25
"""How much of a client's present rate is taken ahead, if the bound allows."""
DENIED_SECONDS: Final = 0.1
"""How long the store's no is believed without asking again: a client that hammers costs no round trips."""
PERMIT_GRACE_SECONDS: Final = 0.1
"""A permit that is not there is asked for once more after this time: it may be on its way back from another router."""
NEWS_SECONDS: Final = 1.0
"""How long the store's word that a budget is used up is believed: the next period begins by the store's clock."""


NO_CAPS: Final = Caps()
NOTHING: Final = Amounts()


class Reservation:
    """What one admitted request holds of its client's limits, until `Limits.settle`."""

    __slots__ = ("account", "at", "budget", "period", "settled", "step", "tokens")

    def __init__(
        self, account: "Account | None", tokens: int, at: float, step: int = 0, budget: int = 0, period: int = -1
    ) -> None:
        self.account = account
        self.tokens = tokens
        self.at = at
        self.step = step
        """The store's second that it counts for."""
        self.budget = budget
        """Tokens that are charged to the budget already."""
        self.period = period
        self.settled = False

    @property
    def client(self) -> str:
        """The ClientKey's name; empty if the client has no limits."""
        return self.account.client if self.account is not None else ""


class Waiting(NamedTuple):
    """One request that waits for the store's answer."""

    need: Amounts
    again: Callable[[], None]


class Denial(NamedTuple):
    """What the store did not grant, until when that is believed, and when it will fit (monotonic seconds)."""

    blocked: str
    left: int
    until: float
    fits_at: float

    def seconds(self, now: float) -> float:
        """Seconds until it will fit."""
        return max(0.0, self.fits_at - now)


@dataclass(slots=True, eq=False)
class Account:
    """One client. A client is a ClientKey: all its credentials share the account."""

    client: str
    requests: SlidingMinute = field(default_factory=SlidingMinute)
    tokens: SlidingMinute = field(default_factory=SlidingMinute)
    concurrent: int = 0
    period: int = -1
    """The budget period that `used` is of; -1: not known yet."""
    used: int = 0
    """Tokens used of the budget: as the store said last; alone: by this process."""
    apart: int = 0
    """Tokens that this process charged to the budget itself: alone, or while the store is away."""
    caps: Caps = NO_CAPS
    credit: Amounts = NOTHING
    """Granted and not spent."""
    lacking: Amounts = NOTHING
    """What the last request that found the lease used up needs."""
    waiting: deque[Waiting] = field(default_factory=deque)
    unsent: dict[int, list[int]] = field(default_factory=dict)
    """Step -> requests and tokens to tell the store: corrections of what it granted."""
    unsent_budget: int = 0
    sent: Ask | None = None
    """The last ask, until it is answered; sent again as it is if nobody answers."""
    denial: Denial | None = None
    _number: int = 0
    _told: int = 0
    """Permits that the store knows of."""
    _floor: int = 0
    _expires: float = 0.0
    _granted_step: int = 0
    _counts: bool = False
    """True once one of its requests was bound to a number of requests at once."""
    _heard: float = float("-inf")
    _offset: float = 0.0
    """The store's Unix seconds less this process's monotonic ones."""
    _pace_from: float = 0.0
    _pace: tuple[int, int] = (0, 0)
    """Requests and tokens spent since `_pace_from`."""
    _rates: tuple[float, float] = (0.0, 0.0)
    """Requests and tokens a second before that."""
    _stale: bool = False
    """True if the last ask was given up on, although it may yet be answered."""
    _wants: bool = False
    """True once its lease runs low."""
    _grace: bool = False
    _ask_at: float = 0.0

    # this process -----------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True if nothing would be lost with it."""
        return not (self.concurrent or self.waiting or self.unsent or self.unsent_budget or self._told or self.sent)

    def begin(self, now: float, tokens: int) -> None:
        """A request was let in."""
        self.concurrent += 1
        self.requests.add(now, 1)
        self.tokens.add(now, tokens)

    def settle(self, reservation: Reservation, used_tokens: int, now: float, *, shared: bool, away: bool) -> None:
        """That request is over and had `used_tokens`."""
        self.concurrent -= 1
        difference = used_tokens - reservation.tokens
        self.tokens.add(now, difference, at=reservation.at)
        # A period that is over is not corrected any more: what was estimated too high must not be given to the next one.
        owed = used_tokens - reservation.budget if reservation.period == self.period else 0
        if away or not shared:
            self.apart += owed
        if not shared:
            return
        if difference and self.caps.tokens is not None:
            self._correct(reservation.step, 0, difference)
        if self.caps.budget is not None:
            self.unsent_budget += owed

    def roll(self, period: int) -> None:
        """Begins a new budget period. What is not told yet, or granted and not spent, was of the former one."""
        if self.period != period:
            self.period, self.used, self.apart, self.unsent_budget, self._floor = period, 0, 0, 0, 0
            self.credit = self.credit._replace(budget=0)

    def step(self, now: float, *, away: bool) -> int:
        """The store's second that a request counts for: that of the lease, or of `now` if it has none."""
        if not away:
            return self._granted_step
        return int(now + self._offset) if self._offset else 0

    def charge(self, now: float, requests: int, tokens: int) -> None:
        """What was spent without a grant, to be told when the store is back."""
        if requests or tokens:
            self._correct(self.step(now, away=True), requests, tokens)

    def _correct(self, step: int, requests: int, tokens: int) -> None:
        at = self.unsent.setdefault(step, [0, 0])
        at[0] += requests
        at[1] += tokens
        if len(self.unsent) > WINDOW_SECONDS:
            del self.unsent[min(self.unsent)]

    def bind(self, caps: Caps) -> None:
        """The limits of the request that is looked at now."""
        self.caps = caps
        self._counts = self._counts or caps.permits is not None

    # the lease --------------------------------------------------------------------------------------------------------

    def spend(self, need: Amounts, now: float) -> bool:
        """Takes `need` out of the lease, if all of it is there and not to be given back yet."""
        credit = self.credit
        if any(credit) and now >= self._expires:
            self.give_back()
            return not any(need)
        if any(wanted > there for wanted, there in zip(need, credit, strict=True)):
            return False
        self.credit = _less(credit, need)
        self._pace = (self._pace[0] + need.requests, self._pace[1] + max(need.tokens, need.budget))
        return True

    def runs_low(self, members: int, now: float) -> bool:
        """True if it pays to ask ahead of need: less than half of what this client may hold is left."""
        if not self._wants:
            ahead = self._ahead(members, now)
            self._wants = any(2 * there < wanted for there, wanted in zip(self.credit, ahead, strict=True))
        return self._wants

    def scarce(self, members: int) -> bool:
        """True if others may lack the place of a request that ends: there are too few for any to be held ahead."""
        permits = self.caps.permits
        return permits is not None and (bool(self.waiting) or BOUND * permits < members)

    def wait(self, again: Callable[[], None]) -> None:
        """Queues the request that found the lease lacking, for the next answer."""
        self.waiting.append(Waiting(self.lacking, again))

    def news(self, now: float) -> bool:
        """True while what the store said of the budget is fresh."""
        return now - self._heard < NEWS_SECONDS

    def spent_up(self, now: float) -> bool:
        """True if the store has said just now that the budget is used up."""
        budget = self.caps.budget
        return budget is not None and self.news(now) and self.used - self.credit.budget >= budget

    def denied_for(self, need: Amounts, now: float) -> Denial | None:
        """The store's no that still stands for `need`."""
        denial = self.denial
        if denial is None or now >= denial.until:
            return None
        return denial if getattr(need, denial.blocked) > denial.left + getattr(self.credit, denial.blocked) else None

    def _ahead(self, members: int, now: float) -> Amounts:
        """What to hold ahead: a quarter of a second of the present rate, within this process's part of the bound."""
        caps = self.caps
        requests, tokens = (AHEAD_SECONDS * rate for rate in self._present(now))
        rates = (requests, requests, tokens, tokens)
        return Amounts(
            *(
                0 if cap is None else int(min(rate, BOUND * cap / members))
                for rate, cap in zip(rates, caps[:4], strict=True)
            )
        )

    def _present(self, now: float) -> tuple[float, float]:
        """Requests and tokens a second."""
        elapsed = max(0.05, now - self._pace_from)
        if elapsed > HOLD_SECONDS:
            self._rates = (0.0, 0.0)
        requests, tokens = (max(spent / elapsed, was) for spent, was in zip(self._pace, self._rates, strict=True))
        return requests, tokens

    # the store --------------------------------------------------------------------------------------------------------

    def ask(self, holder: str, members: int, now: float) -> Ask | None:
        """The message to the store; None if there is nothing to say. One that got no answer comes first, unchanged."""
        if self.sent is not None:
            return self.sent
        waits = bool(self.waiting) and now >= self._ask_at
        more = self._ahead(members, now)
        refills = self._wants and not self.waiting
        if waits:
            self.give_back()
        held = self.concurrent + self.credit.permits if self._counts else 0
        if not (waits or refills or self.unsent or self.unsent_budget or self._floor or held != self._told):
            return None
        need = NOTHING
        if waits:
            need, *others = (waiting.need for waiting in self.waiting)
            more = _plus(more, *others)
        spent = tuple((step, requests, tokens) for step, (requests, tokens) in self.unsent.items())
        self._number += 1
        self.sent = Ask(
            self.client, holder, self._number, held, spent, self.unsent_budget, self.period, self._floor, need,
            more if waits or refills else NOTHING, self.caps,
        )  # fmt: skip
        self.unsent, self.unsent_budget, self._floor, self._wants = {}, 0, 0, False
        self._told = held
        return self.sent

    def answered(self, answer: Answer, sent: float) -> list[Callable[[], None]]:
        """Takes in what the store answered to an ask of `sent` (monotonic seconds). Returns who may try again."""
        ask, self.sent = self.sent, None
        if ask is None:
            return []
        offset = answer.step - sent
        self._offset = offset if abs(offset - self._offset) > 2 else max(self._offset, offset)
        self._heard = sent
        self.roll(answer.period)
        self.used, self.apart = answer.used, 0
        if self._floor:
            self._floor += answer.granted.budget
        if any(answer.granted):
            self.give_back()
            self.credit, self._granted_step = answer.granted, answer.step
            if self._stale:
                self.give_back()  # whoever it was for was decided without it
            self._expires = sent + HOLD_SECONDS
            self._told += answer.granted.permits
            elapsed = max(0.05, sent - self._pace_from)
            self._rates = (
                (self._rates[0] + self._pace[0] / elapsed) / 2,
                (self._rates[1] + self._pace[1] / elapsed) / 2,
            )
            self._pace_from, self._pace, self.denial, self._stale = sent, (0, 0), None, False
            self._grace, self._ask_at = False, 0.0
            return self._all_waiting()
        self._stale = False
        if not any(ask.need):
            return []
        if answer.blocked == Dimension.PERMITS and not self._grace:
            self._grace, self._ask_at = True, sent + PERMIT_GRACE_SECONDS
            return []
        self._grace, self._ask_at = False, 0.0
        if answer.blocked:
            # A permit may be free any moment: that no holds for those who wait now, and no longer.
            until = float("inf") if answer.blocked == Dimension.PERMITS else sent + DENIED_SECONDS
            self.denial = Denial(answer.blocked, answer.left, until, sent + answer.wait_seconds)
        return self._all_waiting()

    def woken(self) -> None:
        """Those who waited have been told."""
        if self.denial is not None and self.denial.blocked == Dimension.PERMITS:
            self.denial = None

    def overdue(self, now: float) -> bool:
        """Gives back what was not spent in time. True if the store should be told something."""
        if any(self.credit) and now >= self._expires:
            self.give_back()
        renew = bool(self._told) and now - self._heard > PERMIT_SECONDS / 3
        if renew and self.sent is None:
            self.renew()
        return bool(renew or self.waiting or self.unsent or self.unsent_budget or self.sent)

    def renew(self) -> None:
        """Says again what it holds, in the next ask, and believes no former no."""
        self._told, self.denial = -1, None

    @property
    def at_rest(self) -> bool:
        """True if there is neither anything to tell nor to give back."""
        return self.idle and not any(self.credit)

    def give_back(self) -> None:
        """Returns the whole unspent lease, to the second that it was granted in."""
        credit, self.credit = self.credit, NOTHING
        if credit.requests or credit.tokens:
            self._correct(self._granted_step, -credit.requests, -credit.tokens)
        self.unsent_budget -= credit.budget

    def leave(self) -> None:
        """Returns the lease and asks for no other: the process ends."""
        self._wants = False
        self.give_back()

    def cut_off(self) -> list[Callable[[], None]]:
        """The store is away: the lease is over. Returns who must be decided without it."""
        self.give_back()
        self._stale = self.sent is not None
        self.denial, self._grace, self._ask_at = None, False, 0.0
        return self._all_waiting()

    def restore(self, now: float, *, applied: bool) -> None:
        """The store lost its data: what this process knows is told again. `applied`: the last ask came after that."""
        floor, sent = self.used, self.sent
        if sent is not None and applied:
            floor += sent.spent_budget
        elif sent is not None:
            self.sent, self._stale = None, False
            self.unsent_budget += sent.spent_budget
        self._floor = max(0, floor) if self.caps.budget is not None else 0
        self.renew()
        self.requests.advance(now)
        self.tokens.advance(now)
        self.unsent.clear()
        self.charge(
            now,
            self.requests.total if self.caps.requests is not None else 0,
            self.tokens.total if self.caps.tokens is not None else 0,
        )

    def _all_waiting(self) -> list[Callable[[], None]]:
        woken = [waiting.again for waiting in self.waiting]
        self.waiting.clear()
        return woken


def _less(one: Amounts, other: Amounts) -> Amounts:
    return Amounts(*(mine - theirs for mine, theirs in zip(one, other, strict=True)))


def _plus(*all_: Amounts) -> Amounts:
    return Amounts(*(sum(column) for column in zip(*all_, strict=True)))
