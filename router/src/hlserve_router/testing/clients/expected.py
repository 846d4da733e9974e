"""What a client's user sees of each answer of the router. The tests compare real clients with it; the reference page shows it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from hlserve_api.answers import ANSWERS, ANTHROPIC_ERROR_TYPES, OPENAI_ERROR_TYPES, Reason
from hlserve_router.testing.clients.record import Report
from hlserve_router.testing.clients.situations import Api, needs_raw_request


class Waits(StrEnum):
    """How long a client waits before it tries again."""

    NOT = "does not retry"
    AS_TOLD = "as `Retry-After` says"
    BACKOFF = "about 0.5 s, then 1 s"


@dataclass(frozen=True, slots=True)
class Client:
    """A client and the environment that it runs in."""

    name: str
    driver: str
    api: Api
    package: str
    exceptions: Mapping[int, str]
    """Exception class by status; 500 stands for every status above it that is not named."""
    tries: int = 3
    """Requests in all, where it retries."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Its own names for exceptions of the SDKs that follow from no status."""
    tells_reason: bool = True
    """Whether its exceptions have the reason in a field."""
    provider: str = ""
    """Which of its ways to an API it is told to take, where it has several."""

    def exception(self, status: int) -> str:
        """The class of the exception for a status."""
        return self.exceptions.get(status) or self.exceptions[500 if status >= 500 else 400]

    def other(self, name: str | None) -> str | None:
        """The class of the exception that is `name` in the SDKs."""
        return name if name is None else self.others.get(name, name)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of the table."""

    exception: str
    status: int | None
    code: str | None
    kind: str | None
    tries: int
    waits: Waits
    request_id: bool


_OPENAI: Final = {
    400: "BadRequestError", 401: "AuthenticationError", 403: "PermissionDeniedError", 404: "NotFoundError",
    405: "APIStatusError", 408: "APIStatusError", 413: "APIStatusError", 415: "APIStatusError", 429: "RateLimitError",
    431: "APIStatusError", 500: "InternalServerError",
}  # fmt: skip
_ANTHROPIC_1: Final = {**_OPENAI, 413: "RequestTooLargeError"}
_ANTHROPIC_2: Final = {
    **_OPENAI, 408: "RequestTimeoutError", 413: "ContentTooLargeError", 431: "RequestHeaderFieldsTooLargeError",
    503: "ServiceUnavailableError", 504: "GatewayTimeoutError",
}  # fmt: skip
_LANGCHAIN: Final = {
    400: "OpenAIInvalidRequestError", 401: "OpenAIAuthenticationError", 403: "OpenAIPermissionDeniedError",
    404: "OpenAIModelNotFoundError", 405: "APIStatusError", 408: "APIStatusError", 413: "APIStatusError",
    415: "APIStatusError", 429: "OpenAIRateLimitError", 431: "APIStatusError", 500: "OpenAIAPIError",
}  # fmt: skip
SDKS: Final = (
    Client("openai", "openai", Api.OPENAI, "openai", _OPENAI),
    Client("openai-previous", "openai", Api.OPENAI, "openai", _OPENAI),
    Client("anthropic", "anthropic", Api.ANTHROPIC, "anthropic", _ANTHROPIC_2),
    Client("anthropic-previous", "anthropic", Api.ANTHROPIC, "anthropic", _ANTHROPIC_1),
)
"""The official SDKs: the newest of the last two majors of each."""
LANGCHAIN: Final = Client(
    "langchain", "langchain", Api.OPENAI, "langchain-openai", _LANGCHAIN,
    others={"APIConnectionError": "OpenAIConnectionError"},
)  # fmt: skip
"""LangChain's OpenAI client, which makes exceptions of its own from the SDK's."""
_LITELLM_OPENAI: Final = {
    400: "BadRequestError", 401: "AuthenticationError", 403: "APIError", 404: "NotFoundError", 408: "Timeout",
    413: "APIError", 429: "RateLimitError", 431: "APIError", 500: "InternalServerError", 502: "BadGatewayError",
    503: "ServiceUnavailableError", 504: "Timeout",
}  # fmt: skip
_LITELLM_ANTHROPIC: Final = {
    400: "BadRequestError", 401: "AuthenticationError", 403: "PermissionDeniedError", 404: "NotFoundError",
    408: "Timeout", 429: "RateLimitError", 500: "InternalServerError", 502: "BadGatewayError", 504: "Timeout",
}  # fmt: skip
_LITELLM_OTHERS: Final = {
    "APIConnectionError": "InternalServerError", "APIError": "MidStreamFallbackError",
    "APIStatusError": "MidStreamFallbackError",
}  # fmt: skip
LITELLM: Final = (
    Client(
        "litellm", "litellm", Api.OPENAI, "litellm", _LITELLM_OPENAI,
        others=_LITELLM_OTHERS, tells_reason=False, provider="openai/",
    ),
    Client(
        "litellm", "litellm", Api.ANTHROPIC, "litellm", _LITELLM_ANTHROPIC,
        tries=1, others=_LITELLM_OTHERS, tells_reason=False, provider="anthropic/",
    ),
)  # fmt: skip
"""litellm: over the `openai` SDK to the one API, and with an HTTP client of its own, which does not retry, to the other."""


def reaches(client: Client, reason: Reason) -> bool:
    """Whether this client can be made to send what has this answer."""
    if client in SDKS:
        return True
    # litellm looks at messages for Anthropic by itself and refuses such an image.
    own = client in LITELLM and client.api is Api.ANTHROPIC and reason is Reason.MEDIA_NOT_ALLOWED
    return not own and not needs_raw_request(reason)


def is_retried(reason: Reason, *, late: bool = False) -> bool:
    """Whether the official SDKs try again: 408, 409, 429 and every 5xx, unless told not to."""
    rule = ANSWERS[reason]
    return (rule.status in (408, 409, 429) or rule.status >= 500) and not rule.no_retry and not late


def expected(reason: Reason, client: Client, *, late: bool = False) -> Outcome:
    """What the answer of a reason becomes in a client."""
    rule = ANSWERS[reason]
    types = ANTHROPIC_ERROR_TYPES if client.api is Api.ANTHROPIC else OPENAI_ERROR_TYPES
    retried = is_retried(reason, late=late)
    waits = Waits.NOT if not retried else Waits.AS_TOLD if rule.retry_after else Waits.BACKOFF
    return Outcome(
        client.exception(rule.status), rule.status, reason.value, types[rule.status],
        client.tries if retried else 1, waits, True,
    )  # fmt: skip


def observed(report: Report) -> Outcome | None:
    """The same of a real call; None: there was no exception."""
    raised = report.raised
    if raised is None:
        return None
    return Outcome(
        raised.name, raised.status, raised.code, raised.kind, report.tries, _waits(report), bool(raised.request_id)
    )


def _waits(report: Report) -> Waits:
    sleeps = report.sleeps_seconds
    if not sleeps:
        return Waits.NOT
    told = all(seconds == int(seconds) and 1 <= seconds <= 60 for seconds in sleeps)
    return Waits.AS_TOLD if told else Waits.BACKOFF
