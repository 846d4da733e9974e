"""The report as one page that needs nothing else: styles and plots are inside, no script, no address is fetched."""

from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from hlserve_bench.report.comparison import percent, times
from hlserve_bench.report.figures import latency_figure, throughput_figure
from hlserve_bench.report.format import MISSING, count, latency, milliseconds, rate
from hlserve_bench.report.model import ClassReport, Report


@dataclass(frozen=True, slots=True)
class Bar:
    """One arm's value in a tile. `percent` is the bar's length."""

    arm: str
    label: str
    value: str
    percent: float


@dataclass(frozen=True, slots=True)
class Tile:
    """One main figure."""

    title: str
    figure: str
    bars: tuple[Bar, ...]


def render_html(report: Report) -> str:
    """The whole page."""
    environment = Environment(
        loader=PackageLoader("hlserve_bench.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    blind, ours = report.arms.class_blind, report.arms.hlserve
    return environment.get_template("report.html.j2").render(
        report=report,
        headline=_headline(report),
        manifest=report.manifest,
        blind=blind,
        ours=ours,
        tiles=_tiles(report),
        tables=[
            ("Chat", figure_rows(blind.classes.interactive, ours.classes.interactive, with_goodput=True)),
            ("Agents", figure_rows(blind.classes.agent, ours.classes.agent, with_goodput=False)),
        ],
        chat_svg=latency_figure(report, "interactive"),
        agent_svg=latency_figure(report, "agent"),
        throughput_svg=throughput_figure(report),
        placement=_placement(report),
        load_sentence=_load_sentence(report),
        tail_sentence=_tail_sentence(report),
        facts=_facts(report),
        percent=percent,
        times=times,
    )


def figure_rows(blind: ClassReport, ours: ClassReport, *, with_goodput: bool) -> list[tuple[str, tuple[str, str]]]:
    """Label and both arms' values, in reading order."""
    rows = [("requests: ok / failed / unfinished", (_counts(blind), _counts(ours)))]
    if with_goodput:
        rows.append(("goodput", (_goodput(blind), _goodput(ours))))
    rows += [
        ("TTFT", (latency(blind.ttft_ms), latency(ours.ttft_ms))),
        ("TPOT", (latency(blind.tpot_ms), latency(ours.tpot_ms))),
        ("E2E", (latency(blind.e2e_ms), latency(ours.e2e_ms))),
        ("output tokens/s", (rate(blind.output_tokens_per_second), rate(ours.output_tokens_per_second))),
        ("input tokens/s", (rate(blind.input_tokens_per_second), rate(ours.input_tokens_per_second))),
        ("prefix hit rate", (_share(blind.prefix_hit_rate), _share(ours.prefix_hit_rate))),
    ]
    if not with_goodput:
        rows.append(("sessions/h", (rate(blind.sessions_per_hour), rate(ours.sessions_per_hour))))
    return rows


def _counts(figures: ClassReport) -> str:
    return f"{figures.ok} / {figures.failed} / {figures.unfinished}"


def _goodput(figures: ClassReport) -> str:
    return f"{percent(figures.goodput_share)} · {figures.goodput_rps:.2f} rps"


def _share(value: float | None) -> str:
    return MISSING if value is None else percent(value)


def _headline(report: Report) -> str:
    """A claim only if the checks allow it."""
    if all(check.passed for check in report.checks):
        return f"Chat keeps its SLO, and agents get more done, on the same {report.manifest.device}"
    return "This run does not show what it should: see the checks"


def _tiles(report: Report) -> list[Tile]:
    blind, ours = report.arms.class_blind.classes, report.arms.hlserve.classes
    slo = f"TTFT ≤ {report.slo.ttft_ms / 1000:g} s, TPOT ≤ {report.slo.tpot_ms:g} ms"
    shares = (blind.interactive.goodput_share, ours.interactive.goodput_share)
    output = (blind.agent.output_tokens_per_second, ours.agent.output_tokens_per_second)
    sessions = (blind.agent.sessions_per_hour, ours.agent.sessions_per_hour)
    return [
        Tile(f"Chat goodput ({slo})", percent(shares[1]), _bars(report, shares, tuple(map(percent, shares)), full=1.0)),
        Tile(
            "Agents' output, tokens/s",
            times(report.comparison.agent_output_ratio),
            _bars(report, output, tuple(map(rate, output))),
        ),
        Tile(
            "Agents' sessions an hour",
            times(report.comparison.agent_sessions_ratio),
            _bars(report, sessions, tuple(map(rate, sessions))),
        ),
    ]


def _bars(
    report: Report, values: tuple[float | None, float | None], texts: tuple[str, ...], full: float | None = None
) -> tuple[Bar, ...]:
    longest = full or max((value for value in values if value is not None), default=0.0) or 1.0
    names = (report.arms.class_blind.name, report.arms.hlserve.name)
    return tuple(
        Bar(arm, name, text, 100 * (value or 0.0) / longest)
        for arm, name, text, value in zip(("blind", "ours"), names, texts, values, strict=True)
    )


def _placement(report: Report) -> list[tuple[str, str, str, str]]:
    return [
        (
            arm.name,
            name,
            count(figures.requests_by_pool),
            count(figures.spill_reasons) or "no request carries one",
        )
        for arm in (report.arms.class_blind, report.arms.hlserve)
        for name, figures in (("interactive", arm.classes.interactive), ("agent", arm.classes.agent))
    ]


def _load_sentence(report: Report) -> str:
    load = report.manifest.load
    return (
        f"chat at {load['chat_rps']:g} requests/s (Poisson, lengths of the Azure conversation trace) and "
        f"{load['agent_sessions']:g} agent sessions at a time (closed loop, agentic coding sessions)"
    )


def _tail_sentence(report: Report) -> str:
    blind, ours = report.arms.class_blind.classes.agent.e2e_ms, report.arms.hlserve.classes.agent.e2e_ms
    if blind is None or ours is None:
        return ""
    pair = f"a round's p95 is {milliseconds(ours.p95)} with HlServe and {milliseconds(blind.p95)} class-blind"
    if ours.p95 > blind.p95:
        return f"Their tail is what the throughput costs: {pair}, because whole sessions wait for admission."
    return f"Of the rounds that ended in the window, {pair}; sessions that still wait for admission are not among them."


def _facts(report: Report) -> list[tuple[str, str]]:
    manifest = report.manifest
    commit = manifest.commit or "not in a source tree"
    lag = [
        f"{arm.name} {latency(arm.client_lag_ms)}"
        for arm in (report.arms.class_blind, report.arms.hlserve)
        if arm.client_lag_ms is not None
    ]
    return [
        ("basis", "simulated"),
        ("model", f"{manifest.model} on {manifest.device}"),
        ("clock", manifest.clock),
        ("seed", str(manifest.seed)),
        ("workload", manifest.workload_sha256),
        ("load", ", ".join(f"{name} {value:g}" for name, value in manifest.load.items())),
        *([("client lag p50 / p95 / p99", "; ".join(lag))] if lag else []),
        ("versions", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())),
        ("commit", commit + (" with uncommitted changes" if manifest.uncommitted_changes else "")),
        ("machine", manifest.machine),
        ("created", manifest.created),
    ]
