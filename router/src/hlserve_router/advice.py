"""Whether a key's class fits its traffic, from the pace of its sessions. A metric and nothing more: it never decides. Pure.

A program sends the next request of a session as soon as its tools have run; a person reads first. Three such rounds in a row,
each with a longer prompt than the last, are taken as a sign.
"""

import re
from typing import Final

from hlserve_api.routing import Intent
from hlserve_router.affinity import affinity_key
from hlserve_router.exchange import Exchange
from hlserve_router.metrics import Metrics
from hlserve_router.sessions import Trail
from hlserve_router.state import BodyFacts

METRIC: Final = "hlserve_router_class_advice_total"
MAX_TRAILS: Final = 20_000
"""About 6 MB; the session that was quiet longest is forgotten first."""
QUICK_SECONDS: Final = 0.5
"""Nobody reads a reply and writes an answer in less."""
SLOW_SECONDS: Final = 3.0
"""A program whose tools take longer sends their results; a person sends none."""
ROUNDS: Final = 3
# A look-up on an enum's class costs more than the comparison that it is for.
_INTERACTIVE: Final = Intent.INTERACTIVE
_NEWEST_BYTES: Final = 16_384
_TOOL_RESULT: Final = re.compile(rb'"tool_result"|"function_call_output"|"role"\s*:\s*"tool"')


class Advisor:
    """Follows sessions, a bounded number of them."""

    def __init__(self, metrics: Metrics, limit: int = MAX_TRAILS) -> None:
        self._metrics = metrics
        self._limit = limit
        self._trails: dict[str, Trail] = {}

    def __len__(self) -> int:
        return len(self._trails)

    def asked(self, exchange: Exchange, intent: Intent, now: float) -> None:
        """A request of that class was read. Counts it if its session looks like another class's."""
        facts = exchange.facts
        if intent is _INTERACTIVE:
            if not facts.has_tools:
                return  # a loop without tools is hard to tell from many people behind one application
            key = affinity_key(exchange.key.client, exchange.head, exchange.model, facts)
        else:
            key = exchange.affinity_key
        if key is None:
            return
        exchange.trail = trail = self._trail(key)
        _count_round(trail, facts, now)
        if trail.quick >= ROUNDS and intent is _INTERACTIVE:
            self._metrics.count(METRIC, (exchange.class_name, Intent.AGENT.value, "pace"))
        elif trail.slow >= ROUNDS and intent is Intent.AGENT:
            self._metrics.count(METRIC, (exchange.class_name, Intent.INTERACTIVE.value, "pace"))

    def _trail(self, key: str) -> Trail:
        trail = self._trails.pop(key, None)
        if trail is None:
            trail = Trail()
            if len(self._trails) >= self._limit:
                del self._trails[next(iter(self._trails))]
        self._trails[key] = trail
        return trail


def _count_round(trail: Trail, facts: BodyFacts, now: float) -> None:
    gap = now - trail.ended if trail.ended else None
    if gap is None or facts.prompt_bytes <= trail.prompt_bytes:
        trail.quick = trail.slow = 0
    elif gap < QUICK_SECONDS:
        trail.quick, trail.slow = trail.quick + 1, 0
    elif gap >= SLOW_SECONDS and facts.stream and not _brings_tool_results(facts):
        trail.quick, trail.slow = 0, trail.slow + 1
    else:
        trail.quick = trail.slow = 0
    trail.ended, trail.prompt_bytes = 0.0, facts.prompt_bytes


def _brings_tool_results(facts: BodyFacts) -> bool:
    """Whether the newest turns are what tools returned."""
    return (
        facts.prompt is not None and _TOOL_RESULT.search(bytes(memoryview(facts.prompt)[-_NEWEST_BYTES:])) is not None
    )
