"""What can go wrong between the operator and the API server, by what has to be done about it."""


class OperatorError(Exception):
    """Base of every error that the operator raises on purpose. The message is a sentence for people."""


class StartError(OperatorError):
    """The operator cannot start. The message says what to change."""


class NotLeaderError(OperatorError):
    """A write was asked for while this process does not hold the Lease. Nothing was sent."""


class ApiError(OperatorError):
    """A call to the API server did not succeed. `status` is the HTTP status, 0 if there was no answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotFoundError(ApiError):
    """There is no such object (404), or no such kind on this cluster."""


class ConflictError(ApiError):
    """The object changed since it was read, exists already, or is another one of the same name (409): read again."""


class ForbiddenError(ApiError):
    """The operator's Role does not allow the call, or an admission plugin such as a quota refuses it (403)."""


class InvalidError(ApiError):
    """The API server refuses the object as it is (400, 422): sending it again would not help."""


class GoneError(ApiError):
    """The version that a list or a watch should go on from is no longer known (410): list anew."""


class ThrottledError(ApiError):
    """The API server asks for less (429, or 503 with Retry-After). Nothing was done."""

    def __init__(self, message: str, status: int, retry_after_seconds: float) -> None:
        super().__init__(message, status)
        self.retry_after_seconds = retry_after_seconds


class UnavailableError(ApiError):
    """No answer in time, no connection, a 5xx, or a refused token (401). Whether a write was done is not known."""
