"""What the benchmark page is made of: one row an arm, over all seeds. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from hlserve_bench.report.model import ArmReport


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedFigures:
    """One arm at one seed. Latencies are p95 in milliseconds; None: no sample."""

    seed: int
    chat_goodput_share: float | None
    chat_ttft_p95_ms: float | None
    chat_tpot_p95_ms: float | None
    agent_output_tokens_per_second: float
    agent_sessions_per_hour: float | None
    agent_round_p50_ms: float | None
    agent_round_p95_ms: float | None
    agent_prefix_hit_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One arm of the page."""

    key: str
    title: str
    searched: str | None
    flags: dict[str, str]
    """Pool → replicas and engine settings, for people."""
    seeds: tuple[SeedFigures, ...]

    @property
    def chat_goodput_share(self) -> float:
        """Mean over the seeds."""
        return mean(seed.chat_goodput_share or 0.0 for seed in self.seeds)

    @property
    def agent_output(self) -> float:
        """Agents' output tokens a second, mean over the seeds."""
        return mean(seed.agent_output_tokens_per_second for seed in self.seeds)

    @property
    def agent_round_p95_seconds(self) -> float | None:
        """p95 of a round, mean over the seeds that have one."""
        values = [seed.agent_round_p95_ms / 1000 for seed in self.seeds if seed.agent_round_p95_ms is not None]
        return mean(values) if values else None


@dataclass(frozen=True, slots=True)
class Ratio:
    """Agents' output of one arm over another's, paired by seed: mean, lowest and highest."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f}× [{self.low:.2f}–{self.high:.2f}]"


def seed_figures(seed: int, arm: ArmReport) -> SeedFigures:
    """What the page keeps of one run."""
    chat, agent = arm.classes.interactive, arm.classes.agent
    return SeedFigures(
        seed=seed,
        chat_goodput_share=chat.goodput_share,
        chat_ttft_p95_ms=None if chat.ttft_ms is None else chat.ttft_ms.p95,
        chat_tpot_p95_ms=None if chat.tpot_ms is None else chat.tpot_ms.p95,
        agent_output_tokens_per_second=agent.output_tokens_per_second,
        agent_sessions_per_hour=agent.sessions_per_hour,
        agent_round_p50_ms=None if agent.e2e_ms is None else agent.e2e_ms.p50,
        agent_round_p95_ms=None if agent.e2e_ms is None else agent.e2e_ms.p95,
        agent_prefix_hit_rate=agent.prefix_hit_rate,
    )


def paired_ratio(numerator: Row, denominator: Row) -> Ratio | None:
    """Seed by seed; None if an arm of the denominator made no output."""
    below = {seed.seed: seed.agent_output_tokens_per_second for seed in denominator.seeds}
    if any(below[seed.seed] == 0 for seed in numerator.seeds):
        return None
    ratios = [seed.agent_output_tokens_per_second / below[seed.seed] for seed in numerator.seeds]
    return Ratio(mean(ratios), min(ratios), max(ratios))


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is text, the others numbers."""
    rule = ["---", *("---:" for _ in header[1:])]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))
