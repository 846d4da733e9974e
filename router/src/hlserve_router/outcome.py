"""How a request ended: exactly one `Ending` each."""

from dataclasses import dataclass

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
    if status < 400:
        return Ending(Outcome.OK, None, status)
    if status < 500:
        return Ending(Outcome.ENGINE_REJECTED, None, status)
    return Ending(Outcome.ENGINE_ERROR, None, status)


CLIENT_GONE = Ending(Outcome.CLIENT_GONE, None, 499)
