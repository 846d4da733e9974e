"""What an operator may ask of the engine at any moment. Read only, and computed only when asked."""

from dataclasses import dataclass

from hlserve_capacity.engine.scheduler import Scheduler
from hlserve_capacity.engine.types import EngineTotals
from hlserve_capacity.engine.waiting import Admission, WaitReason
from hlserve_sim.driver import Driver, Stage


@dataclass(frozen=True, slots=True)
class Waiting:
    """The queue and what keeps its first request out of the batch. Headroom and need are requests for `slots`, else tokens."""

    requests: int
    reason: WaitReason
    headroom: int = 0
    need: int = 0

    def describe(self) -> dict[str, object] | None:
        """As JSON builtins, for `/server_info`; None: nothing waits."""
        if not self.requests:
            return None
        unit = "requests" if self.reason is WaitReason.SLOTS else "tokens"
        return {
            "requests": self.requests,
            "reason": self.reason.value,
            "headroom": self.headroom,
            "need": self.need,
            "message": f"queued: {self.reason.value}: headroom {self.headroom} {unit}, need {self.need}",
        }


class EngineView:
    """One engine under its driver."""

    def __init__(self, engine: Scheduler, driver: Driver) -> None:
        self._engine, self._driver = engine, driver

    def totals(self) -> EngineTotals:
        """Counters since start."""
        return self._engine.totals

    def stage(self) -> Stage:
        """What the engine does now."""
        return self._driver.stage

    def waiting(self) -> Waiting:
        """Who waits, those included that have arrived and that the engine has not looked at yet, and for what."""
        requests = self._driver.gauges().queued
        wait = self._engine.waits_for(self._driver.clock.now_us()) if requests else None
        if wait is None:
            return Waiting(requests, WaitReason.NONE)
        return Waiting(requests, wait.reason, wait.headroom, wait.need)

    def admission(self) -> Admission:
        """KV that admission has given away, and its bound."""
        return self._engine.admission()
