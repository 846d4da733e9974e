"""The simulated engine: SGLang's scheduling loop and HlServe's human-less mode over a step cost and a KV pool.

Pure: the driver owns the clock. One step is planned by `begin_step` and takes effect in `end_step`.
"""

from itertools import count

from hlserve_capacity.engine.accounting import count_step
from hlserve_capacity.engine.admission import SessionLedger
from hlserve_capacity.engine.mixing import KvPressure, NaiveStageGate, StageGate
from hlserve_capacity.engine.ordering import WaitingQueue, matched_tokens, service_order
from hlserve_capacity.engine.pool import KvPool
from hlserve_capacity.engine.radix import TOKEN_BYTES, token_key
from hlserve_capacity.engine.retraction import RETRACT_DECODE_STEPS, NewTokenRatio, retraction_order
from hlserve_capacity.engine.running import RunningSet
from hlserve_capacity.engine.sequence import Phase, Sequence
from hlserve_capacity.engine.starting import StartCheck
from hlserve_capacity.engine.types import (
    Accepted,
    EngineConfig,
    EngineEvent,
    EngineGauges,
    EngineRequest,
    EngineTotals,
    Finished,
    FinishReason,
    Refused,
    RejectReason,
    Retracted,
    Step,
    StepCost,
    Token,
)
from hlserve_capacity.engine.waiting import Admission, Wait, WaitReason

PENDING_WINDOW = 64
"""Waiting requests that the two-stage rule looks at."""


class Scheduler:
    """One engine replica. Implements `hlserve_capacity.engine.types.Engine`."""

    def __init__(self, config: EngineConfig, cost: StepCost) -> None:
        self.config = config
        self._cost = cost
        self._pool = KvPool(config.pool_tokens)
        self._tree = self._pool.tree
        self._queue = WaitingQueue()
        self._sessions = SessionLedger(config, self._tree)
        gate = NaiveStageGate if config.naive_two_stage else StageGate
        self._gate = gate(config.two_stage_enter, config.two_stage_leave)
        self._ratio = NewTokenRatio(config.new_token_ratio)
        self._running = RunningSet()
        self._check = StartCheck(config, self._pool, self._sessions, self._running, self._ratio)
        self._mixed = config.throughput_mode or (config.mixed_chunk and config.chunked_prefill_size is not None)
        self._whole_prompts = config.throughput_mode or config.chunked_prefill_size is None
        self._totals = EngineTotals()
        self._known: dict[str, Sequence] = {}
        self._orders = count()
        self._step: Step | None = None
        self._planned: list[tuple[Sequence, int]] = []
        self._doomed: list[Sequence] = []
        self._events: list[EngineEvent] = []
        self._queue_changed = False
        """Something happened since the queue was last found blocked."""

    # -- the driver's calls ------------------------------------------------------------------------------------------

    def submit(self, request: EngineRequest, now_us: int) -> Accepted | Refused:
        """Put a request into the queue, or say why not. Raises ValueError for an id in use and an empty prompt."""
        config = self.config
        if request.rid in self._known:
            raise ValueError(f"request id {request.rid!r} is in use: give every request its own")
        prompt_tokens = len(request.prompt)
        if prompt_tokens == 0 or request.output_tokens < 0:
            raise ValueError(f"request {request.rid!r} needs at least one prompt token and no negative output")
        limit = min(config.context_length, config.pool_tokens)
        if prompt_tokens + request.output_tokens > limit:
            return Refused(
                RejectReason.TOO_LONG,
                f"prompt of {prompt_tokens} tokens and reply of {request.output_tokens} exceed the {limit} this engine holds",
            )
        if config.max_queued_requests is not None and len(self._queue) >= config.max_queued_requests:
            return Refused(RejectReason.QUEUE_FULL, f"{len(self._queue)} requests wait already")
        sequence = Sequence(
            request=request,
            key=token_key(request.prompt),
            order=next(self._orders),
            arrived_us=now_us,
            prompt_tokens=prompt_tokens,
            target=prompt_tokens,
        )
        self._known[request.rid] = sequence
        if config.kv_aware_admission:
            if self._sessions.expire(now_us):
                self._queue_changed = True
            self._sessions.claim(sequence)
        self._enqueue(sequence)
        self._totals.requests += 1
        return Accepted()

    def abort(self, rid: str, now_us: int) -> bool:
        """Remove a request by its exact id, in whatever state. False: not here. See `Engine.abort` for the event."""
        sequence = self._known.get(rid)
        if sequence is None or sequence.aborted:
            return False
        sequence.aborted = True
        self._totals.aborted += 1
        if self._step is not None and sequence.phase is not Phase.WAITING:
            self._doomed.append(sequence)
            return True
        self._drop(sequence, now_us)
        if self._step is not None:
            self._events.append(Finished(rid, FinishReason.ABORT))
        return True

    def begin_step(self, now_us: int) -> Step | None:
        """Plan one iteration. None: nothing can run now; `next_wakeup_us` says whether waiting alone helps."""
        if self._step is not None:
            raise RuntimeError("a step is running: call end_step before the next begin_step")
        if self.config.kv_aware_admission and self._sessions.expire(now_us):
            self._queue_changed = True
        if not self.config.reserve_output:
            self._prepare_decode()
        if self.config.naive_two_stage:
            self._start_waiting([], self._pool.capacity_tokens, now_us)
        decoding = len(self._running.decoding)
        planned = [] if self._decode_only() else self._plan_prefill(decoding, now_us)
        if not planned and not decoding:
            planned = self._plan_stuck(now_us)
            if not planned:
                self._ratio.reset()
                return None
        rows = decoding if self._mixed or not planned else 0
        chunk_tokens = sum(tokens for _, tokens in planned)
        if not self._pool.make_free(rows + chunk_tokens):
            raise RuntimeError("admission promised KV that is not there")
        context = self._running.context_tokens if rows else 0
        duration = self._cost.step_us(rows, context, [(tokens, item.resident) for item, tokens in planned])
        boundaries = sum(1 for item, tokens in planned if tokens < item.todo)
        boundary_us = boundaries * self.config.chunk_boundary_us
        self._planned = planned
        self._step = Step(
            start_us=now_us,
            duration_us=max(1, round(duration + boundary_us)),
            decode_sequences=rows,
            decode_context_tokens=context,
            chunks=tuple((item.request.rid, tokens, item.resident) for item, tokens in planned),
        )
        count_step(self._totals, self._step, boundary_us)
        return self._step

    def end_step(self, now_us: int) -> list[EngineEvent]:
        """Deliver the step: every token, in order of the requests' start, then the requests that left."""
        step = self._running_step()
        events, self._events = self._events, []
        if step.decode_sequences:
            made = self._running.iteration + 1
            events += [
                Token(rid, sequence.output_tokens - 1 - sequence.finish_iteration + made)
                for rid, sequence in self._running.decoding.items()
                if not sequence.aborted
            ]
        return self._close_step(events, now_us)

    def end_step_edges(self, now_us: int) -> list[EngineEvent]:
        """The same step with fewer events: of each reply only its first token, its end and its retractions."""
        self._running_step()
        events, self._events = self._events, []
        return self._close_step(events, now_us)

    def next_wakeup_us(self, now_us: int) -> int | None:
        """When a hold expires that a waiting request may be blocked by; None: only a new request changes anything."""
        if not len(self._queue) or len(self._running):
            return None
        expiry = self._sessions.next_expiry_us()
        return None if expiry is None else max(expiry, now_us)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    def made_tokens(self, rid: str) -> int | None:
        """Reply tokens of a request so far, retracted ones included; None: not here."""
        sequence = self._known.get(rid)
        return None if sequence is None else self._running.made(sequence)

    def has_started(self, rid: str) -> bool:
        """Whether a request that is here was taken out of the queue at least once."""
        sequence = self._known.get(rid)
        return sequence is not None and sequence.started

    def flush_cache(self) -> bool:
        """Forget the prefix cache. False, and nothing done, while a request is here."""
        if self._known:
            return False
        self._sessions.clear()
        self._tree.clear()
        return True

    def gauges(self) -> EngineGauges:
        """The state now."""
        pool = self._pool
        return EngineGauges(
            running=len(self._running),
            queued=len(self._queue),
            kv_used_tokens=pool.used_tokens,
            kv_cached_tokens=pool.cached_tokens,
            token_usage=pool.used_tokens / pool.capacity_tokens,
            pending_prefill_tokens=sum(item.todo for item in self._running.prefilling.values())
            + sum(item.target for item in self._queue),
            held_sessions=self._sessions.idle_sessions,
        )

    def waits_for(self, now_us: int) -> Wait | None:
        """What keeps the first waiting request out of the batch; None: nothing waits. No later decision depends on the call."""
        if not len(self._queue):
            return None
        if len(self._running) >= self.config.max_running_requests:
            return Wait(WaitReason.SLOTS, 0, 1)
        first = service_order(self._queue, self.config, self._tree, now_us)[0]
        left = None
        if self._gate.decode_only:
            left = 0
        elif self._step is not None and self._planned:
            left = self._prompt_budget(len(self._running.decoding)) - sum(tokens for _, tokens in self._planned)
        return self._check.missing(first, left)

    def admission(self) -> Admission:
        """What admission has given away now. Without session admission: the KV that running requests have and were promised."""
        if self.config.kv_aware_admission:
            return Admission(self._sessions.active_tokens, self._sessions.bound_tokens)
        return Admission(self._pool.used_tokens + self._pool.promised_tokens, self._pool.capacity_tokens)

    @property
    def totals(self) -> EngineTotals:
        """Counters since start; `stage_flips` as of now."""
        self._totals.stage_flips = self._gate.flips
        return self._totals

    # -- planning ----------------------------------------------------------------------------------------------------

    def _decode_only(self) -> bool:
        if not (self.config.two_stage or self.config.naive_two_stage):
            return False
        if not self._running.decoding:
            self._gate.idle()
            return False
        pool = self._pool
        pending = sum(item.todo for item in self._running.prefilling.values())
        if pool.used_tokens + pool.promised_tokens > self.config.two_stage_leave * pool.capacity_tokens:
            pending += sum(item.target - matched_tokens(item, self._tree) for item in self._queue.head(PENDING_WINDOW))
        return self._gate.update(
            KvPressure(
                pool=pool.capacity_tokens,
                resident=pool.used_tokens,
                reserved=pool.used_tokens + pool.promised_tokens,
                held=self._tree.held_tokens,
                pending=pending,
            )
        )

    def _plan_prefill(self, decoding: int, now_us: int) -> list[tuple[Sequence, int]]:
        budget = self._prompt_budget(decoding)
        planned: list[tuple[Sequence, int]] = []
        for sequence in self._running.prefilling.values():
            if budget <= 0:
                return planned
            tokens = sequence.todo if self._whole_prompts else min(budget, sequence.todo)
            planned.append((sequence, tokens))
            budget -= tokens
        if budget > 0 and self._queue_changed and len(self._queue):
            self._start_waiting(planned, budget, now_us)
        return planned

    def _prompt_budget(self, decoding: int) -> int:
        """Prompt tokens that a step may take beside `decoding` rows."""
        budget = self.config.max_prefill_tokens
        if not self._whole_prompts:
            # A decode row is one token of the same forward pass: SGLang charges it to the chunk.
            budget = min(self.config.chunked_prefill_size or budget, budget) - (decoding if self._mixed else 0)
        return budget

    def _start_waiting(self, planned: list[tuple[Sequence, int]], budget: int, now_us: int) -> None:
        slots = self.config.max_running_requests - len(self._running)
        if slots <= 0:
            return
        for sequence in service_order(self._queue, self.config, self._tree, now_us):
            if slots <= 0 or budget <= 0:
                return
            if not self._check.fits(sequence):
                break
            if self._whole_prompts and planned and sequence.todo > budget:
                self._check.unlock(sequence)
                return
            self._start(sequence)
            tokens = sequence.todo if self._whole_prompts else min(budget, sequence.todo)
            planned.append((sequence, tokens))
            budget -= tokens
            slots -= 1
        self._queue_changed = False

    def _plan_stuck(self, now_us: int) -> list[tuple[Sequence, int]]:
        """Nothing runs although requests wait: give up idle sessions, then what is kept for admitted ones that wait."""
        if not len(self._queue) or not self.config.kv_aware_admission:
            return []
        blocked = service_order(self._queue, self.config, self._tree, now_us)[0]
        while blocked.admitted and self._sessions.drop_oldest():
            self._queue_changed = True
            if planned := self._plan_prefill(0, now_us):
                return planned
        if not blocked.admitted:
            return []
        for sequence in self._queue:
            if sequence.admitted:
                self._sessions.demote(sequence)
        self._queue_changed = True
        return self._plan_prefill(0, now_us)

    # -- running without full reservation ----------------------------------------------------------------------------

    def _prepare_decode(self) -> None:
        """Before a decode step: make room for one token each, by retracting requests if need be."""
        if not self._running.decoding:
            return
        self._queue_changed = True
        pool, config = self._pool, self.config
        while pool.unpromised_tokens < len(self._running.decoding) and self._sessions.drop_oldest():
            pass
        if pool.unpromised_tokens >= len(self._running.decoding):
            self._ratio.decay()
            return
        victims = retraction_order(
            ((item, self._running.made(item)) for item in self._running.decoding.values()),
            priority=config.priority_retraction,
            low_first=config.low_priority_values_first,
        )
        for retracted, victim in enumerate(victims):
            rows = len(victims) - retracted
            if retracted and pool.unpromised_tokens >= rows * RETRACT_DECODE_STEPS:
                break
            # The last row alone always fits: submission refused what the pool cannot hold.
            if rows == 1 and (pool.unpromised_tokens >= 1 or not self._running.prefilling):
                break
            self._retract(victim)
        stayed = [(self._running.made(item), item.output_tokens) for item in self._running.decoding.values()]
        self._ratio.after_retraction(sum(made for made, _ in stayed), len(stayed), sum(out for _, out in stayed))

    def _retract(self, sequence: Sequence) -> None:
        made = self._running.made(sequence)
        self._detach(sequence)
        sequence.made = made
        sequence.target = sequence.prompt_tokens + made
        self._totals.retractions += 1
        self._events.append(Retracted(sequence.request.rid))
        self._enqueue(sequence)

    # -- transitions -------------------------------------------------------------------------------------------------

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.phase = Phase.WAITING
        self._queue.add(sequence)
        self._queue_changed = True

    def _start(self, sequence: Sequence) -> None:
        """Waiting → prefilling; the start check has locked its prefix."""
        earlier = self._queue.remove(sequence)
        for passed in self._queue.head(earlier):
            passed.overtaken += 1
        self._sessions.started(sequence)
        if not sequence.started:
            sequence.started = True
            sequence.cached_tokens = sequence.shared
            self._totals.prompt_tokens += sequence.prompt_tokens
            self._totals.cached_tokens += sequence.shared
        self._pool.promised_tokens += self._check.unwritten_tokens(sequence)
        self._running.prefill(sequence)

    def _close_step(self, events: list[EngineEvent], now_us: int) -> list[EngineEvent]:
        step = self._running_step()
        self._step = None
        if step.decode_sequences:
            self._decode_one(events, now_us)
        for sequence, tokens in self._planned:
            self._prefill_some(sequence, tokens, events, now_us)
        self._planned = []
        for sequence in self._doomed:
            if sequence.phase is not Phase.GONE:
                self._drop(sequence, now_us)
                events.append(Finished(sequence.request.rid, FinishReason.ABORT))
        self._doomed.clear()
        return events

    def _decode_one(self, events: list[EngineEvent], now_us: int) -> None:
        """Every decoding request makes one token: sums move, only those that end are looked at."""
        rows = len(self._running.decoding)
        self._pool.private_tokens += rows
        if self.config.reserve_output:
            self._pool.promised_tokens -= rows
        self._totals.output_tokens += rows
        for sequence in self._running.advance():
            self._finish(sequence, events, now_us)

    def _prefill_some(self, sequence: Sequence, tokens: int, events: list[EngineEvent], now_us: int) -> None:
        pool = self._pool
        sequence.resident += tokens
        pool.private_tokens += tokens
        pool.promised_tokens -= tokens
        if sequence.todo:
            return
        if not self.config.disable_radix_cache:
            self._share_prompt(sequence)
        made = sequence.made
        remaining = sequence.output_tokens - made
        if remaining > 0:
            self._totals.output_tokens += 1
            if not sequence.aborted:
                events.append(Token(sequence.request.rid, made, sequence.cached_tokens if made == 0 else 0))
        self._running.decode(sequence, max(0, remaining - 1))
        if remaining <= 1:
            self._finish(sequence, events, now_us)

    def _share_prompt(self, sequence: Sequence) -> None:
        """Put the computed prompt into the tree; what another request put there meanwhile is kept once."""
        leaf, _ = self._tree.insert(sequence.key)
        self._tree.acquire(leaf)
        if sequence.node is not None:
            self._tree.release(sequence.node)
        sequence.node = leaf
        self._pool.private_tokens -= sequence.prompt_tokens - sequence.shared
        sequence.shared = sequence.prompt_tokens

    def _finish(self, sequence: Sequence, events: list[EngineEvent], now_us: int) -> None:
        """The request ends by itself: what can be reused stays, held for its session if sessions are admitted."""
        leaf, kept = sequence.node, sequence.shared
        reply = sequence.request.reply
        if reply is not None and leaf is not None and sequence.output_tokens > 1:
            tail = token_key(reply[: sequence.output_tokens - 1])
            leaf, _ = self._tree.insert(sequence.key + tail)
            kept = (len(sequence.key) + len(tail)) // TOKEN_BYTES
        if self.config.kv_aware_admission and leaf is not None and not sequence.aborted:
            self._sessions.rest(sequence, leaf, kept, now_us)
        else:
            self._sessions.close(sequence)
        self._detach(sequence)
        sequence.phase = Phase.GONE
        del self._known[sequence.request.rid]
        self._totals.finished += not sequence.aborted
        events.append(Finished(sequence.request.rid, FinishReason.ABORT if sequence.aborted else FinishReason.LENGTH))

    def _drop(self, sequence: Sequence, now_us: int) -> None:
        """The request ends by its client's wish."""
        if sequence.phase is Phase.WAITING:
            self._queue.remove(sequence)
            self._sessions.give_back(sequence, now_us)
            self._queue_changed = True
        else:
            self._sessions.close(sequence)
            self._detach(sequence)
        sequence.phase = Phase.GONE
        del self._known[sequence.request.rid]

    def _detach(self, sequence: Sequence) -> None:
        """Give the KV of a running request back: its prompt stays cached, the rest is free."""
        resident = self._running.leave(sequence)
        self._pool.private_tokens -= resident - sequence.shared
        sequence.resident = resident
        self._pool.promised_tokens -= self._check.unwritten_tokens(sequence)
        self._check.unlock(sequence)
        self._queue_changed = True

    # -- small facts -------------------------------------------------------------------------------------------------

    def _running_step(self) -> Step:
        if self._step is None:
            raise RuntimeError("no step is running: call begin_step first")
        return self._step
