"""Per-client limits: requests and tokens a minute, requests at once, and a token budget a period. Pure; callers pass the times.

Tokens are reserved as estimated when a request is admitted and settled to what the engine reported when it ends. A process
that is alone decides exactly. Processes that share limits spend from a lease: a small block of each limit that the store
granted (`limit_book`), taken ahead of need where the client is busy; a request waits only when its client's lease is used
up. While the store is away each process keeps to its part: the limit over the number of processes that were last known.
"""

from collections.abc import Callable
from math import ceil
from typing import Final

from hlserve_api.answers import Reason
from hlserve_api.routing import ClassRoute, KeyEntry, OnExhausted
from hlserve_router.errors import Refusal, SpentRate
from hlserve_router.limit_account import Account, Reservation
from hlserve_router.limit_book import Amounts, Answer, Ask, Caps, Dimension, period_of

FREE: Final = Reservation(None, 0, 0.0)
"""What a request of a client without limits holds: nothing."""
UNLIMITED: Final = Caps()
MAX_ASKS: Final = 200
"""Clients in one message to the store."""


class Limits:
    """The accounts of all clients of this process."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._gone: set[str] = set()
        self._dirty: dict[str, Account] = {}
        self._live: dict[str, Account] = {}
        self._holder = ""
        """Name of this process in the store; empty: it is alone, and there is none."""
        self.away = False
        """True while the store cannot be reached."""
        self.members = 1
        """Processes that share the limits, as last known."""
        self._epoch = ""
        self.poke: Callable[[], None] = _nobody
        """Called when there is something to tell the store soon."""

    def share(self, holder: str, members: int = 1) -> None:
        """From here on limits are shared with others, through a store that knows this process as `holder`.

        `members`: how many share them, until the store says it.
        """
        self._holder, self.members = holder, members

    @property
    def shared(self) -> bool:
        """True if limits are shared with others."""
        return bool(self._holder)

    # the steps --------------------------------------------------------------------------------------------------------

    def exhausted(self, key: KeyEntry, unix_seconds: float) -> bool:
        """True if the key's budget of the current UTC period is known to be used up."""
        if key.budget is None:
            return False
        account = self._account(key.client)
        if self._holder and not self.away:
            return account.used - account.credit.budget >= key.budget.tokens and account.period >= 0
        account.roll(period_of(key.budget.period.value, unix_seconds))
        return account.used + account.apart * (self.members if self.away else 1) >= key.budget.tokens

    def demoted(self, key: KeyEntry, unix_seconds: float) -> bool:
        """True if the key's budget is used up and it goes on in a lower class."""
        budget = key.budget
        return budget is not None and budget.on_exhausted is OnExhausted.DEMOTE and self.exhausted(key, unix_seconds)

    def reserve(
        self, key: KeyEntry, route: ClassRoute, tokens: int, now: float, unix_seconds: float
    ) -> Reservation | None:
        """Takes one request of about `tokens` tokens into the client's account, or raises Refusal (429).

        None: the lease is used up. Call `wait`, and `reserve` again when it calls back.
        """
        return self.admit(key, caps_of(key, route), tokens, now, unix_seconds)

    def admit(self, key: KeyEntry, caps: Caps, tokens: int, now: float, unix_seconds: float) -> Reservation | None:
        """As `reserve`, for limits that were looked up before (`caps_of`)."""
        if caps is UNLIMITED:
            return FREE
        account = self._account(key.client)
        if self._holder and not self.away:
            return self._from_lease(account, key, caps, tokens, now)
        share = self.members if self.away else 1
        self._check_own(account, caps, tokens, now, share)
        if caps.budget is not None and self.exhausted(key, unix_seconds):
            _refuse_spent(key)
        charged = tokens if caps.budget is not None else 0
        if self.away:
            account.charge(now, 1 if caps.requests is not None else 0, tokens if caps.tokens is not None else 0)
            account.unsent_budget += charged
        account.apart += charged
        account.begin(now, tokens)
        return Reservation(account, tokens, now, account.step(now, away=True), charged, account.period)

    def wait(self, key: KeyEntry, again: Callable[[], None]) -> None:
        """Asks the store for what `reserve` lacked just now; `again` is called once the store answered or is away."""
        account = self._account(key.client)
        account.wait(again)
        self._touch(account, soon=True)

    def settle(self, reservation: Reservation, used_tokens: int, now: float) -> None:
        """Replaces the estimate by what was used and gives the place back. A second call changes nothing."""
        account = reservation.account
        if account is None or reservation.settled:
            return
        reservation.settled = True
        account.settle(reservation, used_tokens, now, shared=bool(self._holder), away=self.away)
        if self._holder:
            self._touch(account, soon=account.scarce(self.members))
        if self._gone:
            self._forget_gone()

    def keep_only(self, clients: frozenset[str]) -> None:
        """Forgets accounts of clients that no keyring names any more, each as soon as nothing of it is in flight."""
        self._gone = self._accounts.keys() - clients
        self._forget_gone()

    def concurrent(self, client: str) -> int:
        """Requests of `client` that hold a place now; 0 for one without limits."""
        account = self._accounts.get(client)
        return account.concurrent if account else 0

    def used(self, client: str) -> int:
        """Tokens that are known to be used of the client's budget; 0 if nothing is known."""
        account = self._accounts.get(client)
        return account.used if account else 0

    @property
    def quiet(self) -> bool:
        """True if the store has been told everything."""
        return not any(account.unsent or account.unsent_budget or account.sent for account in self._live.values())

    def leased(self, client: str) -> bool:
        """True while something of the client's limits is granted and not spent."""
        account = self._accounts.get(client)
        return account is not None and any(account.credit)

    def refresh(self, client: str) -> None:
        """Has the store asked what it knows of a client."""
        account = self._accounts.get(client)
        if account is not None:
            account.renew()
            self._touch(account, soon=True)

    def __len__(self) -> int:
        """Clients with an account."""
        return len(self._accounts)

    # the store's side -------------------------------------------------------------------------------------------------

    def asks(self, now: float) -> list[Ask]:
        """What there is to tell the store now, of as many clients as one message takes; those that were told go last."""
        found: list[Ask] = []
        for name, account in list(self._dirty.items()):
            if len(found) >= MAX_ASKS:
                break
            ask = account.ask(self._holder, self.members, now)
            if ask is not None:
                self._dirty[name] = self._dirty.pop(name)
                found.append(ask)
            elif not account.waiting:
                del self._dirty[name]
        return found

    def answered(self, asks: list[Ask], answers: list[Answer], members: int, epoch: str, sent: float) -> None:
        """The store answered what was sent at `sent` (monotonic seconds). Lets those who wait try again."""
        self.heard(members, epoch, sent, applied=True)
        for ask, answer in zip(asks, answers, strict=True):
            account = self._accounts.get(ask.client)
            if account is None:
                continue
            for again in account.answered(answer, sent):
                again()
            account.woken()

    def heard(self, members: int, epoch: str, sent: float, *, applied: bool = False) -> None:
        """The store is there. If it has lost its data (another epoch), it is told what this process knows.

        `applied`: it has applied the asks that were sent.
        """
        lost = bool(self._epoch) and epoch != self._epoch
        self.members, self._epoch, self.away = max(1, members), epoch, False
        if lost:
            for account in self._accounts.values():
                account.restore(sent, applied=applied)
                self._touch(account)

    def lost(self) -> None:
        """The store cannot be reached: everybody who waits is decided by this process alone."""
        self.away = True
        woken = [again for account in tuple(self._live.values()) for again in account.cut_off()]
        for again in woken:
            again()

    def sweep(self, now: float) -> None:
        """Gives back what was granted ahead and is not used, renews permits, forgets. Call it ten times a second."""
        for name, account in tuple(self._live.items()):
            if account.overdue(now):
                self._touch(account)
            elif account.at_rest:
                del self._live[name]
        self._forget_gone()

    def leave(self) -> None:
        """Gives back everything that is not in use: the process ends."""
        for account in tuple(self._live.values()):
            account.leave()
            self._touch(account)

    @property
    def waiting(self) -> int:
        """Requests that wait for the store."""
        return sum(len(account.waiting) for account in self._live.values())

    def _touch(self, account: Account, *, soon: bool = False) -> None:
        self._dirty[account.client] = self._live[account.client] = account
        if soon:
            self.poke()

    def _forget_gone(self) -> None:
        for name in tuple(self._gone):
            account = self._accounts.get(name)
            if account is None or account.at_rest:
                self._gone.discard(name)
                for accounts in (self._accounts, self._dirty, self._live):
                    accounts.pop(name, None)

    def _account(self, client: str) -> Account:
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = Account(client)
        return account

    # the rules --------------------------------------------------------------------------------------------------------

    def _from_lease(self, account: Account, key: KeyEntry, caps: Caps, tokens: int, now: float) -> Reservation | None:
        account.bind(caps)
        need = _need(account, key, tokens, now)
        if need.budget and account.spent_up(now):
            _refuse_spent(key)
        denied = account.denied_for(need, now)
        if denied is not None:
            if denied.blocked == Dimension.BUDGET:
                _refuse_spent(key)
            else:
                _refuse(denied.blocked, caps, denied.left, denied.seconds(now))
        if not account.spend(need, now):
            account.lacking = need
            return None
        if account.runs_low(self.members, now):
            self._touch(account, soon=True)
        account.begin(now, tokens)
        return Reservation(account, tokens, now, account.step(now, away=False), need.budget, account.period)

    def _check_own(self, account: Account, caps: Caps, tokens: int, now: float, share: int) -> None:
        """Raises Refusal if this process's own use is at its part of a limit."""
        if caps.permits is not None and account.concurrent >= _part(caps.permits, share):
            _refuse(Dimension.PERMITS, caps, 0, 1.0)
        window = account.requests
        window.advance(now)
        if caps.requests is not None and window.total >= (limit := _part(caps.requests, share)):
            _refuse(Dimension.REQUESTS, caps, 0, window.seconds_until(1, limit, now))
        window = account.tokens
        window.advance(now)
        # A request above the whole limit runs alone: refused for ever, it could never be served.
        if (
            caps.tokens is not None
            and window.total > 0
            and window.total + tokens > (limit := _part(caps.tokens, share))
        ):
            _refuse(Dimension.TOKENS, caps, max(0, limit - window.total), window.seconds_until(tokens, limit, now))


def caps_of(key: KeyEntry, route: ClassRoute) -> Caps:
    """The limits of a key in a class; `UNLIMITED` itself if there is none."""
    limits, budget, of_class = key.limits, key.budget, route.limits.max_concurrent_per_client
    permits, requests, tokens = limits.max_concurrent, limits.requests_per_minute, limits.tokens_per_minute
    if of_class is None and permits is None and requests is None and tokens is None and budget is None:
        return UNLIMITED
    if of_class is not None and (permits is None or of_class < permits):
        permits = of_class
    if budget is None:
        return Caps(permits, requests, tokens)
    return Caps(permits, requests, tokens, budget.tokens, budget.period.value)


def _need(account: Account, key: KeyEntry, tokens: int, now: float) -> Amounts:
    """What one request of `tokens` tokens takes of each limit that there is."""
    caps, budget = account.caps, key.budget
    demotes = budget is not None and budget.on_exhausted is OnExhausted.DEMOTE and account.spent_up(now)
    return Amounts(
        1 if caps.permits is not None else 0,
        1 if caps.requests is not None else 0,
        tokens if caps.tokens is not None else 0,
        0 if demotes or caps.budget is None else max(1, tokens),
    )


def _part(limit: int, share: int) -> int:
    """This process's part of a limit."""
    return limit if share == 1 else max(1, ceil(limit / share))


def _refuse(blocked: str, caps: Caps, left: int, wait: float) -> None:
    """Raises Refusal: a limit of the key's is at its end."""
    if blocked == Dimension.PERMITS:
        raise Refusal(
            Reason.KEY_CONCURRENCY,
            f"This key already has {caps.permits} requests running, its limit: wait for one to end.",
        )
    requests = blocked == Dimension.REQUESTS
    unit, limit = ("requests", caps.requests) if requests else ("tokens", caps.tokens)
    raise Refusal(
        Reason.KEY_REQUESTS if requests else Reason.KEY_TOKENS,
        f"This key is limited to {limit} {unit} a minute: slow down.",
        retry_after_seconds=wait,
        rate=SpentRate(unit, limit or 0, left, wait),
    )


def _refuse_spent(key: KeyEntry) -> None:
    """Raises Refusal, unless the budget only demotes."""
    budget = key.budget
    if budget is not None and budget.on_exhausted is OnExhausted.REJECT:
        raise Refusal(
            Reason.BUDGET_EXHAUSTED,
            f"This key has used its {budget.tokens} tokens of the {budget.period.value.lower()} (UTC).",
            retry_after_seconds=60,
        )


def _nobody() -> None:
    """Nobody is to be told."""
