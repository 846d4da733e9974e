"""Step 6: which endpoint. Pure: looks at endpoints, changes none.

Interactive work goes to the least loaded endpoint. Agent and Batch work goes back to where its session's prefix is cached, until
waiting there costs more than computing the prefix anew elsewhere. Where the KV size is known, a session that is not active
waits until its context fits beside those that are.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from hlserve_api.routing import Intent, SpillRule
from hlserve_router.endpoint import TOKENS_PER_FOREIGN_REQUEST, EndpointState
from hlserve_router.pools import Offer, Pool, at_max_share
from hlserve_router.sessions import Session
from hlserve_router.state import AffinityResult, NoPlace, SpillReason

ESCAPE_RATIO: Final = 1.5
"""A home is left only if its work is above the lightest one's by this factor as well (as SMG's, there in requests)."""
ESCAPE_MIN_TOKENS: Final = 16_384
"""Below this many tokens more work than at the lightest endpoint, a home is never left, however short the session."""
ESCAPE_MAX_TOKENS: Final = {Intent.INTERACTIVE: 65_536, Intent.AGENT: 262_144, Intent.BATCH: 524_288}
"""Above this many, it is left however long the session: what a class's requests may wait for a cached prefix, as work ahead."""
BATCH_PATIENCE: Final = 5.0
"""How much longer than Agent work Batch work waits for its home."""
SESSION_BOUND: Final = 1.25
WORK_BOUND: Final = 1.1
"""Bounded-load hashing: a new session skips an endpoint that holds more than this times the mean, of sessions and of work."""
_NOBODY: Final[frozenset[str]] = frozenset()
# A look-up on an enum's class costs more than the comparison that it is for.
_INTERACTIVE: Final = Intent.INTERACTIVE
_NO_AFFINITY: Final = AffinityResult.NONE
_MISS: Final = AffinityResult.MISS
_HIT: Final = AffinityResult.HIT
_ESCAPED: Final = AffinityResult.ESCAPED


class Pick:
    """The endpoint, and how affinity fared."""

    __slots__ = ("affinity", "endpoint")

    def __init__(self, endpoint: EndpointState, affinity: AffinityResult) -> None:
        self.endpoint = endpoint
        self.affinity = affinity


class Ask:
    """What a request asks for. Tokens are estimates; `session` is what is known of the one that `affinity_key` names."""

    __slots__ = (
        "affinity_key", "avoid", "class_name", "intent", "output_tokens", "prompt_tokens", "session", "waited_seconds",
    )  # fmt: skip

    def __init__(
        self,
        class_name: str,
        intent: Intent,
        prompt_tokens: int,
        output_tokens: int,
        affinity_key: str | None = None,
        session: Session | None = None,
        waited_seconds: float = 0.0,
        avoid: frozenset[str] = _NOBODY,
    ) -> None:
        self.class_name = class_name
        self.intent = intent
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.affinity_key = affinity_key
        self.session = session
        self.waited_seconds = waited_seconds
        self.avoid = avoid


class _Open:
    """An endpoint that has room. `weight`: that of its pool, less while it is in its slow start."""

    __slots__ = ("endpoint", "weight")

    def __init__(self, endpoint: EndpointState, weight: float) -> None:
        self.endpoint = endpoint
        self.weight = weight


def pick(offers: Sequence[Offer], ask: Ask, now: float) -> Pick | NoPlace:
    """The endpoint for a request, or why there is none now. Of equals, the one that was taken longest ago."""
    usable = tight = False
    best: EndpointState | None = None
    best_load = 0.0
    open_: list[_Open] | None = [] if ask.affinity_key is not None and ask.intent is not _INTERACTIVE else None
    for offer in offers:
        pool = offer.pool
        pool_cap, bounded = pool.max_in_flight, pool.max_tokens is not None
        capped = offer.max_percent < 100 and at_max_share(offer, ask.class_name)
        for endpoint in pool.endpoints.values():
            if not endpoint.usable(now) or (ask.avoid and endpoint.id in ask.avoid):
                continue
            usable = True
            if capped:
                continue
            weight = float(offer.weight)
            own = endpoint.caps
            cap = pool_cap if own is None else own.max_in_flight
            if endpoint.seasoned:
                if cap is not None and endpoint.in_flight >= cap:
                    continue
            else:
                ramp = endpoint.ramp(now)
                weight *= ramp
                if cap is not None and endpoint.in_flight >= max(1, int(cap * ramp)):
                    continue
            if (bounded or own is not None or endpoint.kv_budget is not None) and not fits(pool, endpoint, ask):
                tight = True
                continue
            if open_ is not None:
                open_.append(_Open(endpoint, weight))
                continue
            load = load_of(endpoint, weight, now)
            if best is None or load < best_load or (load == best_load and endpoint.turn < best.turn):
                best, best_load = endpoint, load
    if best is not None:
        return Pick(best, _NO_AFFINITY)
    if not open_:
        return (NoPlace.TIGHT if tight else NoPlace.FULL) if usable else _without_usable(offers, ask, now)
    return _by_affinity(open_, ask, now, tight=tight)


def fits(pool: Pool, endpoint: EndpointState, ask: Ask) -> bool:
    """True if the tokens of the request fit. One above a whole bound is taken alone, so that nothing waits for ever."""
    most = pool.max_tokens if endpoint.caps is None else endpoint.caps.in_flight_tokens
    tokens = ask.prompt_tokens + ask.output_tokens
    if most is not None and endpoint.in_flight and endpoint.in_flight_tokens + tokens > most:
        return False
    budget = endpoint.kv_budget
    if budget is None or not endpoint.held_tokens:
        return True
    session = ask.session
    if session is not None and session.active and not session.in_flight and session.home is endpoint:
        return True
    return endpoint.held_tokens + pool.kv_need(ask.prompt_tokens, ask.output_tokens) <= budget


def load_of(endpoint: EndpointState, weight: float, now: float) -> float:
    """Tokens in flight per unit of weight."""
    tokens = endpoint.in_flight_tokens
    if endpoint.gauges is not None:
        tokens += endpoint.foreign_requests(now) * TOKENS_PER_FOREIGN_REQUEST
    return (tokens + 1.0) / weight


def leaving_pays(home: EndpointState, home_weight: float, other: _Open, intent: Intent, context_tokens: int) -> bool:
    """True if `home` has so much more work ahead than `other` that computing the context anew there is the smaller cost.

    That context delays all that `other` has in flight, not only the request that leaves: among n others its cost is n + 1 times.
    """
    ahead = home.work_tokens / home_weight
    least = other.endpoint.work_tokens / other.weight
    excess = ahead - least
    cost = max(context_tokens, ESCAPE_MIN_TOKENS) * (1 + other.endpoint.in_flight)
    return excess > min(cost, ESCAPE_MAX_TOKENS[intent]) and ahead > ESCAPE_RATIO * least


def spill_reason(rule: SpillRule, blocked: NoPlace, *, waits_long: bool) -> SpillReason | None:
    """Why a request that is `blocked` on the Primary targets may use the Spill ones; None: it may not.

    `waits_long`: its lane's queue wait is above the rule's watermarks.
    """
    if blocked in (NoPlace.DOWN, NoPlace.EMPTY, NoPlace.DRAINING) and rule.when_unavailable:
        return SpillReason.UNAVAILABLE
    return SpillReason.QUEUE_WAIT if waits_long else None


def _by_affinity(open_: list[_Open], ask: Ask, now: float, *, tight: bool) -> Pick | NoPlace:
    """`tight`: some endpoint is not among the open ones for want of room for the tokens."""
    # The one with the least work ahead, not the fewest tokens in flight: what is cached there need not be computed.
    lightest = open_[0]
    for found in open_:
        if found.endpoint.work_tokens * lightest.weight < lightest.endpoint.work_tokens * found.weight:
            lightest = found
    key = ask.affinity_key or ""
    session = ask.session
    if session is None:
        return Pick(_new_home(open_, key, lightest, ask.prompt_tokens), _MISS)
    home = session.home
    for found in open_:
        if found.endpoint is home:
            if found is lightest or not leaving_pays(home, found.weight, lightest, ask.intent, session.context_tokens):
                return Pick(home, _HIT)
            return Pick(lightest.endpoint, _ESCAPED)
    if home.id in ask.avoid:
        return Pick(lightest.endpoint, _ESCAPED)
    if not home.usable(now):
        lost = home.removed or not (home.last_resort(now) or home.busy(now)) or home.opened
        if lost:
            return Pick(_new_home(open_, key, lightest, ask.prompt_tokens), _MISS)
        return Pick(lightest.endpoint, _ESCAPED)
    if tight and not session.active:
        # Its place at home was given away, and its prefix with it sooner or later: it settles where there is room.
        return Pick(_new_home(open_, key, lightest, ask.prompt_tokens), _MISS)
    patience = home.pace.affinity_wait_seconds * (BATCH_PATIENCE if ask.intent is Intent.BATCH else 1.0)
    # A second request of one session at a time is no next round of it: nothing of it waits for one endpoint.
    waits = not session.in_flight and ask.waited_seconds < patience
    if waits and not leaving_pays(home, 1.0, lightest, ask.intent, session.context_tokens):
        return NoPlace.TIGHT
    return Pick(lightest.endpoint, _ESCAPED)


def _is_full(pool: Pool, endpoint: EndpointState) -> bool:
    cap = pool.max_in_flight if endpoint.caps is None else endpoint.caps.max_in_flight
    return cap is not None and endpoint.in_flight >= cap


def _without_usable(offers: Sequence[Offer], ask: Ask, now: float) -> Pick | NoPlace:
    """Breakers never take out the last endpoint: those that only a breaker holds are tried after all."""
    states = [(offer, endpoint) for offer in offers for endpoint in offer.pool.endpoints.values()]
    left = [(offer, state) for offer, state in states if state.id not in ask.avoid]
    if not left:
        return NoPlace.DOWN if states else NoPlace.EMPTY
    open_ = [state for offer, state in left if state.last_resort(now) and not _is_full(offer.pool, state)]
    if open_:
        return Pick(min(open_, key=lambda state: (state.in_flight_tokens, state.turn)), _NO_AFFINITY)
    there = [state for _, state in left if state.ready and state.reachable]
    if any(state.busy(now) for state in there if not state.draining):
        return NoPlace.BUSY
    if any(state.last_resort(now) for state in there):
        return NoPlace.FULL
    if any(state.draining for state in there):
        return NoPlace.DRAINING
    return NoPlace.DOWN


def _new_home(open_: Sequence[_Open], affinity_key: str, lightest: _Open, need_tokens: int) -> EndpointState:
    """First endpoint in the key's rendezvous order that holds no more than its share, and hardly more work than the mean.

    Shares are of KV where the endpoints' sizes are known, else of sessions. Every router that sees the same endpoints finds the
    same order, so they agree without talking. Nothing of a new session is cached anywhere: in a burst it goes where least waits.
    """
    total_weight = sum(found.weight for found in open_)
    by_kv = all(found.endpoint.kv_budget is not None for found in open_)
    held = [found.endpoint.held_tokens if by_kv else found.endpoint.sessions for found in open_]
    total = sum(held) + 1
    work = sum(found.endpoint.work_tokens for found in open_)
    order = sorted(range(len(open_)), key=lambda index: _score(affinity_key, open_[index]), reverse=True)
    for index in order:
        found = open_[index]
        share = found.weight / total_weight
        if held[index] + 1 > max(1.0, SESSION_BOUND * total * share):
            continue
        if found is lightest or found.endpoint.work_tokens <= WORK_BOUND * work * share + need_tokens:
            return found.endpoint
    return lightest.endpoint


def _score(affinity_key: str, found: _Open) -> float:
    """Weighted rendezvous score (the highest wins)."""
    raw = blake2b(f"{found.endpoint.id}\0{affinity_key}".encode(), digest_size=8).digest()
    unit = (int.from_bytes(raw, "big") + 1) / (2**64 + 1)
    return float(unit ** (1.0 / found.weight))
