"""What follows a try that failed below HTTP: once more, if no byte of an answer went out yet, or a 502. Pure."""

from typing import Final

from hlserve_api.answers import Reason
from hlserve_api.routing import Intent
from hlserve_router.errors import Refusal
from hlserve_router.state import Failure

EXTRA_ATTEMPTS: Final = {Intent.INTERACTIVE: 1, Intent.AGENT: 2, Intent.BATCH: 2}
BUDGET_RATIO: Final = 0.1
BUDGET_MAX: Final = 10.0
_ANSWERS: Final = {
    Failure.CONNECT: (Reason.ENGINE_CONNECT, "The engine could not be reached. Try again."),
    Failure.RESET: (Reason.ENGINE_RESET, "The engine broke the connection. Try again."),
    Failure.TRUNCATED: (
        Reason.ENGINE_TRUNCATED,
        "The engine ended its answer too early: what came is not complete. Try again.",
    ),
    Failure.PROTOCOL: (
        Reason.ENGINE_PROTOCOL,
        "The engine's answer was not valid HTTP. Try again; the platform team sees it in the log.",
    ),
}


class RetryBudget:
    """Retries are at most a tenth of the requests, plus a burst of ten: a fleet that fails must not get double load."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = BUDGET_MAX

    def deposit(self) -> None:
        """A request was dispatched for the first time."""
        self._left = min(BUDGET_MAX, self._left + BUDGET_RATIO)

    def withdraw(self) -> bool:
        """Takes one retry; False if the budget is used up."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


def may_retry(intent: Intent, attempts: int, failure: Failure, took_seconds: float, cutoff_seconds: float) -> bool:
    """True if a try that failed this way after `took_seconds` should be repeated on another endpoint.

    A failure that took longer than the class's cut-off is not repeated: the wait would be doubled.
    """
    if attempts > EXTRA_ATTEMPTS[intent]:
        return False
    return failure is Failure.CONNECT or took_seconds <= cutoff_seconds


def failed(failure: Failure, *, late: bool = False) -> Refusal:
    """The 502 for a request whose last try failed this way. `late`: after the class's retry cut-off."""
    reason, message = _ANSWERS[failure]
    return Refusal(reason, message, late=late)
