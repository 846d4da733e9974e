"""The benchmark page as Markdown. Pure: rows in, text out, so that no figure in it was typed."""

from collections.abc import Sequence
from dataclasses import dataclass

from hlserve_bench.report.assemble import Timing
from hlserve_bench.report.model import Manifest
from hlserve_local.demo_search import LARGEST_BATCH
from hlserve_local.demo_table import Row, markdown_table, paired_ratio


@dataclass(frozen=True, slots=True)
class LossResult:
    """One cell in which HlServe gains little or loses."""

    title: str
    blind: Row
    ours: Row
    shedding: Row


@dataclass(frozen=True, slots=True)
class PageContent:
    """All rows of the page."""

    rows: dict[str, Row]
    groups: dict[str, tuple[str, ...]]
    losses: Sequence[LossResult]
    timing: Timing
    seeds: Sequence[int]
    manifest: Manifest


def render_page(content: PageContent) -> str:
    """The whole page."""
    rows = content.rows
    ours, blind = rows["hlserve"], rows["class_blind"]
    manifest, timing = content.manifest, content.timing
    parts = [
        "# Demo: what two pools buy, and where they do not (simulated)",
        f"**Every figure on this page is simulated**: the engine scheduler over a cost model of {manifest.device} with "
        f"{manifest.model}, in virtual time, no HTTP. Made by one command:",
        f"```sh\nhlserve demo --virtual --seeds {len(content.seeds)} --variants --out docs/benchmarks/demo\n```",
        f"Load: chat at {manifest.load['chat_rps']:g} requests/s (Poisson; lengths of the Azure conversation trace) and "
        f"{manifest.load['agent_sessions']:g} agent sessions at a time (closed loop; agentic coding sessions). "
        f"A chat request is good if its TTFT is at most 1 s and its TPOT at most 20 ms; unfinished ones count as missed. "
        f"{timing.measured_seconds:g} s after "
        f"{timing.warmup_seconds:g} s of warm-up; seeds {', '.join(map(str, content.seeds))}, the same load in every arm; settings "
        "marked *searched* were found on other seeds. Ratios are HlServe over the arm, paired by seed: mean [lowest–highest].",
        "![Agents' output against chat goodput, a mark an arm](variants.svg)",
        "## The two arms, and stronger class-blind ones",
        _arms_table([blind, *(rows[key] for key in content.groups["blind"]), ours], ours),
        _reading(content),
        "## The causes, one after the other",
        _arms_table([blind, *(rows[key] for key in content.groups["causes"])], ours),
        _causes_sentence(content),
        "## Other mixtures",
        _arms_table([rows[key] for key in content.groups["other"]], ours),
        "More output for agents than HlServe's three engines give them is possible: with the HumanLess flags on all four. Chat then "
        "has no goodput left.",
        "## Where HlServe gains little or loses",
        "Chat goodput / agents' output tokens a second. Class-blind's batch and chunk were searched anew where device, model or SLO "
        f"differ from the demo's; a batch of {LARGEST_BATCH} is the end of the search: there the TPOT SLO does not bind.",
        _loss_table(content.losses),
        _loss_reading(content.losses),
        _tail(ours, blind),
        "## Settings",
        "\n".join(_settings(row) for row in rows.values()),
        "## Limits",
        "Kernels are summed without overlap; KV is reserved for the exact reply length, so nothing is retracted; no HTTP and no client "
        "lag; one agent trace, cut and scaled as stated in `report.json`. A GPU may disagree.",
        f"Versions: {', '.join(f'{name} {version}' for name, version in manifest.versions.items())}; commit "
        f"{manifest.commit or 'unknown'}{' with uncommitted changes' if manifest.uncommitted_changes else ''}; created {manifest.created}. "
        "All figures by seed: `results.json`.",
    ]
    return "\n\n".join(parts) + "\n"


def _arms_table(rows: Sequence[Row], ours: Row) -> str:
    header = [
        "arm (simulated)",
        "chat goodput",
        "agents tok/s",
        "agents sessions/h",
        "round p50",
        "round p95",
        "prefix hits",
        "HlServe / arm",
    ]
    return markdown_table(header, [[_title(row), *_cells(row), _over(ours, row)] for row in rows])


def _title(row: Row) -> str:
    return f"{row.title} (*searched*: {row.searched})" if row.searched else row.title


def _cells(row: Row) -> list[str]:
    return [
        f"{row.chat_goodput_share:.2f}",
        f"{row.agent_output:.0f}",
        _mean([seed.agent_sessions_per_hour for seed in row.seeds], "{:.0f}"),
        _mean([_seconds(seed.agent_round_p50_ms) for seed in row.seeds], "{:.0f} s"),
        _mean([_seconds(seed.agent_round_p95_ms) for seed in row.seeds], "{:.0f} s"),
        _mean([seed.agent_prefix_hit_rate for seed in row.seeds], "{:.2f}"),
    ]


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _mean(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return form.format(sum(known) / len(known)) if known else "–"


def _over(ours: Row, row: Row) -> str:
    if row.key == ours.key:
        return "1"
    ratio = paired_ratio(ours, row)
    return "–" if ratio is None else str(ratio)


def _reading(content: PageContent) -> str:
    rows = content.rows
    ours, shed, capped = rows["hlserve"], rows["shedding"], rows["capped"]
    return (
        f"Read it as: HlServe keeps chat at {ours.chat_goodput_share:.2f}. A class-blind pool that sheds gets agents further than one that "
        f"queues ({shed.agent_output:.0f} tok/s), at a chat goodput of {shed.chat_goodput_share:.2f}. One that lets in so few agents that "
        f"chat holds {capped.chat_goodput_share:.2f} leaves agents {capped.agent_output:.0f} tok/s."
    )


def _causes_sentence(content: PageContent) -> str:
    rows = content.rows
    out = {key: rows[key].agent_output for key in content.groups["causes"]}
    chat = {key: rows[key].chat_goodput_share for key in content.groups["causes"]}
    return (
        f"What bought what: the split and the chat pool's own flags buy chat (goodput {rows['class_blind'].chat_goodput_share:.2f} → "
        f"{chat['cause_chat_flags']:.2f}) and agents nothing ({out['cause_chat_flags']:.0f} tok/s); KV-aware admission buys agents most "
        f"(→ {out['cause_admission']:.0f}), the batch bounded by KV the next (→ {out['cause_kv_batch']:.0f}). Greedy chunks "
        f"({_signed(out['cause_greedy'] - out['cause_kv_batch'])} tok/s) and longest prefix first "
        f"({_signed(out['cause_lpm'] - out['cause_greedy'])}) matter little here, once admission is there."
    )


def _signed(value: float) -> str:
    return f"{value:+.0f}"


def _loss_table(losses: Sequence[LossResult]) -> str:
    header = [
        "cell (simulated)",
        "HlServe: chat / agents",
        "class-blind: chat / agents",
        "ratio",
        "sheds: chat / agents",
        "ratio",
    ]
    rows = [
        [
            _loss_title(loss),
            _pair(loss.ours),
            _pair(loss.blind),
            _over(loss.ours, loss.blind),
            _pair(loss.shedding),
            _over(loss.ours, loss.shedding),
        ]
        for loss in losses
    ]
    return markdown_table(header, rows)


def _loss_title(loss: LossResult) -> str:
    return f"{loss.title}; class-blind: {loss.blind.searched}; sheds: {loss.shedding.searched}"


def _pair(row: Row) -> str:
    return f"{row.chat_goodput_share:.2f} / {row.agent_output:.0f}"


def _loss_reading(losses: Sequence[LossResult]) -> str:
    losing = []
    for loss in losses:
        for name, row in (("class-blind", loss.blind), ("class-blind that sheds", loss.shedding)):
            ratio = paired_ratio(loss.ours, row)
            if ratio is not None and ratio.mean < 1:
                losing.append(f"- {loss.title}, against {name}: {ratio}")
    if not losing:
        return "In none of these cells do agents get less than class-blind gives them, at the searched settings."
    return "Agents get *less* than from a class-blind arm here:\n\n" + "\n".join(losing)


def _tail(ours: Row, blind: Row) -> str:
    mine, other = ours.agent_round_p95_seconds, blind.agent_round_p95_seconds
    if mine is None or other is None:
        return ""
    return (
        f"Agents' tail, in the demo's own cell: the p95 of a round is {mine:.0f} s with HlServe and {other:.0f} s class-blind. Whole "
        "sessions wait for admission, and once admitted their rounds are quick: the median falls, the tail does not."
    )


def _settings(row: Row) -> str:
    return f"- **{row.title}**: " + "; ".join(f"{pool}: {flags}" for pool, flags in row.flags.items())
