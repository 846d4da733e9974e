"""The requests that hold KV: who prefills, who decodes, and who ends at which decode iteration."""

import heapq
from collections.abc import Iterator

from hlserve_capacity.engine.sequence import Phase, Sequence


class RunningSet:
    """Running requests. A decode iteration costs the same however many rows it has: only sums move and the ends are looked at."""

    def __init__(self) -> None:
        self.prefilling: dict[str, Sequence] = {}
        self.decoding: dict[str, Sequence] = {}
        self.iteration = 0
        """Decode iterations so far."""
        self.context_tokens = 0
        """KV tokens of the decoding requests."""
        self._ends: list[tuple[int, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def made(self, sequence: Sequence) -> int:
        """Reply tokens so far."""
        if sequence.phase is Phase.DECODING:
            return sequence.output_tokens - sequence.finish_iteration + self.iteration
        return sequence.made

    def prefill(self, sequence: Sequence) -> None:
        """Waiting → prefilling."""
        sequence.phase = Phase.PREFILLING
        self.prefilling[sequence.request.rid] = sequence

    def decode(self, sequence: Sequence, remaining: int) -> None:
        """Prefilling → decoding, with `remaining` reply tokens to be made by decode iterations."""
        rid = sequence.request.rid
        del self.prefilling[rid]
        sequence.phase = Phase.DECODING
        sequence.finish_iteration = self.iteration + remaining
        self.decoding[rid] = sequence
        self.context_tokens += sequence.target
        if remaining:
            heapq.heappush(self._ends, (sequence.finish_iteration, sequence.order, sequence))

    def advance(self) -> Iterator[Sequence]:
        """One decode iteration. Yields the requests that made their last token in it; the caller takes them out."""
        self.iteration += 1
        self.context_tokens += len(self.decoding)
        ends = self._ends
        while ends and ends[0][0] <= self.iteration:
            _, _, sequence = heapq.heappop(ends)
            # An entry outlives a request that was aborted or retracted.
            if sequence.phase is Phase.DECODING and sequence.finish_iteration <= self.iteration:
                yield sequence

    def leave(self, sequence: Sequence) -> int:
        """Take a request out. Returns its resident KV tokens; the last reply token's KV is never written."""
        rid = sequence.request.rid
        if sequence.phase is not Phase.DECODING:
            del self.prefilling[rid]
            return sequence.resident
        resident = sequence.prompt_tokens + max(0, self.made(sequence) - 1)
        del self.decoding[rid]
        self.context_tokens -= resident
        return resident
