"""Numbers of one virtual run's window, for tests of this package. Reports are made by `hlserve_bench`, which sees whole records."""

from dataclasses import dataclass

from hlserve_capacity.virtual.cluster import RunResult
from hlserve_capacity.virtual.records import Outcome, RequestRecord, Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a chat request must meet. A reply of one token has no TPOT."""

    ttft_us: int
    tpot_us: int

    def met_by(self, record: RequestRecord) -> bool:
        ttft, tpot = record.ttft_us, record.tpot_us
        in_time = record.outcome is Outcome.OK and ttft is not None and ttft <= self.ttft_us
        return in_time and (tpot is None or tpot <= self.tpot_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMetrics:
    """Over requests scheduled, tokens made and rounds ended inside the window. None: nothing to measure."""

    chat_requests: int
    chat_goodput: float | None
    """Share of the window's arrivals that met the SLO by the end of the drain; unfinished and refused ones did not."""
    agent_tokens_per_second: float
    agent_sessions_per_hour: float
    """A finished round counts as its fraction of its session."""
    agent_rounds: int
    agent_prefix_hit_rate: float | None


def window_metrics(result: RunResult, slo: Slo) -> WindowMetrics:
    """Measure the window of a run."""
    start_us, end_us = result.timeline.warm_up_us, result.timeline.window_end_us
    seconds = result.timeline.window_us / 1e6
    chat = [r for r in result.records if r.traffic is Traffic.CHAT and start_us <= r.scheduled_us < end_us]
    agents = [r for r in result.records if r.traffic is Traffic.AGENT]
    ended = [r for r in agents if r.outcome is Outcome.OK and r.end_us is not None and start_us <= r.end_us < end_us]
    prompts = sum(r.input_tokens for r in ended)
    return WindowMetrics(
        chat_requests=len(chat),
        chat_goodput=sum(slo.met_by(r) for r in chat) / len(chat) if chat else None,
        agent_tokens_per_second=sum(r.tokens_between(start_us, end_us) for r in agents) / seconds,
        agent_sessions_per_hour=sum(1 / (r.session_rounds or 1) for r in ended) * 3600 / seconds,
        agent_rounds=len(ended),
        agent_prefix_hit_rate=sum(r.cached_tokens or 0 for r in ended) / prompts if prompts else None,
    )
