"""Arms in virtual time: the bench's workload in, the bench's records out."""

from collections.abc import Iterable

from hlserve_bench.records import Client, Ended, RequestRecord
from hlserve_bench.report.assemble import Timing
from hlserve_bench.traces.workload import Workload
from hlserve_capacity.engine.types import StepCost
from hlserve_capacity.virtual import records as virtual
from hlserve_capacity.virtual import workload as load
from hlserve_capacity.virtual.arms import Arm
from hlserve_capacity.virtual.cluster import Timeline, simulate

_US = 1_000_000


def run_virtual(arm: Arm, workload: Workload, timing: Timing, cost: StepCost) -> list[RequestRecord]:
    """Run one arm without a clock. Same input, same records."""
    timeline = Timeline(
        warm_up_us=round(timing.warmup_seconds * _US),
        window_us=round(timing.measured_seconds * _US),
        drain_us=round(timing.drain_seconds * _US),
    )
    return to_records(simulate(arm, to_virtual(workload), cost, timeline).records)


def to_virtual(workload: Workload) -> load.Workload:
    """The same load in the simulator's own types."""
    return load.Workload(
        chat=tuple(
            load.ChatArrival(round(row.at_seconds * _US), row.input_tokens, row.output_tokens) for row in workload.chat
        ),
        sessions=tuple(
            load.AgentSession(
                session.session_id,
                tuple(
                    load.AgentRound(
                        input_tokens=row.input_tokens,
                        output_tokens=row.output_tokens,
                        think_us=round(row.think_seconds * _US),
                        parent=row.parent,
                        prefix_tokens=row.prefix_tokens,
                    )
                    for row in session.rounds
                ),
            )
            for session in workload.sessions
        ),
        slot_start_us=tuple(round(start * _US) for start in workload.start_seconds),
        first_rounds=workload.first_rounds,
    )


def to_records(results: Iterable[virtual.RequestRecord]) -> list[RequestRecord]:
    """The simulator's records as the report reads them."""
    classes = {virtual.Traffic.CHAT: Client.CHAT, virtual.Traffic.AGENT: Client.AGENT}
    ended = {
        virtual.Outcome.OK: Ended.OK,
        virtual.Outcome.SHED: Ended.FAILED,
        virtual.Outcome.UNFINISHED: Ended.UNFINISHED,
    }
    return [
        RequestRecord(
            client=classes[row.traffic],
            request=row.request,
            scheduled_seconds=row.scheduled_us / _US,
            sent_seconds=_seconds(row.sent_us),
            first_token_seconds=_seconds(row.first_token_us),
            last_token_seconds=_seconds(row.last_token_us),
            end_seconds=_seconds(row.end_us),
            ended=ended[row.outcome],
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            wanted_tokens=row.wanted_tokens,
            cached_tokens=row.cached_tokens,
            session=row.session,
            session_rounds=row.session_rounds,
            class_name=classes[row.traffic].value,
            pool=row.pool,
            outcome=row.outcome.value,
            reason=row.reason,
        )
        for row in results
    ]


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / _US
