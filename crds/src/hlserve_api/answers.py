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
    OUTPUT_TOO_LARGE = "output_too_large"
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
        r.MEDIA_NOT_ALLOWED, r.RESPONSE_STORE_OFF, r.OUTPUT_TOO_LARGE,
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

OUTCOME_MEANINGS: Final = {
    Outcome.OK: "The engine's reply reached the client whole.",
    Outcome.ENGINE_REJECTED: "The engine answered with a 4xx, which was passed on as it was.",
    Outcome.ENGINE_ERROR: "The engine could not be reached, or broke off before the first byte, after the allowed retries.",
    Outcome.REJECTED: "The request itself, its key, or a limit of its key did not allow it.",
    Outcome.SHED: "There was no capacity in time; nothing was generated.",
    Outcome.TIMEOUT: "A deadline of the class passed.",
    Outcome.CLIENT_GONE: "The client went away before the end.",
    Outcome.TRUNCATED: "The reply broke off after its first byte; the client was told.",
    Outcome.INTERNAL_ERROR: "A fault of the router itself.",
}

REASON_MEANINGS: Final = {
    Reason.INVALID_JSON: "The body is not a JSON object: check what the client sends.",
    Reason.MISSING_MODEL: "The body has no `model`: name one of `GET /v1/models`.",
    Reason.DUPLICATE_FIELD: "A field that decides where the request goes stands in the body twice: send it once.",
    Reason.RESERVED_FIELD: "The body has a field that belongs to the router and the engine: remove it.",
    Reason.UNKNOWN_CLASS: "`x-hlserve-class` names no WorkloadClass: correct or remove the header.",
    Reason.MEDIA_NOT_ALLOWED: "The body names media that the pool does not fetch: send it as `data:`, or have the host added to "
    "`allowedMediaDomains`.",
    Reason.RESPONSE_STORE_OFF: "The pool keeps no responses: send the conversation instead of `previous_response_id`, or enable "
    "`responseStore`.",
    Reason.MISSING_KEY: "There is no key: send `Authorization: Bearer KEY` or `x-api-key: KEY`.",
    Reason.INVALID_KEY: "The key is unknown or revoked; the two are not told apart.",
    Reason.KEY_EXPIRED: "The key is past its `notAfter`: ask for a new one.",
    Reason.KEY_NOT_YET_VALID: "The key's `notBefore` lies ahead: wait, or ask for another.",
    Reason.CONFLICTING_KEYS: "`Authorization` and `x-api-key` hold different keys: send one.",
    Reason.CLASS_NOT_ALLOWED: "The key may not run in the class of the header: remove the header, or have the class added to "
    "`allowedClasses`.",
    Reason.KEY_SUSPENDED: "The client is suspended: ask whoever runs the platform.",
    Reason.MODEL_NOT_FOUND: "There is no such model for this key: `GET /v1/models` lists those there are.",
    Reason.UNKNOWN_PATH: "The router serves no such path.",
    Reason.METHOD_NOT_ALLOWED: "The path exists, with another method.",
    Reason.BODY_TIMEOUT: "The body did not arrive in time: send it again.",
    Reason.UNSUPPORTED_MEDIA_TYPE: "The body must be sent as `application/json`.",
    Reason.BODY_TOO_LARGE: "The body has more bytes than the router takes.",
    Reason.INPUT_TOO_LARGE: "The prompt is longer than the class or the model allows: shorten it.",
    Reason.OUTPUT_TOO_LARGE: "The class limits the length of replies, and the request asks for more or names no limit: send one that "
    "is not above it.",
    Reason.HEADERS_TOO_LARGE: "The head has more bytes or headers than the router takes.",
    Reason.KEY_REQUESTS: "The client's requests per minute are used up: wait as `Retry-After` says.",
    Reason.KEY_TOKENS: "The client's tokens per minute are used up: wait as `Retry-After` says.",
    Reason.KEY_CONCURRENCY: "The client has as many requests running as it may: wait for one to end.",
    Reason.BUDGET_EXHAUSTED: "The client's tokens for this day or month are used up: wait for the next, or have the budget raised.",
    Reason.INTERNAL_ERROR: "A fault of the router: report the request id.",
    Reason.ENGINE_CONNECT: "No engine could be reached, after the allowed retries.",
    Reason.ENGINE_RESET: "The engine broke the connection before its first byte, after the allowed retries.",
    Reason.ENGINE_TRUNCATED: "The engine's reply broke off.",
    Reason.ENGINE_PROTOCOL: "The engine's answer was not valid HTTP.",
    Reason.QUEUE_FULL: "The class's queue is full: try later.",
    Reason.QUEUE_EXPIRED: "The request waited as long as its class and pool allow: try later.",
    Reason.NO_ENDPOINT: "No pool of the class has a replica that serves.",
    Reason.SCALING_FROM_ZERO: "A replica is being started: try again as `Retry-After` says.",
    Reason.DRAINING: "The router is about to end and takes no new requests: try again.",
    Reason.ENGINE_BUSY: "Every engine was busy until the queue time ran out: try later.",
    Reason.CLASS_MISSING: "The WorkloadClass of the key does not exist any more: ask whoever runs the platform.",
    Reason.TOTAL_TIMEOUT: "The request took longer than its class allows.",
    Reason.ENGINE_SILENT: "The engine said nothing for longer than the class allows.",
}
"""What each reason tells the client, with the next step. The reference page is made from it."""
