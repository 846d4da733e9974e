"""How the live view looks: tables on a terminal, lines in a log. Pure."""

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from hlserve_local.events import Event, EventKind
from hlserve_local.live import ClassRow, PoolRow, View

SHOWN_EVENTS = 6
_BAD = (EventKind.ENGINE_LOST, EventKind.ROUTER_LOST, EventKind.RELOAD_REFUSED)


def tables(view: View, events: Iterable[Event], base_url: str) -> Group:
    """The live view of a terminal."""
    pools = _table(base_url, ("Pool", "Mode"), ("Ready", "Running", "Queued", "tok/s", "KV"), "")
    for pool in view.pools:
        pools.add_row(
            pool.name,
            pool.mode,
            f"{pool.ready}/{pool.wanted}",
            str(pool.running),
            _optional(pool.queued),
            f"{pool.tokens_per_second:.0f}",
            "–" if pool.token_usage is None else f"{pool.token_usage:.0%}",
            pool.note,
        )
    classes = _table("", ("Class", "Intent"), ("Running", "Queued", "ok", "tok/s", "TTFT p50", "TTFT p95"), "not ok")
    for item in view.classes:
        classes.add_row(
            item.name,
            item.intent,
            str(item.running),
            str(item.queued),
            str(item.ok),
            f"{item.tokens_per_second:.0f}",
            _milliseconds(item.ttft_p50_seconds),
            _milliseconds(item.ttft_p95_seconds),
            _reasons(item),
        )
    story = Text("\n".join(str(event) for event in list(events)[-SHOWN_EVENTS:]), style="dim")
    return Group(pools, classes, story, Text("Engines are simulated. Ctrl-C stops everything.", style="dim"))


def line(view: View) -> str:
    """The live view of a log: one line."""
    return " | ".join((*(_pool_words(pool) for pool in view.pools), *(_class_words(item) for item in view.classes)))


def is_bad(event: Event) -> bool:
    """Whether an event is one to worry about."""
    return event.kind in _BAD


def _table(title: str, words: Iterable[str], numbers: Iterable[str], note: str) -> Table:
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, expand=True)
    for name in words:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    table.add_column(note, ratio=1)
    return table


def _pool_words(pool: PoolRow) -> str:
    note = f" ({pool.note})" if pool.note else ""
    return (
        f"pool {pool.name} {pool.ready}/{pool.wanted} ready, {pool.running} running, {_optional(pool.queued)} queued, "
        f"{pool.tokens_per_second:.0f} tok/s{note}"
    )


def _class_words(item: ClassRow) -> str:
    reasons = f", not ok: {words}" if (words := _reasons(item)) else ""
    return f"class {item.name} {item.queued} queued, {item.ok} ok, TTFT p95 {_milliseconds(item.ttft_p95_seconds)}{reasons}"


def _reasons(item: ClassRow) -> str:
    ordered = sorted(item.reasons.items(), key=lambda entry: -entry[1])
    return ", ".join(f"{count} {reason}" for reason, count in ordered[:3])


def _optional(value: int | None) -> str:
    return "–" if value is None else str(value)


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.0f} ms"
