"""Whether a waiting request may start: its session's admission, its cached prefix, and room for its KV."""

from hlserve_capacity.engine.admission import SessionLedger
from hlserve_capacity.engine.pool import KvPool
from hlserve_capacity.engine.retraction import CLIP_NEW_TOKENS, NewTokenRatio
from hlserve_capacity.engine.running import RunningSet
from hlserve_capacity.engine.sequence import Sequence
from hlserve_capacity.engine.types import EngineConfig


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
