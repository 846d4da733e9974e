"""Puts a report together from the records of both arms. Pure: the caller brings the manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hlserve_bench.records import RequestRecord
from hlserve_bench.report.build import SloBounds, Span, agent_report, chat_report, percentiles, throughput_series
from hlserve_bench.report.checks import Bounds, check_arms, check_seeds
from hlserve_bench.report.comparison import compare, statement
from hlserve_bench.report.model import (
    ArmReport,
    Arms,
    Classes,
    Manifest,
    PoolReport,
    Report,
    SeedResult,
    Slo,
    Window,
)

_BINS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long each arm runs, in seconds."""

    warmup_seconds: float
    measured_seconds: float
    drain_seconds: float

    @property
    def load_seconds(self) -> float:
        """While load is sent: warm-up and window."""
        return self.warmup_seconds + self.measured_seconds

    @property
    def span(self) -> Span:
        """The window as records are judged by it."""
        return Span(self.warmup_seconds, self.load_seconds, self.load_seconds + self.drain_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRun:
    """One arm as it was run."""

    name: str
    description: str
    pools: Mapping[str, PoolReport]
    records: Sequence[RequestRecord]
    real_client: bool
    """Whether a client really sent the requests, so that its lag says something."""


def arm_report(run: ArmRun, timing: Timing, slo: SloBounds) -> ArmReport:
    """Figures of one arm."""
    lags = [lag for record in run.records if (lag := record.lag_seconds) is not None]
    return ArmReport(
        name=run.name,
        description=run.description,
        pools=dict(run.pools),
        classes=Classes(
            interactive=chat_report(run.records, timing.span, slo), agent=agent_report(run.records, timing.span)
        ),
        series=throughput_series(run.records, timing.load_seconds, timing.load_seconds / _BINS),
        client_lag_ms=percentiles([max(0.0, lag) for lag in lags]) if run.real_client else None,
    )


def make_report(
    *,
    class_blind: ArmReport,
    hlserve: ArmReport,
    timing: Timing,
    slo: SloBounds,
    manifest: Manifest,
    chat_pool: str,
    agent_pool: str,
    bounds: Bounds,
    seeds: Sequence[SeedResult] = (),
) -> Report:
    """The whole report, its verdicts included."""
    arms = Arms(class_blind=class_blind, hlserve=hlserve)
    comparison = compare(class_blind, hlserve)
    slo_model = Slo(ttft_ms=slo.ttft_ms, tpot_ms=slo.tpot_ms)
    return Report(
        statement=statement(class_blind, hlserve, comparison, slo_model),
        slo=slo_model,
        window=Window(
            warmup_seconds=timing.warmup_seconds,
            measured_seconds=timing.measured_seconds,
            drain_seconds=timing.drain_seconds,
        ),
        arms=arms,
        comparison=comparison,
        seeds=list(seeds),
        checks=[
            *check_arms(arms, comparison, chat_pool, agent_pool, bounds),
            *check_seeds(seeds, bounds),
        ],
        manifest=manifest,
    )


def seed_result(seed: int, workload_sha256: str, class_blind: ArmReport, hlserve: ArmReport) -> SeedResult:
    """The comparison of one seed in a few figures."""
    comparison = compare(class_blind, hlserve)
    return SeedResult(
        seed=seed,
        workload_sha256=workload_sha256,
        chat_goodput_class_blind=class_blind.classes.interactive.goodput_share,
        chat_goodput_hlserve=hlserve.classes.interactive.goodput_share,
        agent_output_ratio=comparison.agent_output_ratio,
        agent_sessions_ratio=comparison.agent_sessions_ratio,
    )
