"""KV-aware admission: the sessions in flight stay inside a share of the pool, so that their prefixes survive between rounds.

A session is not declared by anyone: it is recognised by a prompt that continues one which has just finished.
"""

from math import ceil

from hlserve_capacity.engine.radix import TOKEN_BYTES, Node, RadixTree
from hlserve_capacity.engine.sequence import Hold, Sequence
from hlserve_capacity.engine.types import EngineConfig


class SessionLedger:
    """KV that admitted sessions count for, and the holds of those that wait for their next round.

    Footprints: a request in flight counts for its prompt and whole reply, an idle session for its resident prefix.
    """

    def __init__(self, config: EngineConfig, tree: RadixTree) -> None:
        self._budget_tokens = int(config.admission_fraction * config.pool_tokens)
        self._idle_us = config.session_idle_us
        self._overlap = config.session_overlap_fraction
        self._tree = tree
        self._idle: dict[int, Hold] = {}
        self.active_tokens = 0
        self.in_flight = 0

    @property
    def idle_sessions(self) -> int:
        return len(self._idle)

    @property
    def bound_tokens(self) -> int:
        """Bound on the footprints of the admitted sessions."""
        return self._budget_tokens

    def may_open(self, sequence: Sequence) -> bool:
        """Whether a new session would be admitted: its request fits the bound, or there is no other session at all."""
        tokens = sequence.prompt_tokens + sequence.output_tokens
        return self.active_tokens + tokens <= self._budget_tokens or not (self.in_flight or self._idle)

    def claim(self, sequence: Sequence) -> bool:
        """Let a new request take over the session that it continues. False: it opens a session of its own."""
        best: Hold | None = None
        for hold in self._idle.values():
            if (best is None or len(hold.required) > len(best.required)) and sequence.key.startswith(hold.required):
                best = hold
        if best is None:
            return False
        del self._idle[id(best)]
        self.active_tokens -= best.tokens
        best.claimed = True
        sequence.hold = best
        self._enter(sequence)
        return True

    def try_open(self, sequence: Sequence) -> bool:
        """Admit a new session if it may open."""
        if not self.may_open(sequence):
            return False
        self._enter(sequence)
        return True

    def started(self, sequence: Sequence) -> None:
        """The request reads its prefix itself now: its session's hold is not needed."""
        if sequence.hold is not None:
            self._tree.unhold(sequence.hold.node)
            sequence.hold = None

    def close(self, sequence: Sequence) -> None:
        """The request is gone and its session keeps nothing."""
        self.started(sequence)
        self._leave(sequence)

    def rest(self, sequence: Sequence, node: Node, tokens: int, now_us: int) -> None:
        """The request has finished: keep its prefix for the session's next round."""
        self._leave(sequence)
        required = ceil(self._overlap * sequence.prompt_tokens) * TOKEN_BYTES
        self._keep(Hold(node, sequence.key[:required], tokens, now_us + self._idle_us))

    def give_back(self, sequence: Sequence, now_us: int) -> None:
        """The request left before it started: its session is idle again."""
        self._leave(sequence)
        hold, sequence.hold = sequence.hold, None
        if hold is not None:
            self._tree.unhold(hold.node)
            hold.claimed, hold.expires_us = False, now_us + self._idle_us
            self._keep(hold)

    def expire(self, now_us: int) -> bool:
        """Drop the holds whose time is over."""
        late = [hold for hold in self._idle.values() if hold.expires_us <= now_us]
        for hold in late:
            self._drop(hold)
        return bool(late)

    def drop_oldest(self) -> bool:
        """Give up the idle session that will expire first. False: there is none."""
        if not self._idle:
            return False
        self._drop(min(self._idle.values(), key=lambda hold: hold.expires_us))
        return True

    def next_expiry_us(self) -> int | None:
        return min((hold.expires_us for hold in self._idle.values()), default=None)

    def demote(self, sequence: Sequence) -> None:
        """Take the admission of a waiting request back, with the KV kept for it."""
        self.close(sequence)

    def clear(self) -> None:
        """Forget the idle sessions. Only while no request is in the engine."""
        while self.drop_oldest():
            pass

    def _enter(self, sequence: Sequence) -> None:
        sequence.admitted = True
        sequence.footprint = sequence.prompt_tokens + sequence.output_tokens
        self.active_tokens += sequence.footprint
        self.in_flight += 1

    def _leave(self, sequence: Sequence) -> None:
        if sequence.admitted:
            sequence.admitted = False
            self.active_tokens -= sequence.footprint
            self.in_flight -= 1

    def _keep(self, hold: Hold) -> None:
        self._tree.hold(hold.node)
        self._idle[id(hold)] = hold
        self.active_tokens += hold.tokens

    def _drop(self, hold: Hold) -> None:
        del self._idle[id(hold)]
        self.active_tokens -= hold.tokens
        self._tree.unhold(hold.node)
