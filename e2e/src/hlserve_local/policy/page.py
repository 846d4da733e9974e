"""The page of the policy benchmark, made from its rows: nobody types a figure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hlserve_local.policy.measures import Interval, interval, ratio

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    name: str
    digits: int = 2


_TOKENS = _Column("agents' tokens/s", "agent_tokens_per_second", 0)
_HITS = _Column("prefix hit rate", "agent_hit_rate")
_HOT = _Column("hottest/mean", "hottest_over_mean")
_P50 = _Column("round p50, s", "agent_round_p50_seconds", 1)
_P95 = _Column("round p95, s", "agent_round_p95_seconds", 0)
_WAIT = _Column("longest wait, s", "longest_wait_seconds", 0)
_CHAT = _Column("chat goodput", "chat_goodput")
_TTFT = _Column("chat TTFT p95, s", "chat_ttft_p95_seconds")
_JAIN = _Column("Jain index", "jain", 3)
_BATCH = _Column("batch tokens/s", "batch_tokens_per_second", 0)
_LATE = _Column("steps late, ms", "late_mean_ms", 1)
_LATEST = _Column("latest step, ms", "late_max_ms", 0)
_SENT_LATE = _Column("requests late, ms", "request_late_mean_ms", 0)

_SECTIONS: tuple[tuple[str, str, str, tuple[_Column, ...], str], ...] = (
    (
        "admission",
        "Sessions held to the KV size",
        "Does it add to what engines do themselves? The ratio is that of agents' tokens/s to the same engines without it.",
        (_TOKENS, _HITS, _P50, _P95, _WAIT),
        "router admits requests only",
    ),
    (
        "idle",
        "How long a session keeps its place",
        "`--session-idle-seconds`: after a reply a session's context counts for so long. The ratio is of agents' tokens/s to the default.",
        (_TOKENS, _HITS, _P50, _P95, _WAIT),
        "5 s (default)",
    ),
    (
        "choice",
        "Choice of the endpoint",
        "Stock engines that order by longest prefix, without session admission: what affinity alone is worth. The ratio is to least "
        "loaded.",
        (_TOKENS, _HITS, _HOT, _P50),
        "least loaded",
    ),
    (
        "peer",
        "Beside sglang-router's cache_aware",
        "Its policy in virtual time, on the same engines and requests "
        "([what is modelled](../../e2e/src/hlserve_local/policy/cache_aware.py)): a prefix tree of what each engine was sent, its "
        "defaults, no queue. Stock SGLang serves first come, first served unless told otherwise. The ratio is of agents' tokens/s "
        "to it.",
        (_TOKENS, _HITS, _HOT, _P50, _P95),
        "sglang-router cache_aware",
    ),
    (
        "live",
        "Beside sglang-router, over HTTP",
        "The same on the clock: real processes and sockets, three stock simulated engines, closed-loop sessions, sglang-router itself "
        "with its defaults. It confirms the section above; the engines' clocks depend on the machine, so it also says how late their "
        "steps ended and the clients sent, in engine time.",
        (_TOKENS, _HITS, _HOT, _P50, _P95, _LATE, _LATEST, _SENT_LATE),
        "sglang-router cache_aware",
    ),
    (
        "queue",
        "Class queues",
        "Agents saturate the pool that chat uses. The ratio is of agents' tokens/s to one queue.",
        (_CHAT, _TTFT, _TOKENS, _WAIT),
        "one queue, one pool",
    ),
    (
        "fairness",
        "Fairness between clients",
        "Four clients; one of them has half of the sessions. Jain's index is over their reply tokens: 1 = all got the same, and "
        "0.72 is what tokens in proportion to sessions give.",
        (_JAIN, _TOKENS, _WAIT),
        "first come, first served",
    ),
    (
        "batch",
        "Batch work in an Interactive pool's idle KV",
        "Agents saturate the HumanLess pool, so Batch, the least urgent class, gets nothing there. The ratio is of agents' tokens/s to "
        "no spill.",
        (_BATCH, _CHAT, _TTFT, _TOKENS),
        "no spill (default)",
    ),
)


def page(rows: Rows, manifest: dict[str, Any]) -> str:
    """Markdown."""
    parts = [_HEAD.format(**manifest)]
    for key, title, text, columns, base in _SECTIONS:
        mine = [row for row in rows if row["experiment"] == key]
        parts.append(f"## {title}\n\n{text}\n")
        if not mine:
            parts.append(f"Not measured in this run: {manifest.get(key, {}).get('skipped', 'left out by option')}.\n")
            continue
        if key == "live":
            parts.append(_LIVE.format(**manifest[key]))
        parts.extend(_tables(mine, columns, base))
        if key in _READING:
            parts.append(_READING[key] + "\n")
    parts.append(_TAIL)
    return "\n".join(parts)


def _tables(rows: Rows, columns: tuple[_Column, ...], base: str) -> list[str]:
    parts = []
    for load in dict.fromkeys(row["load"] for row in rows):
        mine = [row for row in rows if row["load"] == load]
        parts.append(f"**{load}**\n")
        parts.append("| arm | ratio | " + " | ".join(column.title for column in columns) + " |")
        parts.append("| --- |" + " --- |" * (len(columns) + 1))
        against = {row["seed"]: row["values"]["agent_tokens_per_second"] for row in mine if row["arm"] == base}
        for arm in dict.fromkeys(row["arm"] for row in mine):
            values = [row for row in mine if row["arm"] == arm]
            compared = "-" if arm == base else _ratio(values, against)
            cells = " | ".join(_cell(values, column) for column in columns)
            parts.append(f"| {arm} | {compared} | {cells} |")
        parts.append("")
    return parts


def _ratio(rows: Rows, against: dict[int, float]) -> str:
    paired = [
        (row["values"]["agent_tokens_per_second"], against[row["seed"]]) for row in rows if row["seed"] in against
    ]
    found = ratio([mine for mine, _ in paired], [other for _, other in paired]) if paired else None
    return "-" if found is None else found.text()


def _cell(rows: Rows, column: _Column) -> str:
    values = [row["values"].get(column.name) for row in rows]
    known: list[float] = [value for value in values if value is not None]
    if not known:
        return "-"
    text: Callable[[Interval], str] = lambda found: found.text(column.digits)  # noqa: E731 - one use
    return text(interval(known))


_HEAD = """# The router's policies

**Simulated.** The router's own pipeline (it reads bodies, queues, picks, admits; the same code that serves) drives modelled engines:
{engines}. Load: real traces ({traces}), closed-loop agent sessions that start mid-session, open-loop chat. Figures are means over
seeds {seeds} with 95 % bootstrap intervals; ratios are paired by seed. Window: {window}. Made by `{command}` at commit `{commit}` on
{created}; the rows of every run are in [`router-policy.jsonl`](router-policy.jsonl), the manifest in
[`router-policy.json`](router-policy.json).
"""

_LIVE = """Seeds {seeds}; window {window}, {time_scale:g} engine seconds a second; sglang-router {sglang_router}; {cpus} CPUs,
load {load_average:.1f} at the start; commit `{commit}`, {created}.
"""

_READING = {
    "peer": "Where all contexts fit, both keep every session where its prefix is, and do the same. Far past the KV size, engines that "
    "serve first come, first served lose each prefix whichever engine is chosen; holding sessions back keeps them. sglang-router "
    "passes every request on at once, so it cannot.",
    "admission": "Past the KV size, engines that serve first come, first served drop each session's prefix before its next round; with "
    "session admission in the router they do as well as those that order by prefix or admit sessions themselves. Where all contexts "
    "fit it changes nothing. Its price is the tail: sessions wait outside until one inside rests or ends, as the longest wait shows. "
    "It is on wherever the KV size is known ([ADR 0019](../adr/0019-session-admission.md)).",
    "queue": "One pool cannot do both: what waits is ordered, but what runs is not interrupted. Class queues shorten chat's wait; a pool "
    "of its own gives it its SLO.",
    "batch": "Off unless a class names the pool as a Spill target. A small `share.maxPercent` costs chat little, half of the pool too "
    "much.",
}

_TAIL = """## What this does not show

- The engines are a model: no retraction, exact reply lengths, one trace of agents, contexts scaled to 32K tokens ([how](README.md)).
- Session admission counts a shared system prompt once for every session: with long shared prefixes it admits fewer than would fit.
- Each router counts the sessions that it sees: several routers in front of one pool need the KV size divided among them.
"""
