"""What a lab run leaves behind."""

from collections.abc import Mapping
from dataclasses import dataclass

from hlserve_capacity.lab.workload import LabRequest


@dataclass(slots=True)
class RequestRecord:
    """The life of one request. Times are microseconds of the run's clock; None: it did not get that far."""

    request: LabRequest
    slot: int | None = None
    admitted_us: int | None = None
    first_token_us: int | None = None
    finished_us: int | None = None
    """Its last token was made."""
    released_us: int | None = None
    """Its slot became free; later than `finished_us` only under static batching."""

    @property
    def ttft_us(self) -> int | None:
        """Time to first token, from the scheduled arrival."""
        return None if self.first_token_us is None else self.first_token_us - self.request.arrival_us

    @property
    def e2e_us(self) -> int | None:
        """From the scheduled arrival to the last token."""
        return None if self.finished_us is None else self.finished_us - self.request.arrival_us

    @property
    def tpot_us(self) -> float | None:
        """(end - first token) / (n - 1); None if unfinished or a single token."""
        if self.finished_us is None or self.first_token_us is None or self.request.output_tokens < 2:
            return None
        return (self.finished_us - self.first_token_us) / (self.request.output_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRun:
    """A finished run, drained or cut at a horizon."""

    records: tuple[RequestRecord, ...]
    """Every request that arrived, in order of arrival."""
    not_arrived: int
    """Scheduled requests beyond the end of a run that was cut."""
    end_us: int
    steps: int
    slot_steps: int
    """Slots in use, summed over the steps: what was paid for."""
    tokens: int
    """Tokens produced, also those of unfinished replies."""
    itl_counts: Mapping[int, int]
    """Gap between two tokens of one reply in microseconds, to how often it occurred."""
    max_waiting: int
    waiting_at_end: int
