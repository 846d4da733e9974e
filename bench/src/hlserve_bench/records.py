"""What is known of one request when the run is over: the one input of every report, whether it ran over HTTP or in virtual time.

All times are seconds since the start of the run. None means "did not happen" or "not reported", never zero.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path


class Client(StrEnum):
    """The two kinds of client in a run."""

    CHAT = "interactive"
    AGENT = "agent"


class Ended(StrEnum):
    """How a request stands at the end of the run."""

    OK = "ok"
    FAILED = "failed"
    """An error answer, or a stream that ended in an error or too early."""
    UNFINISHED = "unfinished"
    """Neither done nor failed when the run was over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request."""

    client: Client
    request: str
    """Unique in the run."""
    scheduled_seconds: float
    """When it should have been sent: latencies count from here, so that a late client cannot flatter the server."""
    sent_seconds: float | None
    first_token_seconds: float | None = None
    last_token_seconds: float | None = None
    end_seconds: float | None = None
    ended: Ended
    input_tokens: int
    output_tokens: int = 0
    """Tokens that arrived."""
    wanted_tokens: int
    cached_tokens: int | None = None
    session: str | None = None
    session_rounds: int | None = None
    """Rounds of the whole session: a finished round counts as this fraction of a session."""
    class_name: str | None = None
    pool: str | None = None
    outcome: str | None = None
    reason: str | None = None
    """Why the router answered itself or sent the request elsewhere than to its class's first pool."""
    status: int | None = None
    error: str | None = None

    @property
    def ttft_seconds(self) -> float | None:
        """Scheduled time to first token."""
        return None if self.first_token_seconds is None else self.first_token_seconds - self.scheduled_seconds

    @property
    def tpot_seconds(self) -> float | None:
        """(last − first token) / (tokens − 1); None below two tokens."""
        if self.first_token_seconds is None or self.last_token_seconds is None or self.output_tokens < 2:
            return None
        return (self.last_token_seconds - self.first_token_seconds) / (self.output_tokens - 1)

    @property
    def e2e_seconds(self) -> float | None:
        """Scheduled time to the end of the reply."""
        return None if self.end_seconds is None else self.end_seconds - self.scheduled_seconds

    @property
    def lag_seconds(self) -> float | None:
        """How late the client itself sent it."""
        return None if self.sent_seconds is None else self.sent_seconds - self.scheduled_seconds

    def tokens_between(self, start: float, end: float) -> float:
        """Tokens that arrived in [start, end), the first at its time and the others evenly up to the last."""
        first, last = self.first_token_seconds, self.last_token_seconds
        if first is None or last is None or self.output_tokens == 0:
            return 0.0
        tokens = 1.0 if start <= first < end else 0.0
        if self.output_tokens == 1:
            return tokens
        others = self.output_tokens - 1
        if last == first:
            return tokens * (1 + others)
        overlap = min(last, end) - max(first, start)
        return tokens + others * max(0.0, overlap) / (last - first)


def write_records(path: Path, records: Iterable[RequestRecord]) -> None:
    """One JSON object a line."""
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(asdict(record), separators=(",", ":")) + "\n")


def read_records(path: Path) -> list[RequestRecord]:
    """What `write_records` wrote."""
    with path.open(encoding="utf-8") as file:
        return [_read(json.loads(line)) for line in file]


def _read(raw: dict[str, object]) -> RequestRecord:
    return RequestRecord(**{**raw, "client": Client(raw["client"]), "ended": Ended(raw["ended"])})  # type: ignore[arg-type]
