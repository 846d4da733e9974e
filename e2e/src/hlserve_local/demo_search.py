"""Settings that a fair opponent needs found by search, on seeds that are never shown.

A criterion is a fact about one arm at one size; sizes are tried upwards until it fails, which assumes that more is never easier.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hlserve_bench.report.assemble import Timing
from hlserve_bench.report.model import ArmReport
from hlserve_local.demo_arms import DemoArm
from hlserve_local.demo_cell import DemoCell
from hlserve_local.demo_seeds import VirtualTask, run_task
from hlserve_local.demo_variants import shedding, with_batch

SEARCH_SEEDS = (1, 2)
SEARCH_TIMING = Timing(warmup_seconds=40.0, measured_seconds=120.0, drain_seconds=10.0)
CHUNKS = (96, 128, 256, 512, 1024, 2048)
CAPPED_BATCHES = (5, 8, 12, 16, 21)
LARGEST_BATCH = 256
CHAT_TARGET = 0.95
"""Agents are capped until chat goodput reaches this."""


@dataclass(frozen=True, slots=True)
class Searched:
    """An arm and the setting that was found for it, as text. `sessions` None: the cell's."""

    arm: DemoArm
    setting: str
    sessions: int | None = None


def search_shedding(cell: DemoCell, blind: DemoArm, timing: Timing = SEARCH_TIMING) -> Searched:
    """Shedding class-blind with the largest batch that keeps the TPOT SLO."""
    best = _largest(range(2, 33), lambda size: _keeps_tpot(cell, shedding(blind, size), timing))
    return Searched(shedding(blind, best), f"max-running {best}")


def search_capped(cell: DemoCell, blind: DemoArm, timing: Timing = SEARCH_TIMING) -> Searched:
    """Class-blind with as many agent sessions at a time as leave chat at the target; the other sessions wait outside.

    With fewer agents a larger batch keeps the SLO, so the batch is searched as well.
    """
    found: list[tuple[float, int, int]] = []
    for batch in CAPPED_BATCHES:
        arm = with_batch(blind, batch)

        def keeps_chat(sessions: int, arm: DemoArm = arm) -> bool:
            reports = _reports(replace(cell, agent_sessions=sessions), arm, timing)
            shares = [report.classes.interactive.goodput_share or 0.0 for report in reports]
            return sum(shares) / len(shares) >= CHAT_TARGET

        sessions = _largest(range(1, cell.agent_sessions + 1), keeps_chat)
        reports = _reports(replace(cell, agent_sessions=sessions), arm, timing)
        found.append((sum(report.classes.agent.output_tokens_per_second for report in reports), batch, sessions))
    _, batch, sessions = max(found)
    return Searched(with_batch(blind, batch), f"max-running {batch}, {sessions} agent sessions at a time", sessions)


def search_blind(cell: DemoCell, blind: DemoArm, timing: Timing = SEARCH_TIMING) -> Searched:
    """Class-blind with the batch and chunk that give agents most output inside the TPOT SLO."""
    found: list[tuple[float, int, int]] = []
    for chunk in CHUNKS:

        def keeps(size: int, chunk: int = chunk) -> bool:
            return _keeps_tpot(cell, with_batch(blind, size, chunk), timing)

        size = _largest(range(1, LARGEST_BATCH + 1), keeps)
        reports = _reports(cell, with_batch(blind, size, chunk), timing)
        found.append((sum(report.classes.agent.output_tokens_per_second for report in reports), size, chunk))
    _, size, chunk = max(found)
    return Searched(with_batch(blind, size, chunk), f"max-running {size}, chunk {chunk}")


def _largest(sizes: Sequence[int], holds: Callable[[int], bool]) -> int:
    """The largest size that holds; the smallest of all if none does. Doubles, then halves the gap."""
    low, step = 0, 1
    while low + step < len(sizes) and holds(sizes[low + step]):
        low += step
        step *= 2
    high = min(low + step, len(sizes))
    while high - low > 1:
        middle = (low + high) // 2
        if holds(sizes[middle]):
            low = middle
        else:
            high = middle
    return sizes[low]


def _keeps_tpot(cell: DemoCell, arm: DemoArm, timing: Timing) -> bool:
    """Whether chat's p95 TPOT is inside the SLO at every seed. No finished reply: nothing speaks against it."""
    for report in _reports(cell, arm, timing):
        tpot = report.classes.interactive.tpot_ms
        if tpot is not None and tpot.p95 > cell.slo.tpot_ms:
            return False
    return True


def _reports(cell: DemoCell, arm: DemoArm, timing: Timing) -> list[ArmReport]:
    return [run_task(VirtualTask(cell, timing, arm, seed)) for seed in SEARCH_SEEDS]
