"""The answers that the router gives itself, and the outcome that every request ends in.

One table (`ANSWERS`) maps each reason to its status, outcome and retry advice; the router, its tests and the reference
page all read it. SDK behaviour behind the retry advice: the official OpenAI and Anthropic SDKs retry 408, 409, 429 and
every 5xx twice, sleep for `Retry-After`, and obey `x-should-retry: false`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Outcome(StrEnum):
    """How a request ended. Closed: each request gets exactly one, as metric label and log field."""

    OK = "ok"
    ENGINE_REJECTED = "engine_rejected"
    ENGINE_ERROR = "engine_error"
    REJECTED = "rejected"
    SHED = "shed"
    TIMEOUT = "timeout"
    CLIENT_GONE = "client_gone"
    TRUNCATED = "truncated"
    INTERNAL_ERROR = "internal_error"


class Reason(StrEnum):
    """Why the router answered itself: `error.code` in the OpenAI shape, `error.details.error_code` in Anthropic's."""

    INVALID_JSON = "invalid_json"
    MISSING_MODEL = "missing_model"
    DUPLICATE_FIELD = "duplicate_field"
    RESERVED_FIELD = "reserved_field"
    UNKNOWN_CLASS = "unknown_class"
    MEDIA_NOT_ALLOWED = "media_not_allowed"
    RESPONSE_STORE_OFF = "response_store_off"
    MISSING_KEY = "missing_key"
    INVALID_KEY = "invalid_key"
    KEY_EXPIRED = "key_expired"
    KEY_NOT_YET_VALID = "key_not_yet_valid"
    CONFLICTING_KEYS = "conflicting_keys"
    CLASS_NOT_ALLOWED = "class_not_allowed"
    KEY_SUSPENDED = "key_suspended"
    MODEL_NOT_FOUND = "model_not_found"
    UNKNOWN_PATH = "unknown_path"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TIMEOUT = "body_timeout"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    BODY_TOO_LARGE = "body_too_large"
    INPUT_TOO_LARGE = "input_too_large"
    HEADERS_TOO_LARGE = "headers_too_large"
    KEY_REQUESTS = "key_requests"
    KEY_TOKENS = "key_tokens"
    KEY_CONCURRENCY = "key_concurrency"
    BUDGET_EXHAUSTED = "budget_exhausted"
    INTERNAL_ERROR = "internal_error"
    ENGINE_CONNECT = "engine_connect"
    ENGINE_RESET = "engine_reset"
    ENGINE_TRUNCATED = "engine_truncated"
    ENGINE_PROTOCOL = "engine_protocol"
    QUEUE_FULL = "queue_full"
    QUEUE_EXPIRED = "queue_expired"
    NO_ENDPOINT = "no_endpoint"
    SCALING_FROM_ZERO = "scaling_from_zero"
    DRAINING = "draining"
    ENGINE_BUSY = "engine_busy"
    CLASS_MISSING = "class_missing"
    TOTAL_TIMEOUT = "total_timeout"
    ENGINE_SILENT = "engine_silent"


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, outcome and retry advice of one reason.

    `retry_after`: send `Retry-After` of 1 to 60 s with jitter. `no_retry`: send `x-should-retry: false`.
    """

    status: int
    outcome: Outcome
    retry_after: bool = False
    no_retry: bool = False


RETRY_AFTER_MIN_SECONDS: Final = 1
RETRY_AFTER_MAX_SECONDS: Final = 60


def _answers() -> dict[Reason, Answer]:
    table: dict[Reason, Answer] = {}

    def add(status: int, outcome: Outcome, *reasons: Reason, retry_after: bool = False, no_retry: bool = False) -> None:
        for reason in reasons:
            table[reason] = Answer(status, outcome, retry_after, no_retry)

    r = Reason
    add(
        400, Outcome.REJECTED, r.INVALID_JSON, r.MISSING_MODEL, r.DUPLICATE_FIELD, r.RESERVED_FIELD, r.UNKNOWN_CLASS,
        r.MEDIA_NOT_ALLOWED, r.RESPONSE_STORE_OFF,
    )  # fmt: skip
    add(
        401, Outcome.REJECTED, r.MISSING_KEY, r.INVALID_KEY, r.KEY_EXPIRED, r.KEY_NOT_YET_VALID, r.CONFLICTING_KEYS,
    )  # fmt: skip
    add(403, Outcome.REJECTED, r.CLASS_NOT_ALLOWED, r.KEY_SUSPENDED)
    add(404, Outcome.REJECTED, r.MODEL_NOT_FOUND, r.UNKNOWN_PATH)
    add(405, Outcome.REJECTED, r.METHOD_NOT_ALLOWED)
    add(408, Outcome.REJECTED, r.BODY_TIMEOUT)
    add(415, Outcome.REJECTED, r.UNSUPPORTED_MEDIA_TYPE)
    add(413, Outcome.REJECTED, r.BODY_TOO_LARGE, r.INPUT_TOO_LARGE)
    add(431, Outcome.REJECTED, r.HEADERS_TOO_LARGE)
    add(429, Outcome.REJECTED, r.KEY_REQUESTS, r.KEY_TOKENS, r.KEY_CONCURRENCY, retry_after=True)
    add(429, Outcome.REJECTED, r.BUDGET_EXHAUSTED, retry_after=True, no_retry=True)
    add(500, Outcome.INTERNAL_ERROR, r.INTERNAL_ERROR)
    add(502, Outcome.ENGINE_ERROR, r.ENGINE_CONNECT, r.ENGINE_RESET, r.ENGINE_PROTOCOL)
    add(502, Outcome.TRUNCATED, r.ENGINE_TRUNCATED)
    add(
        503, Outcome.SHED, r.QUEUE_FULL, r.QUEUE_EXPIRED, r.NO_ENDPOINT, r.SCALING_FROM_ZERO, r.DRAINING,
        r.ENGINE_BUSY, r.CLASS_MISSING, retry_after=True,
    )  # fmt: skip
    add(504, Outcome.TIMEOUT, r.TOTAL_TIMEOUT, r.ENGINE_SILENT, no_retry=True)
    return table


ANSWERS: Final = _answers()

OPENAI_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "server_error",
    502: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
ANTHROPIC_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
