"""Step 6: which endpoint. Pure: frozen views in, a choice out.

Interactive work goes to the least loaded endpoint. Agent and Batch work goes back to where its session's prefix is
cached, unless that endpoint carries far more than the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from hlserve_api.routing import Intent, SpillRule
from hlserve_router.state import AffinityResult, EndpointView, NoPlace, SpillReason

ESCAPE_RATIO: Final = 1.5
ESCAPE_GAP_TOKENS: Final = 65_536
"""Affinity is left only if the endpoint's load is above the lightest one's by both (as SMG's 64 requests and 1.5, in tokens)."""
SESSION_BOUND: Final = 1.25
"""Bounded-load hashing: a new session skips an endpoint that holds more than this times the mean number of sessions."""


@dataclass(frozen=True, slots=True)
class Pick:
    """The endpoint's index in the views, and how affinity fared."""

    index: int
    affinity: AffinityResult


def pick(
    intent: Intent, views: Sequence[EndpointView], tokens: int, affinity_key: str | None, home: str | None, turn: int
) -> Pick | None:
    """The endpoint for a request of about `tokens` tokens, or None if none has room.

    `home` is the endpoint that served this affinity key before. `turn` breaks ties in rotation.
    """
    open_ = [index for index, view in enumerate(views) if has_room(view, tokens)]
    if not open_:
        return None
    lightest = _least_loaded(views, open_, turn)
    if intent is Intent.INTERACTIVE or affinity_key is None:
        return Pick(lightest, AffinityResult.NONE)
    if home is not None:
        for index in open_:
            if views[index].id == home:
                if far_more_loaded(views[index], views[lightest]):
                    return Pick(lightest, AffinityResult.ESCAPED)
                return Pick(index, AffinityResult.HIT)
        lost = not any(view.id == home and (view.usable or view.busy) for view in views)
        return Pick(lightest, AffinityResult.MISS if lost else AffinityResult.ESCAPED)
    index = _new_home(views, open_, affinity_key)
    if far_more_loaded(views[index], views[lightest]):
        index = lightest
    return Pick(index, AffinityResult.MISS)


def spill_reason(rule: SpillRule, blocked: NoPlace, *, waits_long: bool) -> SpillReason | None:
    """Why a request that is `blocked` on the Primary targets may use the Spill ones; None: it may not.

    `waits_long`: its lane's queue wait is above the rule's watermarks.
    """
    if blocked in (NoPlace.DOWN, NoPlace.EMPTY, NoPlace.DRAINING) and rule.when_unavailable:
        return SpillReason.UNAVAILABLE
    return SpillReason.QUEUE_WAIT if waits_long else None


def has_room(view: EndpointView, tokens: int) -> bool:
    """True if the endpoint may take a request of `tokens` more. One above the whole bound is taken alone."""
    if not view.usable:
        return False
    if view.max_in_flight is not None and view.in_flight >= view.max_in_flight:
        return False
    if view.max_in_flight_tokens is None or view.in_flight == 0:
        return True
    return view.in_flight_tokens + tokens <= view.max_in_flight_tokens


def load_of(view: EndpointView) -> float:
    """Load per unit of weight; a young endpoint looks as loaded as its ramp is short."""
    return (view.load_tokens + 1.0) / (view.weight * view.ramp)


def far_more_loaded(view: EndpointView, lightest: EndpointView) -> bool:
    """True if affinity to `view` should be given up for `lightest`."""
    mine, other = load_of(view), load_of(lightest)
    return mine - other > ESCAPE_GAP_TOKENS and mine > ESCAPE_RATIO * other


def _least_loaded(views: Sequence[EndpointView], open_: Sequence[int], turn: int) -> int:
    count = len(open_)
    best = open_[turn % count]
    best_load = load_of(views[best])
    for step in range(1, count):
        index = open_[(turn + step) % count]
        load = load_of(views[index])
        if load < best_load:
            best, best_load = index, load
    return best


def _new_home(views: Sequence[EndpointView], open_: Sequence[int], affinity_key: str) -> int:
    """First endpoint in the key's rendezvous order that does not hold far more sessions than its share.

    Every router that sees the same endpoints finds the same order, so they agree without talking.
    """
    total_weight = sum(views[index].weight for index in open_)
    sessions = sum(views[index].sessions for index in open_) + 1
    order = sorted(open_, key=lambda index: _score(affinity_key, views[index]), reverse=True)
    for index in order:
        view = views[index]
        fair = sessions * view.weight / total_weight
        if view.sessions + 1 <= max(1.0, SESSION_BOUND * fair):
            return index
    return order[0]


def _score(affinity_key: str, view: EndpointView) -> float:
    """Weighted rendezvous score (the highest wins)."""
    raw = blake2b(f"{view.id}\0{affinity_key}".encode(), digest_size=8).digest()
    unit = (int.from_bytes(raw, "big") + 1) / (2**64 + 1)
    return float(unit ** (1.0 / view.weight))
