"""The numbers of the live view, from two looks at the router's counters and one at each engine's gauges. Pure but for `Poller`."""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import httpx

from hlserve_local.engines import EngineState
from hlserve_local.gauges import EngineGauges, read_text, samples
from hlserve_local.stack import Stack

WINDOW_SECONDS: Final = 15.0
"""Rates and percentiles of the view are over this much of the past."""


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One pool now. None: not known."""

    name: str
    mode: str
    model: str
    ready: int
    wanted: int
    running: int
    queued: int | None
    tokens_per_second: float
    token_usage: float | None
    note: str


@dataclass(frozen=True, slots=True)
class ClassRow:
    """One class: what it does now, and what came of its requests since the start."""

    name: str
    intent: str
    running: int
    queued: int
    ok: int
    tokens_per_second: float
    ttft_p50_seconds: float | None
    ttft_p95_seconds: float | None
    reasons: Mapping[str, int]
    """Why requests did not end well, and how many."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the live view shows."""

    pools: tuple[PoolRow, ...]
    classes: tuple[ClassRow, ...]


Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Look:
    """The router's metrics at one moment."""

    at_seconds: float
    values: Mapping[str, Mapping[Labels, float]]

    @classmethod
    def parse(cls, text: str, at_seconds: float) -> "Look":
        """From an exposition. Raises ValueError if it is none."""
        values: dict[str, dict[Labels, float]] = {}
        for sample in samples(text):
            values.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
        return cls(at_seconds, values)

    def total(self, name: str, labels: Mapping[str, str]) -> float:
        """Sum of all series of `name` that have these labels."""
        wanted = labels.items()
        return sum(value for key, value in self.values.get(name, {}).items() if wanted <= key)

    def by(self, label: str, name: str, labels: Mapping[str, str]) -> dict[str, float]:
        """The same, for each value of `label`."""
        wanted = labels.items()
        sums: dict[str, float] = {}
        for key, value in self.values.get(name, {}).items():
            if wanted <= key and label in (found := dict(key)):
                sums[found[label]] = sums.get(found[label], 0.0) + value
        return sums


def rate(old: Look, new: Look, name: str, labels: Mapping[str, str]) -> float:
    """Increase per second of a counter between two looks; 0 if it was reset in between."""
    seconds = new.at_seconds - old.at_seconds
    return max(0.0, new.total(name, labels) - old.total(name, labels)) / seconds if seconds > 0 else 0.0


def quantile(share: float, old: Look, new: Look, name: str, labels: Mapping[str, str]) -> float | None:
    """Quantile of a histogram between two looks, as PromQL's `histogram_quantile` finds it; None: nothing was observed."""
    before = old.by("le", f"{name}_bucket", labels)
    after = new.by("le", f"{name}_bucket", labels)
    buckets = sorted((float(bound), count - before.get(bound, 0.0)) for bound, count in after.items())
    if not buckets or buckets[-1][1] <= 0:
        return None
    rank = share * buckets[-1][1]
    lower, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            if bound == float("inf") or count == below:
                return lower
            return lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return lower


class Poller:
    """Looks at a running stack again and again."""

    def __init__(self, stack: Stack, client: httpx.AsyncClient) -> None:
        self._stack = stack
        self._client = client
        self._looks: deque[Look] = deque()

    async def view(self) -> View:
        """Look now. What does not answer counts as nothing."""
        replicas = self._stack.replicas
        text, gauges = await asyncio.gather(
            read_text(self._client, f"{self._stack.admin_url}/metrics"),
            asyncio.gather(*(replica.gauges(self._client) for replica in replicas)),
        )
        old, new = self._remember(text or "")
        by_pool: dict[str, list[EngineGauges]] = {}
        for replica, found in zip(replicas, gauges, strict=True):
            if found is not None:
                by_pool.setdefault(replica.spec.pool, []).append(found)
        return View(
            tuple(self._pool_row(name, by_pool.get(name, ()), old, new) for name in self._stack.plan.pool_names),
            tuple(
                class_row(item.value.name, item.value.spec.intent, old, new)
                for item in self._stack.plan.objects.classes
            ),
        )

    def _remember(self, text: str) -> tuple[Look, Look]:
        now = asyncio.get_running_loop().time()
        try:
            look = Look.parse(text, now)
        except ValueError:
            look = Look(now, {})
        self._looks.append(look)
        while len(self._looks) > 2 and self._looks[1].at_seconds <= now - WINDOW_SECONDS:
            self._looks.popleft()
        return self._looks[0], look

    def _pool_row(self, name: str, gauges: Sequence[EngineGauges], old: Look, new: Look) -> PoolRow:
        plan = next(pool for pool in self._stack.plan.pools if pool.name == name)
        replicas = [replica for replica in self._stack.replicas if replica.spec.pool == name]
        states = [replica.state for replica in replicas]
        spec = plan.pool.spec
        if plan.wanted is None:
            in_flight = int(new.total("hlserve_router_in_flight_requests", {"pool": name}))
            up = int(new.total("hlserve_router_endpoint_up", {"pool": name}))
            tokens = rate(old, new, "hlserve_router_output_tokens_total", {"pool": name})
            note = f"served by {', '.join(plan.foreign)}"
            return PoolRow(name, spec.mode, spec.model.name, up, len(plan.foreign), in_flight, None, tokens, None, note)
        return PoolRow(
            name,
            spec.mode,
            spec.model.name,
            ready=states.count(EngineState.READY),
            wanted=plan.wanted.replicas,
            running=sum(item.running for item in gauges),
            queued=sum(item.queued for item in gauges),
            tokens_per_second=sum(item.tokens_per_second for item in gauges),
            token_usage=sum(item.token_usage for item in gauges) / len(gauges) if gauges else None,
            note=_state_note(states),
        )


def class_row(name: str, intent: str, old: Look, new: Look) -> ClassRow:
    """One class's numbers between two looks."""
    labels = {"class": name}
    ttft = "hlserve_router_ttft_seconds"
    requests = "hlserve_router_requests_total"
    reasons = {reason: int(count) for reason, count in new.by("reason", requests, labels).items() if reason and count}
    for outcome, count in new.by("outcome", requests, {**labels, "reason": ""}).items():
        if outcome != "ok" and count:
            reasons[outcome] = reasons.get(outcome, 0) + int(count)
    return ClassRow(
        name,
        intent,
        running=int(new.total("hlserve_router_in_flight_requests", labels)),
        queued=int(new.total("hlserve_router_queue_depth", labels)),
        ok=int(new.total(requests, {**labels, "outcome": "ok"})),
        tokens_per_second=rate(old, new, "hlserve_router_output_tokens_total", labels),
        ttft_p50_seconds=quantile(0.5, old, new, ttft, labels),
        ttft_p95_seconds=quantile(0.95, old, new, ttft, labels),
        reasons=reasons,
    )


def _state_note(states: Iterable[EngineState]) -> str:
    counts: dict[EngineState, int] = {}
    for state in states:
        if state is not EngineState.READY:
            counts[state] = counts.get(state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in counts.items())
