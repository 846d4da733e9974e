"""The bytes of the answers and error events that the router makes itself, in the client's own API shape."""

from dataclasses import dataclass
from math import ceil
from random import Random
from typing import Any

import msgspec

from hlserve_api import headers as names
from hlserve_api.answers import (
    ANSWERS,
    ANTHROPIC_ERROR_TYPES,
    OPENAI_ERROR_TYPES,
    RETRY_AFTER_MAX_SECONDS,
    RETRY_AFTER_MIN_SECONDS,
    Reason,
)
from hlserve_router.errors import Refusal, SpentRate
from hlserve_router.state import Finish, Shape

_encode = msgspec.json.encode
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class AnswerBytes:
    """A complete HTTP answer."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


def answer(refusal: Refusal, shape: Shape, request_id: str, random: Random) -> AnswerBytes:
    """The answer for `refusal`: status, retry advice, and the error body in `shape`."""
    rule = ANSWERS[refusal.reason]
    body = _encode(error_body(refusal, shape, request_id))
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (names.OUTCOME.encode(), rule.outcome.value.encode()),
        (names.REASON.encode(), refusal.reason.value.encode()),
    ]
    if rule.retry_after:
        seconds = retry_after_seconds(refusal.retry_after_seconds, random)
        headers.append((names.RETRY_AFTER.encode(), b"%d" % seconds))
    if refusal.rate is not None:
        headers.extend(_rate_headers(refusal.rate))
    if rule.no_retry or refusal.late:
        headers.append((names.SHOULD_RETRY.encode(), b"false"))
    if rule.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.allow is not None:
        headers.append((b"allow", refusal.allow.encode()))
    return AnswerBytes(rule.status, tuple(headers), body)


def _rate_headers(rate: SpentRate) -> Headers:
    values = (
        (names.RATE_LIMIT, f"{rate.limit}"),
        (names.RATE_REMAINING, f"{rate.remaining}"),
        (names.RATE_RESET, f"{max(1, ceil(rate.reset_seconds))}s"),
    )
    return [(f"{name}{rate.unit}".encode(), value.encode()) for name, value in values]


def retry_after_seconds(hint: float | None, random: Random) -> int:
    """Whole seconds from 1 to 60, at or after the hint (default 2 s), spread so that clients do not return at once."""
    base = 2.0 if hint is None else max(hint, RETRY_AFTER_MIN_SECONDS)
    latest = min(base + max(3.0, base / 2), RETRY_AFTER_MAX_SECONDS)
    earliest = base if base <= RETRY_AFTER_MAX_SECONDS else latest * 0.75
    return min(ceil(earliest + random.random() * (latest - earliest)), RETRY_AFTER_MAX_SECONDS)


def error_body(refusal: Refusal, shape: Shape, request_id: str) -> dict[str, Any]:
    """The JSON error object of `refusal`."""
    status = ANSWERS[refusal.reason].status
    if shape is Shape.ANTHROPIC:
        return {
            "type": "error",
            "error": {
                "type": ANTHROPIC_ERROR_TYPES[status],
                "message": refusal.message,
                "details": {"error_code": refusal.reason.value},
            },
            "request_id": request_id,
        }
    return {"error": _openai_error(status, refusal.reason, refusal.message, refusal.param)}


def _openai_error(status: int, reason: Reason, message: str, param: str | None) -> dict[str, Any]:
    return {"message": message, "type": OPENAI_ERROR_TYPES[status], "param": param, "code": reason.value}


def error_event(refusal: Refusal, shape: Shape, request_id: str, *, status: int | None = None) -> bytes:
    """One error event for an open stream. `status`: what the engine had answered, where that is the cause."""
    body = error_body(refusal, shape, request_id)
    if shape is Shape.ANTHROPIC:
        return b"event: error\ndata: " + _encode(body) + b"\n\n"
    if status is not None:
        body["error"]["status"] = status
    if shape is Shape.RESPONSES:
        error = body["error"]
        flat = {"type": "error", "code": error["code"], "message": error["message"], "param": error["param"]}
        return b"event: error\ndata: " + _encode({**flat, "sequence_number": 0, "error": error}) + b"\n\n"
    return b"data: " + _encode(body) + b"\n\n"


def engine_error_event(body: bytes, finish: Finish) -> bytes:
    """One error event for an open stream that holds an engine's own error `body`."""
    name = b"event: error\n" if finish is Finish.MESSAGE_STOP else b""
    return name + b"data: " + body.replace(b"\n", b"\ndata: ") + b"\n\n"


PING = {
    Shape.OPENAI: b": ping\n",
    Shape.RESPONSES: b": ping\n",
    Shape.ANTHROPIC: b'event: ping\ndata: {"type": "ping"}\n\n',
}
"""Written only at an event boundary. A comment ends with one newline: two would dispatch an event of no data."""
