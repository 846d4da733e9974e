"""The lab's engine: one step after the other, in exact integer microseconds.

A step plans prefill, takes the time that the cost model says, and gives every sequence whose prompt is done one token. A
reply's first token is made in the step that finishes its prompt. Slots are refilled before the next step; an arrival at the
very end of a step is seen by the next one. Runs of equal steps are taken at once, which changes no result.
"""

import heapq
from collections import Counter, deque

from hlserve_capacity.engine.types import StepCost
from hlserve_capacity.lab.arrivals import Arrivals, ClosedLoop, OpenLoop
from hlserve_capacity.lab.batching import Batching, Chunked, Static
from hlserve_capacity.lab.records import LabRun, RequestRecord
from hlserve_capacity.lab.workload import LabRequest
from hlserve_capacity.linear import LinearCost


def run_open_loop(
    requests: list[LabRequest], batching: Batching, cost: StepCost, *, horizon_us: int | None = None
) -> LabRun:
    """Run a fixed schedule until all replies ended (None), or until the first step that ends at or after the horizon."""
    return _Engine(OpenLoop(requests), batching, cost, horizon_us).run()


def run_closed_loop(clients: ClosedLoop, batching: Batching, cost: StepCost, *, horizon_us: int) -> LabRun:
    """Run clients that wait for their replies, until the first step that ends at or after the horizon."""
    return _Engine(clients, batching, cost, horizon_us).run()


class _Engine:
    def __init__(self, arrivals: Arrivals, batching: Batching, cost: StepCost, horizon_us: int | None) -> None:
        if horizon_us is not None and horizon_us <= 0:
            raise ValueError(f"the horizon is {horizon_us} µs, it must be above 0")
        self._arrivals, self._cost, self._horizon_us = arrivals, cost, horizon_us
        self._max_batch, self._static = batching.max_batch, isinstance(batching, Static)
        self._budget = batching.budget_tokens if isinstance(batching, Chunked) else None
        # Only where a step's price does not depend on contexts do equal steps follow each other.
        self._equal_steps = isinstance(cost, LinearCost) and cost.context_token_us == 0
        self._now_us = 0
        self._step = 0
        self._records: list[RequestRecord] = []
        self._waiting: deque[RequestRecord] = deque()
        self._free_slots = list(range(self._max_batch))
        self._occupied = 0
        self._prefilling: deque[tuple[RequestRecord, int]] = deque()
        """(record, prompt tokens done)"""
        self._decoding: list[tuple[int, int, RequestRecord]] = []
        """Heap of (last step, order, record)."""
        self._order = 0
        self._context_tokens = 0
        self._held: list[RequestRecord] = []
        """Ended replies whose slots static batching still holds."""
        self._tokens = self._slot_steps = self._max_waiting = 0
        self._itl_counts: Counter[int] = Counter()

    def run(self) -> LabRun:
        while self._horizon_us is None or self._now_us < self._horizon_us:
            self._take_arrivals()
            self._admit()
            if self._occupied:
                self._run_step()
                continue
            next_us = self._arrivals.next_arrival_us()
            if next_us is None:
                break
            self._now_us = max(self._now_us, next_us)
        self._take_arrivals()
        return LabRun(
            records=tuple(self._records),
            not_arrived=self._arrivals.untaken(),
            end_us=self._now_us,
            steps=self._step,
            slot_steps=self._slot_steps,
            tokens=self._tokens,
            itl_counts=dict(self._itl_counts),
            max_waiting=self._max_waiting,
            waiting_at_end=len(self._waiting),
        )

    def _take_arrivals(self) -> None:
        next_us = self._arrivals.next_arrival_us()
        while next_us is not None and next_us <= self._now_us:
            record = RequestRecord(self._arrivals.take())
            self._records.append(record)
            self._waiting.append(record)
            next_us = self._arrivals.next_arrival_us()
        self._max_waiting = max(self._max_waiting, len(self._waiting))

    def _admit(self) -> None:
        if self._static and self._occupied:
            return
        while self._waiting and self._occupied < self._max_batch:
            record = self._waiting.popleft()
            record.slot, record.admitted_us = heapq.heappop(self._free_slots), self._now_us
            self._occupied += 1
            self._prefilling.append((record, 0))

    def _run_step(self) -> None:
        chunks, completed = self._plan_prefill()
        decoding = len(self._decoding)
        step_us = round(self._cost.step_us(self._charged_sequences(chunks, completed), self._context_tokens, chunks))
        count = self._equal_step_count(step_us) if self._equal_steps and not self._prefilling and not completed else 1
        self._now_us += step_us * count
        self._step += count
        self._slot_steps += self._occupied * count
        self._tokens += decoding * count + len(completed)
        self._context_tokens += decoding * count
        if decoding:
            self._itl_counts[step_us] += decoding * count
        while self._decoding and self._decoding[0][0] <= self._step:
            self._finish(heapq.heappop(self._decoding)[2])
        for record in completed:
            self._first_token(record)
        if self._static and not self._decoding and not self._prefilling:
            for record in self._held:
                self._release(record)
            self._held.clear()

    def _plan_prefill(self) -> tuple[list[tuple[int, int]], list[RequestRecord]]:
        """The step's chunks, and the requests whose prompts they finish. An empty prompt is finished without a chunk."""
        chunks: list[tuple[int, int]] = []
        completed: list[RequestRecord] = []
        left = self._budget
        kept: deque[tuple[RequestRecord, int]] = deque()
        while self._prefilling:
            record, done = self._prefilling.popleft()
            todo = record.request.prompt_tokens - done
            piece = todo if left is None else min(todo, left)
            if piece:
                chunks.append((piece, done))
                left = None if left is None else left - piece
            if piece == todo:
                completed.append(record)
            else:
                kept.append((record, done + piece))
        self._prefilling = kept
        return chunks, completed

    def _charged_sequences(self, chunks: list[tuple[int, int]], completed: list[RequestRecord]) -> int:
        """Sequences in the step that bring no chunk; static batching pays for the slots it holds as well."""
        without_chunk = sum(1 for record in completed if not record.request.prompt_tokens)
        return len(self._decoding) + len(self._held) + without_chunk

    def _equal_step_count(self, step_us: int) -> int:
        """How many steps like this one follow before anything can change."""
        count = self._decoding[0][0] - self._step
        if not self._static and self._occupied < self._max_batch:
            next_us = self._arrivals.next_arrival_us()
            if next_us is not None:
                count = min(count, -(-(next_us - self._now_us) // step_us))
        if self._horizon_us is not None:
            count = min(count, -(-(self._horizon_us - self._now_us) // step_us))
        return max(1, count)

    def _first_token(self, record: RequestRecord) -> None:
        record.first_token_us = self._now_us
        self._context_tokens += record.request.prompt_tokens
        if record.request.output_tokens == 1:
            self._finish(record)
            return
        self._order += 1
        heapq.heappush(self._decoding, (self._step + record.request.output_tokens - 1, self._order, record))

    def _finish(self, record: RequestRecord) -> None:
        record.finished_us = self._now_us
        self._arrivals.finished(self._now_us)
        if self._static:
            self._held.append(record)
        else:
            self._release(record)

    def _release(self, record: RequestRecord) -> None:
        record.released_us = self._now_us
        self._context_tokens -= record.request.prompt_tokens + record.request.output_tokens - 1
        self._occupied -= 1
        if record.slot is not None:
            heapq.heappush(self._free_slots, record.slot)
