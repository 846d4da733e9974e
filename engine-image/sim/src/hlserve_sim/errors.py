"""Errors as SGLang 0.5.23 words and wraps them; each API has its own envelope."""

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType

from hlserve_capacity.engine.types import Refused, RejectReason

ANTHROPIC_ERROR_TYPES: Mapping[int, str] = MappingProxyType(
    {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        408: "request_timeout_error",
        429: "rate_limit_error",
        500: "api_error",
        502: "api_error",
        503: "overloaded_error",
        504: "api_error",
    }
)
QUEUE_FULL = "The request queue is full."
PRIORITY_DISABLED = "Using priority is disabled for this server. Please send a new request without a priority."
SHUTTING_DOWN = "The server is shutting down and takes no new requests."
RETRY_AFTER_SECONDS = 5


class ApiError(Exception):
    """A request that ends in an error answer.

    `kind` is the error type as the OpenAI routes name it; `headers` go with a plain (not streamed) answer.
    """

    def __init__(
        self,
        message: str,
        status: int = HTTPStatus.BAD_REQUEST,
        kind: str = "BadRequestError",
        param: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = int(status)
        self.kind = kind
        self.param = param
        self.headers = headers


class TooLongError(ApiError):
    """The request does not fit. On a stream it is told in the stream: status 200, an error event first."""


def too_long(prompt_tokens: int, context_length: int) -> TooLongError:
    """The prompt leaves no room in the context."""
    return TooLongError(
        f"The input ({prompt_tokens} tokens) is longer than the model's context length ({context_length} tokens)."
    )


def total_too_long(prompt_tokens: int, max_tokens: int, context_length: int) -> TooLongError:
    """Prompt and wanted reply together exceed the context."""
    return TooLongError(
        f"Requested token count exceeds the model's maximum context length of {context_length} tokens. You requested a total of "
        f"{prompt_tokens + max_tokens} tokens: {prompt_tokens} tokens from the input messages and {max_tokens} tokens for the "
        "completion. Please reduce the number of tokens in the input messages or the completion to fit within the limit."
    )


def unavailable(message: str) -> ApiError:
    """503: the engine cannot take the request now. On a stream the error's type is the name of the status."""
    return ApiError(
        message,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.SERVICE_UNAVAILABLE.name,
        headers={"retry-after": str(RETRY_AFTER_SECONDS)},
    )


def refusal(refused: Refused) -> ApiError:
    """The error of a request that the engine refused."""
    if refused.reason is RejectReason.TOO_LONG:
        return ApiError(refused.message)
    return unavailable(QUEUE_FULL)


def flat(error: ApiError) -> dict[str, object]:
    """The envelope of chat, completions and embeddings, also inside the `error` of a stream's error event."""
    return {"object": "error", "message": error.message, "type": error.kind, "param": error.param, "code": error.status}


def nested(error: ApiError) -> dict[str, object]:
    """The envelope of `/v1/responses` and `/v1/models/{id}`."""
    kind = "invalid_request_error" if error.kind == "BadRequestError" else error.kind
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.status}}


def native(error: ApiError) -> dict[str, object]:
    """The envelope of `/generate`."""
    return {"error": {"message": error.message}}


def anthropic(error: ApiError) -> dict[str, object]:
    """The envelope of `/v1/messages`. As upstream, a 5xx tells nothing about its cause."""
    message = error.message if error.status < HTTPStatus.INTERNAL_SERVER_ERROR else "Internal server error"
    return {
        "type": "error",
        "error": {"type": ANTHROPIC_ERROR_TYPES.get(error.status, "api_error"), "message": message},
    }
