"""What a demo run must show. Pure: a report in, verdicts out.

The first verdict is that there is anything to judge: a run without successful requests passes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hlserve_bench.report.comparison import percent, times
from hlserve_bench.report.model import ArmReport, Arms, Check, ClassReport, Comparison, SeedResult

_MIN_CHAT_REQUESTS = 20
"""Below this a goodput share says nothing."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What must hold in the HlServe arm."""

    chat_goodput_share: float = 0.9
    agent_ratio: float = 1.2
    """Exclusive bound on both ratios of a single run."""
    seed_ratio: float = 1.5
    """Inclusive bound at every seed of a virtual run."""
    client_lag_p95_ms: float = 250.0
    """Beyond this the machine, not the engines, is what was measured."""


def check_arms(arms: Arms, comparison: Comparison, chat_pool: str, agent_pool: str, bounds: Bounds) -> list[Check]:
    """The verdicts on one comparison."""
    blind, ours = arms.class_blind.classes, arms.hlserve.classes
    return [
        *_not_empty(arms),
        *_on_time(arms, bounds),
        _placed("chat_placed", "chat", ours.interactive, chat_pool),
        _placed("agents_placed", "agent", ours.agent, agent_pool),
        Check(
            name="chat_goodput",
            passed=_at_least(ours.interactive.goodput_share, bounds.chat_goodput_share),
            sentence=f"Chat goodput with HlServe is {percent(ours.interactive.goodput_share)}; at least "
            f"{bounds.chat_goodput_share:.0%} is required.",
        ),
        Check(
            name="chat_not_worse",
            passed=_at_least(ours.interactive.goodput_share, blind.interactive.goodput_share),
            sentence=f"Chat goodput is {percent(ours.interactive.goodput_share)} with HlServe and "
            f"{percent(blind.interactive.goodput_share)} class-blind; it must not be lower.",
        ),
        _ratio("agent_output", "output tokens a second", comparison.agent_output_ratio, bounds),
        _ratio("agent_sessions", "sessions an hour", comparison.agent_sessions_ratio, bounds),
    ]


def check_seeds(seeds: Sequence[SeedResult], bounds: Bounds) -> list[Check]:
    """The verdicts on a virtual run of several seeds: every one must hold, not their mean."""
    if not seeds:
        return []
    lowest = [min(seed.agent_output_ratio or 0.0, seed.agent_sessions_ratio or 0.0) for seed in seeds]
    shares = [seed.chat_goodput_hlserve or 0.0 for seed in seeds]
    numbers = ", ".join(str(seed.seed) for seed in seeds)
    return [
        Check(
            name="every_seed_ratio",
            passed=min(lowest) >= bounds.seed_ratio,
            sentence=f"At every seed ({numbers}) agents' output and sessions are at least {min(lowest):.2f}× those of "
            f"class-blind; {bounds.seed_ratio:g}× is required.",
        ),
        Check(
            name="every_seed_chat",
            passed=min(shares) >= bounds.chat_goodput_share,
            sentence=f"At every seed chat goodput with HlServe is at least {min(shares):.0%}; "
            f"{bounds.chat_goodput_share:.0%} is required.",
        ),
    ]


def _not_empty(arms: Arms) -> list[Check]:
    checks = []
    for name, arm in (("class_blind", arms.class_blind), ("hlserve", arms.hlserve)):
        chat, agent = arm.classes.interactive, arm.classes.agent
        # Class-blind may serve no chat in time, which is a result; that it got none to serve is not.
        enough = chat.requests >= _MIN_CHAT_REQUESTS and agent.ok > 0 and (name != "hlserve" or chat.ok > 0)
        checks.append(
            Check(
                name=f"{name}_ran",
                passed=enough and not _mostly_failed(arm),
                sentence=f"{arm.name}: {chat.requests} chat requests ({chat.ok} ok, {chat.failed} failed) and "
                f"{agent.requests} agent rounds ({agent.ok} ok, {agent.failed} failed) in the window; at least "
                f"{_MIN_CHAT_REQUESTS} chat requests, one good round and fewer failures than successes are needed to judge anything.",
            )
        )
    return checks


def _on_time(arms: Arms, bounds: Bounds) -> list[Check]:
    """Whether the client kept its schedule; nothing to say in virtual time."""
    lags = [arm.client_lag_ms.p95 for arm in (arms.class_blind, arms.hlserve) if arm.client_lag_ms is not None]
    if not lags:
        return []
    return [
        Check(
            name="client_on_time",
            passed=max(lags) <= bounds.client_lag_p95_ms,
            sentence=f"The client sent 95 % of its requests within {max(lags):.0f} ms of their time; above "
            f"{bounds.client_lag_p95_ms:.0f} ms the machine is too busy to judge: close other programs and run again.",
        )
    ]


def _mostly_failed(arm: ArmReport) -> bool:
    return arm.classes.agent.failed > arm.classes.agent.ok


def _placed(name: str, kind: str, report: ClassReport, pool: str) -> Check:
    elsewhere = {other: count for other, count in report.requests_by_pool.items() if other not in (pool, "none")}
    explained = sum(report.spill_reasons.values())
    here = report.requests_by_pool.get(pool, 0)
    return Check(
        name=name,
        passed=here > 0 and sum(elsewhere.values()) <= explained,
        sentence=f"{here} {kind} requests went to pool {pool}, {sum(elsewhere.values())} to another, {explained} carry a reason; "
        "each must have gone to its pool or carry a reason.",
    )


def _ratio(name: str, what: str, value: float | None, bounds: Bounds) -> Check:
    return Check(
        name=f"{name}_ratio",
        passed=value is not None and value > bounds.agent_ratio,
        sentence=f"Agents' {what} are {times(value)} those of class-blind; more than {bounds.agent_ratio:g}× is required.",
    )


def _at_least(value: float | None, bound: float | None) -> bool:
    return value is not None and (bound is None or value >= bound)
