"""What is known of one request when a virtual run is over. All times are microseconds since its start; None: it did not happen."""

from dataclasses import dataclass
from enum import StrEnum


class Traffic(StrEnum):
    """The two kinds of client."""

    CHAT = "chat"
    AGENT = "agent"


class Outcome(StrEnum):
    """How a request stood at the end of the run."""

    OK = "ok"
    SHED = "shed"
    UNFINISHED = "unfinished"


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request. The cluster fills it in as the run goes on."""

    traffic: Traffic
    request: str
    """Unique in the run, and over the retries of one request."""
    scheduled_us: int
    """When the client wanted to send it: latencies count from here."""
    input_tokens: int
    wanted_tokens: int
    session: str | None = None
    round_index: int | None = None
    session_rounds: int | None = None
    pool: str | None = None
    replica: int | None = None
    sent_us: int | None = None
    """When the router gave it to an engine."""
    first_token_us: int | None = None
    last_token_us: int | None = None
    end_us: int | None = None
    output_tokens: int = 0
    cached_tokens: int | None = None
    attempts: int = 0
    outcome: Outcome = Outcome.UNFINISHED
    reason: str | None = None
    """Why the router answered itself, or went elsewhere than to the class's pool."""

    @property
    def ttft_us(self) -> int | None:
        """Scheduled time to first token."""
        return None if self.first_token_us is None else self.first_token_us - self.scheduled_us

    @property
    def tpot_us(self) -> float | None:
        """(last − first token) / (tokens − 1); None below two tokens or before the end."""
        if self.first_token_us is None or self.last_token_us is None or self.output_tokens < 2:
            return None
        return (self.last_token_us - self.first_token_us) / (self.output_tokens - 1)

    @property
    def e2e_us(self) -> int | None:
        """Scheduled time to the end."""
        return None if self.end_us is None else self.end_us - self.scheduled_us

    def tokens_between(self, start_us: int, end_us: int) -> float:
        """Reply tokens made in [start, end): the first at its time, the others spread evenly up to the last."""
        first, last = self.first_token_us, self.last_token_us
        if first is None or last is None or self.output_tokens == 0:
            return 0.0
        here = 1.0 if start_us <= first < end_us else 0.0
        if self.output_tokens == 1 or last <= first:
            return here * self.output_tokens
        return here + (self.output_tokens - 1) * max(0, min(last, end_us) - max(first, start_us)) / (last - first)
