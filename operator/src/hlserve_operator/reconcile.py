"""One key from a look at the cluster to the cluster as it should be: observe, plan, execute. Run twice, the second run writes nothing."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from hlserve_api.conditions import ConditionReason
from hlserve_api.v1alpha1 import ServingPool
from hlserve_operator.access.plan import plan_access
from hlserve_operator.board import Board
from hlserve_operator.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    NotLeaderError,
    ThrottledError,
    UnavailableError,
)
from hlserve_operator.events import EventRecorder
from hlserve_operator.execute import Executor, Outcome
from hlserve_operator.keys import ACCESS, POOL_KIND, Key
from hlserve_operator.metrics import Metrics
from hlserve_operator.observe import Observer, UnreadableError
from hlserve_operator.pools.conditions import denied_message
from hlserve_operator.pools.plan_pool import plan_pool
from hlserve_operator.refs import Ref
from hlserve_operator.resources import CUSTOM_API
from hlserve_operator.state import Release
from hlserve_operator.work import WorkQueue

_log = logging.getLogger("hlserve_operator.reconcile")
URGENT_SECONDS: Final = 2.0
"""A plan that wants another look this soon waits for pods or routers."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True, eq=False)
class Reconciler:
    """Works off the queue."""

    queue: WorkQueue
    observer: Observer
    executor: Executor
    events: EventRecorder
    board: Board
    metrics: Metrics
    release: Release
    clock: Callable[[], datetime] = _utc_now
    pools: dict[str, ServingPool] = field(default_factory=dict)
    """As last seen, for metrics and scale signals."""

    async def work(self) -> None:
        """One worker: takes keys until it is cancelled."""
        while True:
            key = await self.queue.get()
            await self.once(key)

    async def once(self, key: Key) -> None:
        """Reconciles a key that was taken from the queue, and says to the queue when it is due again."""
        began = time.perf_counter()
        try:
            outcome, again_after_seconds = await self.reconcile(key)
            error: Exception | None = outcome.errors[0] if outcome.errors else None
        except asyncio.CancelledError:
            self.queue.failed(key)
            raise
        except (ApiError, NotLeaderError, UnreadableError) as raised:
            outcome, again_after_seconds, error = Outcome(), None, raised
        except Exception as raised:
            # A mistake of ours about one object must not stop the work on the others.
            _log.exception("reconcile failed", extra={"fields": {"key": str(key)}})
            outcome, again_after_seconds, error = Outcome(), None, raised
        if error is None:
            self.queue.done(key, again_after_seconds=again_after_seconds)
            self.observer.denied.pop(key, None)
            word = "changed" if outcome.writes else "unchanged"
        else:
            word = await self._failed(key, error)
        self.metrics.count("hlserve_operator_reconciles_total", key.kind, word)
        self.metrics.observe("hlserve_operator_reconcile_seconds", time.perf_counter() - began, key.kind)

    async def reconcile(self, key: Key) -> tuple[Outcome, float | None]:
        """Observes, plans and executes once; the seconds after which to look again. Raises ApiError, UnreadableError, NotLeaderError."""
        if key == ACCESS:
            return await self._access()
        return await self._pool(key.name)

    async def _pool(self, name: str) -> tuple[Outcome, float | None]:
        snapshot = await self.observer.pool(name)
        if snapshot is None or snapshot.observed.pool.metadata.deletion_timestamp is not None:
            # Its children go with it: they are the garbage collector's.
            self.pools.pop(name, None)
            return Outcome(), None
        self.pools[name] = snapshot.observed.pool
        actions = plan_pool(snapshot.observed, self.release, self.clock())
        if actions.requeue_after_seconds is not None and actions.requeue_after_seconds <= URGENT_SECONDS:
            self.board.urge()
        return await self.executor.pool(snapshot, actions), actions.requeue_after_seconds

    async def _access(self) -> tuple[Outcome, float | None]:
        snapshot = await self.observer.access()
        # Thousands of keys take a second: the Lease and the watches must not wait for it.
        actions = await asyncio.to_thread(plan_access, snapshot.observed, self.release, self.clock())
        if actions.requeue_after_seconds is not None and actions.requeue_after_seconds <= URGENT_SECONDS:
            self.board.urge()
        outcome = await self.executor.access(snapshot, actions)
        return outcome, 0.0 if outcome.left_over else actions.requeue_after_seconds

    async def _failed(self, key: Key, error: Exception) -> str:
        """Has the key tried again, tells whoever can help, and says how it ended."""
        at_least = error.retry_after_seconds if isinstance(error, ThrottledError) else 0.0
        pause = self.queue.failed(key, at_least_seconds=at_least)
        passing = isinstance(error, ThrottledError | UnavailableError | ConflictError | NotLeaderError)
        if isinstance(error, ForbiddenError):
            self.observer.denied[key] = str(error)
            await self._tell_denied(key, error)
        _log.log(
            logging.INFO if passing else logging.WARNING,
            "reconcile is tried again",
            extra={
                "fields": {"key": str(key), "in_seconds": round(pause, 2), "error": str(error) or type(error).__name__}
            },
        )
        return "retry" if passing else "failed"

    async def _tell_denied(self, key: Key, error: ForbiddenError) -> None:
        pool = self.pools.get(key.name) if key.kind == POOL_KIND else None
        if pool is not None:
            ref = Ref(CUSTOM_API, POOL_KIND, pool.name)
            uid = pool.metadata.uid
            await self.events.record(
                ref, uid, ConditionReason.PERMISSION_DENIED, denied_message(str(error)), warning=True
            )

    def resync(self, keys: Iterable[Key]) -> None:
        """Makes keys due without cause."""
        for key in keys:
            self.queue.add(key)
