"""One simulated engine: its flags, its process, its state."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import httpx

from hlserve_local.gauges import EngineGauges, read_engine_gauges
from hlserve_local.processes import Child, Guard, StartError, start_child

READY_MARKER: Final = "hlserve-sim listening on"
START_TIMEOUT_SECONDS: Final = 60.0
STOP_GRACE_SECONDS: Final = 3.0


class EngineState(StrEnum):
    """Where an engine is in its life."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """All that makes two engines interchangeable."""

    pool: str
    arguments: tuple[str, ...]
    """Of `python -m hlserve_sim`, but for the port and the seed."""
    grace_seconds: float
    """Longest time that a drain waits for running requests."""
    seed: int = 0
    """Of the first replica; each further one has the next."""

    def command(self, ordinal: int) -> tuple[str, ...]:
        """The command line of one replica, on a free port of the loopback address."""
        return (
            sys.executable, "-m", "hlserve_sim", "--host", "127.0.0.1", "--port", "0", "--seed", str(self.seed + ordinal), *self.arguments,
        )  # fmt: skip


@dataclass(slots=True)
class Engine:
    """One replica. `id` is new for each incarnation, as a pod's UID is."""

    spec: EngineSpec
    ordinal: int
    incarnation: int = 0
    state: EngineState = EngineState.STARTING
    child: Child | None = None
    url: str = ""
    failures_in_row: int = 0
    """Starts and lives that ended early, since it last served for a while: sets the restart's back-off."""

    @property
    def name(self) -> str:
        """`agents-1`: stays the same when the engine is restarted."""
        return f"{self.spec.pool}-{self.ordinal}"

    @property
    def id(self) -> str:
        """Endpoint id in the routing table."""
        return f"{self.name}.{self.incarnation}"

    @property
    def pid(self) -> int | None:
        """Process id, while there is one."""
        return None if self.child is None else self.child.pid

    async def start(self, guard: Guard, logs: Path, environment: Mapping[str, str]) -> None:
        """Start a process and wait until it listens. Raises StartError, with nothing left running."""
        self.incarnation += 1
        child = await start_child(
            self.name,
            self.spec.command(self.ordinal),
            guard=guard,
            log=logs / f"engine-{self.name}.log",
            environment=environment,
        )
        self.child = child
        try:
            if not self.wanted:
                raise StartError(f"{self.name} is not wanted any more.")
            await child.read_ready_line(READY_MARKER, START_TIMEOUT_SECONDS)
        except StartError:
            await child.stop(STOP_GRACE_SECONDS)
            raise
        self.url = child.urls[0]
        if self.wanted:
            self.state = EngineState.READY

    @property
    def wanted(self) -> bool:
        """Whether it shall serve; False: it drains or was stopped."""
        return self.state not in (EngineState.DRAINING, EngineState.STOPPED)

    async def gauges(self, client: httpx.AsyncClient) -> EngineGauges | None:
        """Its load as its own `/metrics` tells; None: it does not answer."""
        return await read_engine_gauges(client, self.url) if self.url else None

    async def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """End the process, if there is one."""
        self.state = EngineState.STOPPED
        if self.child is not None:
            await self.child.stop(grace_seconds)
