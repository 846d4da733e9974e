"""The report on a terminal."""

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hlserve_bench.report.comparison import percent, times
from hlserve_bench.report.format import count, latency, rate
from hlserve_bench.report.model import ArmReport, ClassReport, Report


def print_report(report: Report, console: Console) -> None:
    """Print all of it: figures by class and arm, where requests went, the checks."""
    console.print(render(report))


def render(report: Report) -> RenderableType:
    """The report as one rich renderable."""
    manifest = report.manifest
    return Group(
        Panel(Text(report.statement), title="What bought what (simulated)", border_style="cyan"),
        _class_table(report, "Chat (open loop)", "interactive"),
        _class_table(report, "Agents (closed loop)", "agent"),
        *([_seed_table(report)] if report.seeds else []),
        _placement_table(report),
        _check_table(report),
        Text(
            f"All figures simulated: {manifest.device}, {manifest.model}, {manifest.clock} clock, seed {manifest.seed}, "
            f"{report.window.measured_seconds:g} s after {report.window.warmup_seconds:g} s of warm-up.",
            style="dim",
        ),
    )


def _class_table(report: Report, title: str, which: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("")
    arms = (report.arms.class_blind, report.arms.hlserve)
    for arm in arms:
        table.add_column(arm.name, justify="right")
    figures = [_of(arm, which) for arm in arms]
    for label, values in _rows(figures, with_goodput=which == "interactive"):
        table.add_row(label, *values)
    return table


def _rows(figures: list[ClassReport], *, with_goodput: bool) -> list[tuple[str, list[str]]]:
    rows = [
        (
            "requests (ok / failed / unfinished)",
            [f"{f.requests} ({f.ok} / {f.failed} / {f.unfinished})" for f in figures],
        ),
        ("TTFT p50 / p95 / p99", [latency(f.ttft_ms) for f in figures]),
        ("TPOT p50 / p95 / p99", [latency(f.tpot_ms) for f in figures]),
        ("E2E p50 / p95 / p99", [latency(f.e2e_ms) for f in figures]),
        ("output tokens/s", [rate(f.output_tokens_per_second) for f in figures]),
        ("prefix hit rate", [percent(f.prefix_hit_rate) if f.prefix_hit_rate is not None else "–" for f in figures]),
    ]
    if with_goodput:
        rows.insert(1, ("goodput", [f"{percent(f.goodput_share)} ({f.goodput_rps:.2f} rps)" for f in figures]))
    else:
        rows.append(("sessions/h", [rate(f.sessions_per_hour) for f in figures]))
    return rows


def _seed_table(report: Report) -> Table:
    table = Table(title="Every seed", title_justify="left", header_style="bold")
    for column in ("seed", "chat goodput class-blind", "chat goodput HlServe", "agents' output", "agents' sessions"):
        table.add_column(column, justify="right")
    for seed in report.seeds:
        table.add_row(
            str(seed.seed),
            percent(seed.chat_goodput_class_blind),
            percent(seed.chat_goodput_hlserve),
            times(seed.agent_output_ratio),
            times(seed.agent_sessions_ratio),
        )
    return table


def _placement_table(report: Report) -> Table:
    table = Table(title="Where requests went", title_justify="left", header_style="bold")
    for column in ("arm", "class", "pools", "reasons"):
        table.add_column(column)
    for arm in (report.arms.class_blind, report.arms.hlserve):
        for name, figures in (("interactive", arm.classes.interactive), ("agent", arm.classes.agent)):
            table.add_row(arm.name, name, count(figures.requests_by_pool), count(figures.spill_reasons) or "–")
    return table


def _check_table(report: Report) -> Table:
    table = Table(title="Checks", title_justify="left", show_header=False)
    table.add_column(width=4)
    table.add_column()
    for check in report.checks:
        table.add_row(Text("ok", style="green") if check.passed else Text("FAIL", style="bold red"), check.sentence)
    return table


def _of(arm: ArmReport, which: str) -> ClassReport:
    return arm.classes.interactive if which == "interactive" else arm.classes.agent
