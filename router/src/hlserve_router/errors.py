"""What can go wrong in the router.

RouterError
├── Refusal        the router answers the client itself; carries a `Reason`
├── StepOrderError a request's step was taken before the one that it needs; ends as a 500
├── TableError     a routing document cannot be read; the last good one stays
└── StartError     the process cannot start; the command prints the sentence and exits with code 2
"""

from dataclasses import dataclass

from hlserve_api.answers import Reason


@dataclass(frozen=True, slots=True)
class SpentRate:
    """A limit a minute that a client has used up. `unit`: requests or tokens; `reset_seconds`: until the request fits."""

    unit: str
    limit: int
    remaining: int
    reset_seconds: float


class RouterError(Exception):
    """Root of the router's errors."""


class Refusal(RouterError):  # noqa: N818 - it is an answer more than an error
    """A request that the router answers itself.

    `message` says what to do. `param` names the body field or header at fault. `retry_after_seconds` is a hint for
    `Retry-After`; None lets the answer choose. `late` marks a 502 that came after the class's retry cut-off. `rate` is
    the limit that was hit. `allow` lists the methods that the path takes, for a 405.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        param: str | None = None,
        retry_after_seconds: float | None = None,
        late: bool = False,
        rate: SpentRate | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.param = param
        self.retry_after_seconds = retry_after_seconds
        self.late = late
        self.rate = rate
        self.allow = allow


class StepOrderError(RouterError):
    """A request's step was taken before the one that it needs: a fault of the router's own code."""


class TableError(RouterError):
    """A routing document that cannot be used, in one sentence."""


class StartError(RouterError):
    """The process cannot start, in one sentence."""
