"""How a request ended: exactly one `Ending` each."""

from dataclasses import dataclass
from typing import Final

from hlserve_api.answers import ANSWERS, Outcome, Reason


@dataclass(frozen=True, slots=True)
class Ending:
    """Outcome, reason (None when the router had none to give) and the HTTP status that tells what really happened.

    `status` is the engine's or the answer's status, also when a 200 had already been sent (an error event in a stream).
    """

    outcome: Outcome
    reason: Reason | None
    status: int


def refused(reason: Reason) -> Ending:
    """The ending of a request that the router answers itself."""
    answer = ANSWERS[reason]
    return Ending(answer.outcome, reason, answer.status)


def passed(status: int) -> Ending:
    """The ending of a complete engine answer with this status."""
    ending = _PASSED.get(status)
    if ending is None:
        ending = Ending(_outcome_of(status), None, status)
        if len(_PASSED) < _PASSED_MAX:
            _PASSED[status] = ending
    return ending


def _outcome_of(status: int) -> Outcome:
    if status < 400:
        return Outcome.OK
    return Outcome.ENGINE_REJECTED if status < 500 else Outcome.ENGINE_ERROR


_PASSED: dict[int, Ending] = {}
_PASSED_MAX: Final = 600
"""Endings are made once: nearly every request has one of very few."""
CLIENT_GONE = Ending(Outcome.CLIENT_GONE, None, 499)
