"""Per-key limits: requests and tokens a minute, requests at once, and a token budget a period.

Pure but for the times that callers pass in. Tokens are reserved as estimated when a request is admitted and settled to
what the engine reported when it ends. With several workers or replicas each one enforces its `share` of every limit.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil

from hlserve_api.answers import Reason
from hlserve_api.routing import BudgetPeriod, ClassRoute, KeyEntry, OnExhausted
from hlserve_router.errors import Refusal, SpentRate

_WINDOW_SECONDS = 60


class SlidingMinute:
    """A sum over the last 60 s in one-second steps: never more than the limit in any minute, no burst at a boundary."""

    __slots__ = ("_newest", "_sums", "total")

    def __init__(self) -> None:
        self._sums = [0] * _WINDOW_SECONDS
        self._newest = 0
        self.total = 0

    def advance(self, now: float) -> None:
        """Forgets what is older than 60 s. `now`: monotonic seconds."""
        second = int(now)
        gap = second - self._newest
        if gap <= 0:
            return
        if gap >= _WINDOW_SECONDS:
            self._sums = [0] * _WINDOW_SECONDS
            self.total = 0
        else:
            for step in range(self._newest + 1, second + 1):
                slot = step % _WINDOW_SECONDS
                self.total -= self._sums[slot]
                self._sums[slot] = 0
        self._newest = second

    def add(self, now: float, amount: int, at: float | None = None) -> None:
        """Adds `amount` (may be negative) to the step of `at`, or of now if `at` is unset or forgotten."""
        self.advance(now)
        second = self._newest
        if at is not None and second - int(at) < _WINDOW_SECONDS:
            second = int(at)
        self._sums[second % _WINDOW_SECONDS] += amount
        self.total += amount

    def seconds_until(self, room: int, limit: int) -> float:
        """Seconds until `room` fits under `limit`; 60 if it never does."""
        total = self.total
        for age in range(_WINDOW_SECONDS - 1, -1, -1):
            total -= self._sums[(self._newest - age) % _WINDOW_SECONDS]
            if total + room <= limit:
                return float(_WINDOW_SECONDS - age)
        return float(_WINDOW_SECONDS)


@dataclass(slots=True)
class _Account:
    """What one client has used. A client is a ClientKey: all its credentials share the account."""

    requests: SlidingMinute = field(default_factory=SlidingMinute)
    tokens: SlidingMinute = field(default_factory=SlidingMinute)
    concurrent: int = 0
    period: str = ""
    period_tokens: int = 0


@dataclass(slots=True)
class Reservation:
    """What one admitted request holds of its client's limits, until `Limits.settle`."""

    client: str
    tokens: int
    at: float
    settled: bool = False


class Limits:
    """The accounts of all clients of this process."""

    def __init__(self, share: float = 1.0) -> None:
        self._share = share
        self._accounts: dict[str, _Account] = {}

    def _scaled(self, limit: int) -> int:
        return max(1, ceil(limit * self._share))

    def exhausted(self, key: KeyEntry, wall: datetime) -> bool:
        """True if the key's budget of the current UTC period is used up."""
        if key.budget is None:
            return False
        account = self._account(key.client)
        self._roll(account, key.budget.period, wall)
        return account.period_tokens >= key.budget.tokens * self._share

    def demoted(self, key: KeyEntry, wall: datetime) -> bool:
        """True if the key's budget is used up and it goes on in a lower class."""
        demotes = key.budget is not None and key.budget.on_exhausted is OnExhausted.DEMOTE
        return demotes and self.exhausted(key, wall)

    def reserve(self, key: KeyEntry, route: ClassRoute, tokens: int, now: float, wall: datetime) -> Reservation:
        """Takes one request of about `tokens` tokens into the client's account, or raises Refusal (429)."""
        account = self._account(key.client)
        limits = key.limits
        caps = [cap for cap in (limits.max_concurrent, route.limits.max_concurrent_per_client) if cap is not None]
        if caps and account.concurrent >= self._scaled(min(caps)):
            raise Refusal(
                Reason.KEY_CONCURRENCY,
                f"This key already has {account.concurrent} requests running, its limit: wait for one to end.",
            )
        account.requests.advance(now)
        account.tokens.advance(now)
        if limits.requests_per_minute is not None:
            cap = self._scaled(limits.requests_per_minute)
            if account.requests.total + 1 > cap:
                raise Refusal(
                    Reason.KEY_REQUESTS,
                    f"This key is limited to {limits.requests_per_minute} requests a minute: slow down.",
                    retry_after_seconds=(wait := account.requests.seconds_until(1, cap)),
                    rate=SpentRate("requests", limits.requests_per_minute, 0, wait),
                )
        if limits.tokens_per_minute is not None:
            cap = self._scaled(limits.tokens_per_minute)
            if account.tokens.total > 0 and account.tokens.total + tokens > cap:
                raise Refusal(
                    Reason.KEY_TOKENS,
                    f"This key is limited to {limits.tokens_per_minute} tokens a minute: slow down.",
                    retry_after_seconds=(wait := account.tokens.seconds_until(tokens, cap)),
                    rate=SpentRate("tokens", limits.tokens_per_minute, max(0, cap - account.tokens.total), wait),
                )
        spent = self.exhausted(key, wall)  # also opens the account's period
        if spent and key.budget is not None and key.budget.on_exhausted is OnExhausted.REJECT:
            raise Refusal(
                Reason.BUDGET_EXHAUSTED,
                f"This key has used its {key.budget.tokens} tokens of the {key.budget.period.value.lower()} (UTC).",
                retry_after_seconds=60,
            )
        account.concurrent += 1
        account.requests.add(now, 1)
        account.tokens.add(now, tokens)
        return Reservation(key.client, tokens, now)

    def settle(self, reservation: Reservation, used_tokens: int, now: float) -> None:
        """Replaces the estimate by what was used and gives the place back. A second call changes nothing."""
        if reservation.settled:
            return
        reservation.settled = True
        account = self._accounts.get(reservation.client)
        if account is None:
            return
        account.concurrent -= 1
        account.tokens.add(now, used_tokens - reservation.tokens, at=reservation.at)
        account.period_tokens += used_tokens

    def keep_only(self, clients: frozenset[str]) -> None:
        """Forgets idle accounts of clients that no keyring names any more."""
        for name in [
            name for name, account in self._accounts.items() if name not in clients and not account.concurrent
        ]:
            del self._accounts[name]

    def concurrent(self, client: str) -> int:
        """Requests of `client` that hold a place now."""
        account = self._accounts.get(client)
        return account.concurrent if account else 0

    def __len__(self) -> int:
        """Clients with an account."""
        return len(self._accounts)

    def _account(self, client: str) -> _Account:
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = _Account()
        return account

    @staticmethod
    def _roll(account: _Account, period: BudgetPeriod, wall: datetime) -> None:
        current = wall.astimezone(UTC).strftime("%Y-%m-%d" if period is BudgetPeriod.DAY else "%Y-%m")
        if account.period != current:
            account.period, account.period_tokens = current, 0
