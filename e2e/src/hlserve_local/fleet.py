"""All simulated engines of a stack: start what is missing, drain what is too many, restart what died."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from hlserve_local.engines import Engine, EngineSpec, EngineState
from hlserve_local.events import EventKind, EventLog
from hlserve_local.processes import Guard, StartError, describe_exit

RESTART_BACKOFF_SECONDS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
STABLE_SECONDS: Final = 60.0
"""An engine that ran this long starts again with the shortest pause."""
IDLE_POLL_SECONDS: Final = 0.2
IDLE_POLLS_NEEDED: Final = 5
"""A router needs a moment to see the new table, so one idle look is not enough."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many replicas of which flags a pool shall have."""

    spec: EngineSpec
    replicas: int


class Fleet:
    """The engines. `on_change` is awaited whenever the set of usable addresses changed."""

    def __init__(
        self,
        *,
        guard: Guard,
        logs: Path,
        events: EventLog,
        client: httpx.AsyncClient,
        on_change: Callable[[], Awaitable[None]],
        environment: Mapping[str, str],
    ) -> None:
        self._guard = guard
        self._logs = logs
        self._events = events
        self._client = client
        self._on_change = on_change
        self._environment = environment
        self._engines: list[Engine] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def engines(self) -> Sequence[Engine]:
        """Every engine that is not stopped."""
        return tuple(engine for engine in self._engines if engine.state is not EngineState.STOPPED)

    async def add_missing(self, wanted: Iterable[Wanted]) -> None:
        """Start the engines that `wanted` has and we have not. Raises StartError; then none of the new ones is left."""
        fresh = [engine for item in wanted for engine in self._missing(item)]
        try:
            results = await asyncio.gather(
                *(engine.start(self._guard, self._logs, self._environment) for engine in fresh), return_exceptions=True
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result
        except BaseException:
            # Also when we are cancelled: nobody else knows of these processes yet.
            await asyncio.gather(*(engine.stop() for engine in fresh))
            raise
        for engine in fresh:
            self._engines.append(engine)
            self._spawn(self._keep_alive(engine))

    def drain_surplus(self, wanted: Iterable[Wanted]) -> None:
        """Mark the engines that `wanted` has not as draining; each is stopped once idle, or after its grace period."""
        keep: set[str] = set()
        for item in wanted:
            keep.update(engine.name for engine in self._matching(item)[: item.replicas])
        for engine in self.engines:
            if engine.name not in keep and engine.state is not EngineState.DRAINING:
                engine.state = EngineState.DRAINING
                self._events.add(EventKind.ENGINE_DRAINING, f"{engine.name} takes no new requests")
                self._spawn(self._drain(engine))

    async def close(self, grace_seconds: float) -> None:
        """Stop every engine and wait for it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(engine.stop(grace_seconds) for engine in self._engines))

    def kill(self) -> None:
        """SIGKILL every engine at once."""
        for engine in self._engines:
            engine.state = EngineState.STOPPED
            if engine.child is not None:
                engine.child.kill()

    def _matching(self, item: Wanted) -> list[Engine]:
        return [engine for engine in self.engines if engine.spec == item.spec and engine.wanted]

    def _missing(self, item: Wanted) -> list[Engine]:
        taken = {engine.ordinal for engine in self.engines if engine.spec.pool == item.spec.pool}
        missing = item.replicas - len(self._matching(item))
        free = (ordinal for ordinal in range(len(taken) + max(missing, 0)) if ordinal not in taken)
        return [Engine(item.spec, ordinal) for ordinal, _ in zip(free, range(missing), strict=False)]

    async def _keep_alive(self, engine: Engine) -> None:
        clock = asyncio.get_running_loop().time
        while engine.child is not None:
            since = clock()
            status = await engine.child.wait()
            if not engine.wanted:
                return
            if clock() - since > STABLE_SECONDS:
                engine.failures_in_row = 0
            engine.state = EngineState.RESTARTING
            self._events.add(
                EventKind.ENGINE_LOST,
                f"{engine.name} {describe_exit(status)}; it is started again in {_pause_seconds(engine):g} s",
            )
            await self._on_change()
            if not await self._restart(engine):
                return
            self._events.add(EventKind.ENGINE_READY, f"{engine.name} is back at {engine.url}")
            await self._on_change()

    async def _restart(self, engine: Engine) -> bool:
        """Whether the engine runs again; False: it is no longer wanted."""
        while engine.wanted:
            pause = _pause_seconds(engine)
            engine.failures_in_row += 1
            await asyncio.sleep(pause)
            try:
                await engine.start(self._guard, self._logs, self._environment)
            except StartError as failure:
                if engine.wanted:
                    self._events.add(EventKind.ENGINE_LOST, str(failure))
                continue
            return True
        return False

    async def _drain(self, engine: Engine) -> None:
        idle_polls = 0
        deadline = asyncio.get_running_loop().time() + engine.spec.grace_seconds
        while idle_polls < IDLE_POLLS_NEEDED and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(IDLE_POLL_SECONDS)
            gauges = await engine.gauges(self._client)
            idle_polls = idle_polls + 1 if gauges is None or gauges.idle else 0
        await engine.stop()
        self._engines.remove(engine)
        self._events.add(EventKind.ENGINE_STOPPED, f"{engine.name} is gone")
        await self._on_change()

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _pause_seconds(engine: Engine) -> float:
    return RESTART_BACKOFF_SECONDS[min(engine.failures_in_row, len(RESTART_BACKOFF_SECONDS) - 1)]
