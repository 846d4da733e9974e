"""When a request has taken too long, and when a stream that is silent needs a sign of life. Pure; monotonic seconds."""

from typing import Final

from hlserve_api.answers import Reason
from hlserve_api.routing import Timeouts
from hlserve_router.errors import Refusal
from hlserve_router.exchange import Exchange

CLIENT_TIMEOUT_MARGIN_SECONDS: Final = 10.0
"""An answer that is no stream is given up this long before its client would give up: then the client learns why."""


def total_deadline(exchange: Exchange, total_seconds: float) -> float:
    """When the request must be over: by its class, which gives it so long, or a little before its client would give up."""
    total = total_seconds
    timeout = exchange.head.read_timeout_seconds
    if timeout is not None and not exchange.streams:
        total = min(total, max(timeout - CLIENT_TIMEOUT_MARGIN_SECONDS, timeout / 2))
    return exchange.arrived + total


def too_long() -> Refusal:
    """The answer once the total deadline is over."""
    return Refusal(
        Reason.TOTAL_TIMEOUT, "The request took longer than it may: ask for less, or a class that waits longer."
    )


def engine_silent(exchange: Exchange, timeouts: Timeouts, last_read: float, now: float) -> Refusal | None:
    """The answer if the engine has sent nothing for too long. `last_read` 0: nothing yet, where only streams must begin."""
    if not last_read and not exchange.streams:
        return None
    limit = timeouts.silence_seconds if last_read else timeouts.start_seconds
    if now - (last_read or exchange.dispatched) <= limit:
        return None
    return Refusal(Reason.ENGINE_SILENT, f"The engine sent nothing for {limit} s.")


def peek_is_over(timeouts: Timeouts, head_at: float, now: float) -> bool:
    """True if the stream's status should no longer wait for its first event."""
    return now - head_at >= timeouts.peek_milliseconds / 1000


def needs_ping(timeouts: Timeouts, last_sign: float, now: float) -> bool:
    """True if the client of a stream has seen nothing since `last_sign` for so long that something may close it."""
    return now - last_sign >= timeouts.ping_seconds
