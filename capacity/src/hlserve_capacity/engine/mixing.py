"""Two-stage mixing: when the engine stops prefilling and only decodes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPressure:
    """KV state that the rule looks at. Tokens."""

    pool: int
    resident: int
    """KV present for running requests."""
    reserved: int
    """KV present or promised for running requests."""
    held: int
    """KV kept for idle sessions: present, and not to be evicted for a prefill."""
    pending: int
    """Prompt tokens to be computed, of running and waiting requests."""


class StageGate:
    """Gated rule: resident KV counts, admission stops with prefill, and the stage is left below a lower mark.

    Counting what is only reserved would hold "full" true as long as requests wait, and prefill would starve until the batch is
    nearly empty. Without the lower mark the engine would flip every few steps. A stage lasts at most `longest` steps, so that long
    replies cannot keep the queue waiting.
    """

    def __init__(self, enter: float, leave: float, longest: int = 2_000) -> None:
        if not 0 < leave <= enter <= 1:
            raise ValueError(f"two-stage marks must satisfy 0 < leave <= enter <= 1, got leave {leave}, enter {enter}")
        if longest < 1:
            raise ValueError(f"a decode-only stage lasts at least one step, got {longest}")
        self._enter = enter
        self._leave = leave
        self._longest = longest
        self._steps = 0
        self.decode_only = False
        self.flips = 0

    def update(self, pressure: KvPressure) -> bool:
        """Whether this step only decodes."""
        mark = self._leave if self.decode_only else self._enter
        room = pressure.pool - pressure.held - pressure.resident
        full = pressure.resident > mark * pressure.pool and pressure.pending > room
        self._steps = self._steps + 1 if full and self.decode_only else 1
        self._set(full and self._steps <= self._longest)
        return self.decode_only

    def idle(self) -> None:
        """Nothing decodes: the stage is over, or no one would ever prefill."""
        self._set(False)

    def _set(self, decode_only: bool) -> None:
        self.flips += decode_only != self.decode_only
        self.decode_only = decode_only


class NaiveStageGate(StageGate):
    """A literal reading of the two-stage rule: reserved KV counts, admission goes on, and there is one mark.

    Kept to show what it costs.
    """

    def update(self, pressure: KvPressure) -> bool:
        room = pressure.pool - pressure.held - pressure.reserved
        self._set(pressure.reserved > self._enter * pressure.pool and pressure.pending > room)
        return self.decode_only
