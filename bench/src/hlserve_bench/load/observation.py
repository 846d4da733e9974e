"""What the client sees of one request while it runs."""

import time
from dataclasses import dataclass, field

from hlserve_bench.records import Client, Ended, RequestRecord


@dataclass(frozen=True, slots=True)
class RunClock:
    """Seconds since the start of the run, on the monotonic clock."""

    started: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started


@dataclass(slots=True, kw_only=True)
class Observation:
    """One request in the making; `record` freezes it."""

    client: Client
    request: str
    scheduled_seconds: float
    input_tokens: int
    wanted_tokens: int
    session: str | None = None
    session_rounds: int | None = None
    sent_seconds: float | None = None
    first_token_seconds: float | None = None
    last_token_seconds: float | None = None
    end_seconds: float | None = None
    ended: Ended = Ended.UNFINISHED
    output_tokens: int = 0
    cached_tokens: int | None = None
    class_name: str | None = None
    pool: str | None = None
    outcome: str | None = None
    reason: str | None = None
    status: int | None = None
    error: str | None = None
    retry_after_seconds: float | None = None

    def token_arrived(self, now: float) -> None:
        """One more token."""
        if self.first_token_seconds is None:
            self.first_token_seconds = now
        self.last_token_seconds = now
        self.output_tokens += 1

    def finish(self, ended: Ended, now: float) -> None:
        """The request is over."""
        self.ended = ended
        self.end_seconds = now

    def record(self) -> RequestRecord:
        """As it stands."""
        return RequestRecord(
            client=self.client,
            request=self.request,
            scheduled_seconds=self.scheduled_seconds,
            sent_seconds=self.sent_seconds,
            first_token_seconds=self.first_token_seconds,
            last_token_seconds=self.last_token_seconds,
            end_seconds=self.end_seconds,
            ended=self.ended,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            wanted_tokens=self.wanted_tokens,
            cached_tokens=self.cached_tokens,
            session=self.session,
            session_rounds=self.session_rounds,
            class_name=self.class_name,
            pool=self.pool,
            outcome=self.outcome,
            reason=self.reason,
            status=self.status,
            error=self.error,
        )
