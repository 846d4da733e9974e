"""The event loop of a virtual run: clients, router and engines on one clock."""

import heapq
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from hlserve_capacity.engine.scheduler import Scheduler
from hlserve_capacity.engine.types import EngineRequest, Finished, FinishReason, Refused, RejectReason, StepCost, Token
from hlserve_capacity.virtual.arms import Arm, Shedding
from hlserve_capacity.virtual.records import Outcome, RequestRecord, Traffic
from hlserve_capacity.virtual.workload import SessionRun, Workload, chat_prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Phases of a run, in microseconds. Clients send until the window ends; the drain lets replies end."""

    warm_up_us: int
    window_us: int
    drain_us: int = 10_000_000

    @property
    def window_end_us(self) -> int:
        return self.warm_up_us + self.window_us

    @property
    def end_us(self) -> int:
        return self.window_end_us + self.drain_us


@dataclass(slots=True, eq=False)
class Replica:
    """One engine and what the router has sent to it."""

    pool: str
    index: int
    engine: Scheduler
    in_step: bool = False
    wakeup_us: int | None = None
    in_flight_tokens: int = 0
    """Prompt tokens of requests that are here."""


@dataclass(slots=True, eq=False)
class Flight:
    """A request on its way, and the session that waits for it (chat: None)."""

    record: RequestRecord
    prompt: "array[int]"
    run: SessionRun | None
    replica: Replica | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    """Every request of a run, and the engines as its end found them."""

    arm: Arm
    timeline: Timeline
    records: tuple[RequestRecord, ...]
    replicas: tuple[Replica, ...]


def simulate(arm: Arm, workload: Workload, cost: StepCost, timeline: Timeline) -> RunResult:
    """Run one arm on one workload. Same input, same result."""
    return _Run(arm, workload, cost, timeline).result()


class _Run:
    def __init__(self, arm: Arm, workload: Workload, cost: StepCost, timeline: Timeline) -> None:
        self._arm = arm
        self._workload = workload
        self._timeline = timeline
        self._now_us = 0
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._ticket = count()
        self._records: list[RequestRecord] = []
        self._flights: dict[str, Flight] = {}
        self._homes: dict[str, Replica] = {}
        """Session → where it was sent first."""
        self._held_back: deque[SessionRun] = deque()
        self._sessions_open = 0
        self._replicas = {
            pool.name: [
                Replica(pool.name, index, Scheduler(pool.engine, pool.cost or cost)) for index in range(pool.replicas)
            ]
            for pool in arm.pools
        }

    def result(self) -> RunResult:
        for number, arrival in enumerate(self._workload.chat):
            self._at(arrival.at_us, lambda number=number: self._chat_arrives(number))  # type: ignore[misc]
        for slot, start_us in enumerate(self._workload.slot_start_us):
            run = self._workload.run_of(slot, 0)
            self._at(start_us, lambda run=run: self._session_is_due(run))  # type: ignore[misc]
        agenda, end_us = self._agenda, self._timeline.end_us
        while agenda and agenda[0][0] <= end_us:
            self._now_us, _, action = heapq.heappop(agenda)
            action()
        self._close()
        everyone = tuple(replica for pool in self._replicas.values() for replica in pool)
        return RunResult(self._arm, self._timeline, tuple(self._records), everyone)

    def _at(self, at_us: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at_us, next(self._ticket), action))

    # -- clients -----------------------------------------------------------------------------------------------------

    def _chat_arrives(self, number: int) -> None:
        if self._now_us >= self._timeline.window_end_us:
            return
        arrival = self._workload.chat[number]
        record = RequestRecord(
            traffic=Traffic.CHAT,
            request=f"chat-{number}",
            scheduled_us=self._now_us,
            input_tokens=arrival.input_tokens,
            wanted_tokens=arrival.output_tokens,
        )
        self._records.append(record)
        self._dispatch(Flight(record, chat_prompt(number, arrival.input_tokens), None))

    def _session_is_due(self, run: SessionRun) -> None:
        limit = self._arm.agent_session_limit
        if limit is not None and self._sessions_open >= limit:
            self._held_back.append(run)
            return
        self._sessions_open += 1
        self._round_is_due(run)

    def _session_ended(self, run: SessionRun) -> None:
        self._sessions_open -= 1
        self._homes.pop(run.key, None)
        successor = self._workload.run_of(run.slot, run.position + 1)
        self._held_back.append(successor)
        due = self._held_back.popleft()
        self._at(self._now_us, lambda: self._session_is_due(due))

    def _round_is_due(self, run: SessionRun) -> None:
        if self._now_us >= self._timeline.window_end_us:
            return
        spec = run.current
        record = RequestRecord(
            traffic=Traffic.AGENT,
            request=f"{run.key}-{run.round_index}",
            scheduled_us=self._now_us,
            input_tokens=spec.input_tokens,
            wanted_tokens=spec.output_tokens,
            session=run.key,
            round_index=run.round_index,
            session_rounds=len(run.session.rounds),
        )
        self._records.append(record)
        self._dispatch(Flight(record, run.prompt(), run))

    def _next_round(self, run: SessionRun) -> None:
        run.round_index += 1
        if run.round_index < len(run.session.rounds):
            self._at(self._now_us + run.current.think_us, lambda: self._round_is_due(run))
            return
        self._session_ended(run)

    # -- router ------------------------------------------------------------------------------------------------------

    def _dispatch(self, flight: Flight) -> None:
        record, shedding = flight.record, self._arm.shedding
        replica = self._pick(flight)
        record.pool, record.replica = replica.pool, replica.index
        record.attempts += 1
        bound = None if shedding is None else shedding.queued_per_replica
        if bound is not None and replica.engine.queued >= bound:
            self._shed(flight, "queue_full")
            return
        rid = f"{record.request}.{record.attempts}"
        is_chat = record.traffic is Traffic.CHAT
        answer = replica.engine.submit(
            EngineRequest(
                rid=rid,
                prompt=flight.prompt,
                output_tokens=record.wanted_tokens,
                priority=self._arm.chat_priority if is_chat else 0,
            ),
            self._now_us,
        )
        if isinstance(answer, Refused):
            if answer.reason is RejectReason.TOO_LONG:
                self._give_up(flight, answer.reason.value)
            else:
                self._shed(flight, answer.reason.value)
            return
        record.sent_us = self._now_us
        flight.replica = replica
        replica.in_flight_tokens += record.input_tokens
        self._flights[rid] = flight
        if shedding is not None and shedding.ttl_us is not None:
            self._at(self._now_us + shedding.ttl_us, lambda: self._expire(rid))
        self._kick(replica)

    def _pick(self, flight: Flight) -> Replica:
        if flight.run is None:
            return _least_loaded(self._replicas[self._arm.chat_pool])
        home = self._homes.get(flight.run.key)
        if home is None:
            home = self._homes[flight.run.key] = _least_loaded(self._replicas[self._arm.agent_pool])
        return home

    def _expire(self, rid: str) -> None:
        flight = self._flights.get(rid)
        if flight is None or flight.replica is None or flight.replica.engine.has_started(rid):
            return
        flight.replica.engine.abort(rid, self._now_us)
        self._leave(rid)
        self._shed(flight, "queue_expired")

    def _shed(self, flight: Flight, reason: str) -> None:
        """503. An agent's client tries again after its pause; a chat request is lost."""
        if flight.run is None:
            self._give_up(flight, reason)
            return
        flight.record.reason = reason
        self._at(self._now_us + self._pause_us, lambda: self._try_again(flight))

    def _give_up(self, flight: Flight, reason: str) -> None:
        """The request is lost, and with it the rest of its session."""
        flight.record.outcome, flight.record.reason = Outcome.SHED, reason
        flight.record.end_us = self._now_us
        run = flight.run
        if run is not None:
            self._at(self._now_us + self._pause_us, lambda: self._session_ended(run))

    @property
    def _pause_us(self) -> int:
        """What an agent's client waits after a refusal."""
        return (self._arm.shedding or Shedding()).agent_retry_us

    def _try_again(self, flight: Flight) -> None:
        if self._now_us < self._timeline.window_end_us:
            self._dispatch(flight)

    def _leave(self, rid: str) -> Flight:
        flight = self._flights.pop(rid)
        if flight.replica is not None:
            flight.replica.in_flight_tokens -= flight.record.input_tokens
        return flight

    # -- engines -----------------------------------------------------------------------------------------------------

    def _kick(self, replica: Replica) -> None:
        """Start a step if none runs."""
        if replica.in_step:
            return
        step = replica.engine.begin_step(self._now_us)
        if step is not None:
            replica.in_step = True
            self._at(self._now_us + step.duration_us, lambda: self._step_ends(replica))
            return
        wakeup_us = replica.engine.next_wakeup_us(self._now_us)
        if wakeup_us is not None and (replica.wakeup_us is None or wakeup_us < replica.wakeup_us):
            replica.wakeup_us = wakeup_us
            self._at(wakeup_us, lambda: self._wake(replica))

    def _wake(self, replica: Replica) -> None:
        replica.wakeup_us = None
        self._kick(replica)

    def _step_ends(self, replica: Replica) -> None:
        replica.in_step = False
        for event in replica.engine.end_step_edges(self._now_us):
            if isinstance(event, Token):
                self._first_token(event)
            elif isinstance(event, Finished) and event.reason is not FinishReason.ABORT:
                self._finished(event.rid)
        self._kick(replica)

    def _first_token(self, event: Token) -> None:
        record = self._flights[event.rid].record
        if record.first_token_us is None:
            record.first_token_us = self._now_us
            record.cached_tokens = event.cached_tokens

    def _finished(self, rid: str) -> None:
        flight = self._leave(rid)
        record = flight.record
        record.outcome = Outcome.OK
        record.reason = None
        record.end_us = self._now_us
        record.output_tokens = record.wanted_tokens
        record.last_token_us = self._now_us if record.wanted_tokens else None
        if flight.run is not None:
            self._next_round(flight.run)

    def _close(self) -> None:
        """The run is over: what is under way keeps the tokens that it has."""
        for rid, flight in self._flights.items():
            record = flight.record
            made = flight.replica.engine.made_tokens(rid) if flight.replica is not None else None
            if made and record.first_token_us is not None:
                record.output_tokens = made
                record.last_token_us = self._now_us


def _least_loaded(replicas: list[Replica]) -> Replica:
    return min(replicas, key=lambda replica: (replica.in_flight_tokens, replica.index))
