"""Whether a waiting request may start: its session's admission, its cached prefix, and room for its KV."""

from math import ceil

from hlserve_capacity.engine.admission import SessionLedger
from hlserve_capacity.engine.pool import KvPool
from hlserve_capacity.engine.retraction import CLIP_NEW_TOKENS, NewTokenRatio
from hlserve_capacity.engine.running import RunningSet
from hlserve_capacity.engine.sequence import Sequence
from hlserve_capacity.engine.types import EngineConfig
from hlserve_capacity.engine.waiting import Wait, WaitReason, matched_and_loose_tokens


class StartCheck:
    """Decides on one waiting request at a time, and locks the cached prefix of one that may start."""

    def __init__(
        self, config: EngineConfig, pool: KvPool, sessions: SessionLedger, running: RunningSet, ratio: NewTokenRatio
    ) -> None:
        self._config = config
        self._pool = pool
        self._sessions = sessions
        self._running = running
        self._ratio = ratio

    def fits(self, sequence: Sequence) -> bool:
        """True: its session is admitted and its prefix locked. False: nothing has changed."""
        config = self._config
        opened = config.kv_aware_admission and not sequence.admitted
        if opened and not self._sessions.try_open(sequence):
            return False
        if not config.disable_radix_cache:
            found = self._pool.tree.match(sequence.key, min(sequence.prompt_tokens, sequence.target - 1))
            sequence.node, sequence.shared, sequence.resident = found.node, found.tokens, found.tokens
            self._pool.tree.acquire(found.node)
        if self._needed_tokens(sequence) <= self._available_tokens():
            return True
        self.unlock(sequence)
        if opened:
            self._sessions.close(sequence)
        return False

    def missing(self, sequence: Sequence, budget_tokens: int | None) -> Wait:
        """What keeps a waiting request from starting now. `budget_tokens` None: no step runs whose budget could be taken."""
        config = self._config
        whole = sequence.prompt_tokens + sequence.output_tokens
        if config.kv_aware_admission and not sequence.admitted and not self._sessions.may_open(sequence):
            return Wait(WaitReason.ADMISSION, max(0, self._sessions.bound_tokens - self._sessions.active_tokens), whole)
        matched = loose = 0
        if not config.disable_radix_cache:
            limit = min(sequence.prompt_tokens, sequence.target - 1)
            matched, loose = matched_and_loose_tokens(self._pool.tree, sequence.key, limit)
        # A prefix that the request would lock is neither needed a second time nor there to be evicted.
        need, headroom = self._needed_tokens(sequence) - matched, self._available_tokens() - loose
        if need > headroom:
            return Wait(WaitReason.KV, max(0, int(headroom)), ceil(need))
        chunked = config.chunked_prefill_size is not None and not config.throughput_mode
        compute = sequence.target - matched
        if budget_tokens is not None and budget_tokens < (1 if chunked else compute):
            return Wait(WaitReason.BUDGET, max(0, budget_tokens), compute)
        return Wait(WaitReason.NONE, max(0, int(headroom)), ceil(need))

    def unlock(self, sequence: Sequence) -> None:
        """Give the locked prefix back."""
        if sequence.node is not None:
            self._pool.tree.release(sequence.node)
        sequence.node, sequence.shared, sequence.resident = None, 0, 0

    def unwritten_tokens(self, sequence: Sequence) -> int:
        """KV tokens promised to a request that starts or runs, and not written yet."""
        if self._config.reserve_output:
            return sequence.prompt_tokens + sequence.output_tokens - sequence.resident
        return max(0, sequence.target - sequence.resident)

    def _needed_tokens(self, sequence: Sequence) -> float:
        if self._config.reserve_output:
            return self.unwritten_tokens(sequence)
        reply = sequence.prompt_tokens + sequence.output_tokens - sequence.target
        return sequence.todo + self._ratio.current * min(reply, CLIP_NEW_TOKENS)

    def _available_tokens(self) -> float:
        if self._config.reserve_output:
            return self._pool.unpromised_tokens
        running = self._running
        growth = sum(
            min(item.output_tokens - running.made(item), CLIP_NEW_TOKENS)
            for group in (running.decoding, running.prefilling)
            for item in group.values()
        )
        # However small the ratio, the next step writes one token a row.
        return self._pool.unpromised_tokens - max(self._ratio.current * growth, len(running.decoding))
