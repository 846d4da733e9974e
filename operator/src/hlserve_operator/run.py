"""The operator as a process: its port at once, then the Lease, then everything else for as long as the Lease is held.

A leader that loses the Lease stops all work at once and stands by again. If kopf, a worker or a watch ends of itself, the process
ends: the standby takes over within seconds, and the kubelet starts a new one.
"""

import asyncio
import logging
import math
import os
import signal
import socket
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from secrets import token_hex
from typing import Any, Final

from aiohttp import web
from kubernetes.aio import client as kubernetes_client

from hlserve_api.v1alpha1.meta import ConditionStatus
from hlserve_operator import kopf_source
from hlserve_operator.api import Api
from hlserve_operator.board import Board
from hlserve_operator.connect import connect, kopf_credentials, name_user
from hlserve_operator.copies import Copies, copies
from hlserve_operator.drift import Applied
from hlserve_operator.errors import ApiError, OperatorError
from hlserve_operator.events import EventLimiter, EventRecorder
from hlserve_operator.execute import Executor
from hlserve_operator.health import Port, serve
from hlserve_operator.keys import ACCESS, POOL_KIND, pool_key
from hlserve_operator.lease import LeaseGuard, LeaseTimes
from hlserve_operator.metrics import Metrics, Sample
from hlserve_operator.observe import Interest, Observer
from hlserve_operator.reconcile import Reconciler
from hlserve_operator.reports import Reports
from hlserve_operator.resources import CUSTOM_API
from hlserve_operator.settings import Settings
from hlserve_operator.signals import wanted_replicas_by_load
from hlserve_operator.state import Release
from hlserve_operator.watching import Rhythm
from hlserve_operator.work import WorkQueue

_log = logging.getLogger("hlserve_operator.run")
DISTRIBUTION: Final = "hlserve-operator"
FIRST_RESYNC_SECONDS: Final = 60.0
"""After the start: by then kopf has told of everything that is there, unless it is blind."""
STALE_WATCHES: Final = 2.0
"""The process counts as dead when a watch is silent for this many times as long as it may be."""


class EndedError(OperatorError):
    """A part that runs for ever ended: the process must end."""


@dataclass(slots=True, eq=False)
class Leading:
    """Everything that exists only while this process leads."""

    queue: WorkQueue
    copies: Copies
    reconciler: Reconciler
    board: Board
    sight: kopf_source.Sight = field(default_factory=kopf_source.Sight)


@dataclass(slots=True, eq=False)
class Operator:
    """One operator process."""

    settings: Settings
    api: Api
    guard: LeaseGuard
    release: Release
    metrics: Metrics = field(init=False)
    applied: Applied = field(default_factory=Applied)
    limiter: EventLimiter = field(default_factory=EventLimiter)
    leading: Leading | None = None

    def __post_init__(self) -> None:
        self.metrics = Metrics(self._gauges)
        self.api.before_write = self.guard.check
        self.api.on_error = lambda status: self.metrics.count("hlserve_operator_api_errors_total", status)
        self.api.on_write = lambda: self.metrics.count("hlserve_operator_api_writes_total")

    async def run(self, stop: asyncio.Event) -> None:
        """Leads whenever it can until `stop` is set. Raises EndedError if a part ended of itself."""
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                acquired = asyncio.create_task(self.guard.acquire())
                await _first(acquired, stopped)
                if not stop.is_set():
                    await self._lead(stop)
                await _cancelled([acquired])
        finally:
            await _cancelled([stopped])
            await self.guard.release()

    async def _lead(self, stop: asyncio.Event) -> None:
        """Works until the Lease is lost or `stop` is set. Raises EndedError."""
        reports = Reports(token=self._token, timeout_seconds=min(2.0, self.settings.call_seconds))
        leading = self.leading = self._leading(reports)
        held = asyncio.create_task(self.guard.hold())
        stopped = asyncio.create_task(stop.wait())
        parts = [asyncio.create_task(part, name=name) for name, part in self._parts(leading).items()]
        try:
            await _first(held, stopped, *parts)
            if not held.done() and not stop.is_set():
                raise _ended(parts)
        finally:
            self.leading = None
            leading.queue.close()
            await _cancelled([held, stopped, *parts])
            await reports.close()

    def _leading(self, reports: Reports) -> Leading:
        settings, queue, interest = self.settings, WorkQueue(), Interest()
        rhythm = Rhythm(relist_seconds=settings.relist_seconds, silence_seconds=settings.watch_silence_seconds)
        urged = asyncio.Event()
        kept = copies(self.api, self.release.name, queue.add, interest.interested, rhythm, urged.set)
        board = Board(
            kept,
            reports,
            queue.add,
            settings.router_admin_port,
            settings.report_seconds,
            settings.report_urgent_seconds,
            urged=urged,
        )
        events = EventRecorder(self.api, self.guard.identity, self.limiter)
        observer = Observer(self.api, kept, board, reports, interest, self.release)
        executor = Executor(self.api, self.applied, events, reports, self.release)
        reconciler = Reconciler(queue, observer, executor, events, board, self.metrics, self.release)
        return Leading(queue, kept, reconciler, board)

    def _parts(self, leading: Leading) -> Mapping[str, Coroutine[Any, Any, None]]:
        async def log_in() -> Any:
            return await kopf_credentials(self.api.client.configuration)

        workers = {f"worker {n}": self._work(leading) for n in range(self.settings.workers)}
        return {
            "watches": leading.copies.run(),
            "reports": self._ask(leading),
            "resync": self._resync(leading),
            "kopf": kopf_source.run(self.api.namespace, leading.queue.add, log_in, leading.sight),
            **workers,
        }

    async def _work(self, leading: Leading) -> None:
        # A plan made from half of the objects would take the other half away.
        await leading.copies.synced()
        await leading.reconciler.work()

    async def _ask(self, leading: Leading) -> None:
        await leading.copies.synced()
        await leading.board.run()

    async def _resync(self, leading: Leading) -> None:
        """Every object from time to time, also one whose event got lost; and those that are gone. Raises EndedError if kopf is blind."""
        failures, first = 0, True
        while True:
            try:
                await leading.reconciler.observer.look_at_schemas()
                pools = (await self.api.list(CUSTOM_API, POOL_KIND)).items
                classes = (await self.api.list(CUSTOM_API, "WorkloadClass")).items
                if leading.sight.is_blind(item["metadata"]["uid"] for item in (*pools, *classes)):
                    raise EndedError("kopf tells of nothing, although there is something.")
                for name in {item["metadata"]["name"] for item in pools} | set(leading.reconciler.pools):
                    leading.queue.add(pool_key(name))
                failures = 0
            except ApiError as error:
                failures += 1
                _log.info("resync is tried again", extra={"fields": {"error": str(error)}})
            leading.queue.add(ACCESS)
            pause = min(self.settings.resync_seconds, FIRST_RESYNC_SECONDS if first else math.inf)
            first = False
            await asyncio.sleep(min(pause, 2.0 ** min(failures, 10)) if failures else pause)

    def _token(self) -> str | None:
        path = self.settings.admin_token_file
        try:
            return None if path is None else path.read_text(encoding="utf-8").strip()
        except OSError as error:
            _log.warning("the admin token cannot be read", extra={"fields": {"error": error.strerror or str(error)}})
            return None

    def alive(self) -> str:
        """Why the process counts as dead; empty: it does not. Only the leader watches anything."""
        limit = self.settings.watch_silence_seconds * STALE_WATCHES
        for reflector in self.leading.copies.all() if self.leading is not None else ():
            # One that goes on trying while the API server is away is alive: nobody else could do better.
            if min(reflector.silent_seconds(), reflector.tried_seconds()) > limit:
                return f"the watch of {reflector.watched.kind}s is silent"
        return ""

    def ready(self) -> str:
        """Why it is not ready; empty: it leads, or stands by."""
        return ""

    def signals(self, pool: str) -> dict[str, float] | None:
        """A pool's scale signals; None if there is none of the name, or another operator leads."""
        if self.leading is None:
            return None
        known = self.leading.reconciler.pools.get(pool)
        if known is None:
            return None
        return {"wantedReplicas": wanted_replicas_by_load(known, self.leading.board.reports)}

    def _gauges(self) -> Iterable[Sample]:
        yield "hlserve_operator_is_leader", (), float(self.guard.leads)
        leading = self.leading
        if leading is None:
            return
        yield "hlserve_operator_queue_depth", (), float(len(leading.queue))
        for reflector in leading.copies.all():
            if not reflector.absent:
                yield "hlserve_operator_watch_age_seconds", (reflector.watched.kind,), reflector.silent_seconds()
        for name, pool in sorted(leading.reconciler.pools.items()):
            status = pool.status
            counts = {
                "desired": pool.spec.replicas, "ready": status.ready_replicas,
                "updated": status.updated_replicas, "draining": status.draining_replicas,
            }  # fmt: skip
            for state, count in counts.items():
                yield "hlserve_operator_pool_replicas", (name, state), float(count or 0)
            wanted = wanted_replicas_by_load(pool, leading.board.reports)
            yield "hlserve_operator_pool_wanted_replicas", (name,), wanted
            for condition in status.conditions:
                value = {ConditionStatus.TRUE: 1.0, ConditionStatus.FALSE: 0.0}.get(condition.status, -1.0)
                yield "hlserve_operator_pool_condition", (name, condition.type), value
            slo = pool.spec.slo
            if slo is not None:
                targets = {"ttft": slo.ttft_milliseconds, "tpot": slo.tpot_milliseconds}
                for target, milliseconds in targets.items():
                    if milliseconds is not None:
                        yield "hlserve_operator_pool_slo_target_seconds", (name, target), milliseconds / 1000


def operator_of(settings: Settings, client: kubernetes_client.ApiClient) -> Operator:
    """An operator on this API server. Raises StartError if no namespace is known."""
    namespace = settings.in_namespace()
    pod = settings.identity or os.environ.get("HOSTNAME") or socket.gethostname()
    times = LeaseTimes(
        duration_seconds=settings.lease_seconds,
        renew_deadline_seconds=settings.lease_seconds * 2 / 3,
        retry_seconds=settings.lease_seconds * 2 / 15,
    )
    # The guard's own writes are what it decides by, so they pass no guard.
    lease_api = Api(client, namespace, min(settings.call_seconds, settings.lease_seconds / 3))
    guard = LeaseGuard(lease_api, f"{settings.release}/{pod}_{token_hex(4)}", times)
    release = Release(
        name=settings.release,
        default_image=settings.engine_image,
        monitoring_namespace_labels=settings.monitoring_labels,
        operator_port=settings.port,
        prometheus_address=settings.prometheus_address,
        keyring_shards=settings.keyring_shards,
    )
    return Operator(settings, Api(client, namespace, settings.call_seconds), guard, release)


@asynccontextmanager
async def started(settings: Settings) -> AsyncIterator[tuple[Operator, int]]:
    """An operator that is connected and answers on its port, whose number is the second value. Raises StartError."""
    name_user()
    client = await connect(settings, version(DISTRIBUTION))
    runner: web.AppRunner | None = None
    try:
        operator = operator_of(settings, client)
        port = Port(operator.alive, operator.ready, operator.metrics.text, operator.signals, settings.admin_token_file)
        runner, number = await serve(port, settings.host, settings.port)
        yield operator, number
    finally:
        if runner is not None:
            await runner.cleanup()
        await client.rest_client.close()


async def main(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT. Raises StartError and EndedError."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with started(settings) as (operator, port):
        _log.info(
            "started",
            extra={"fields": {"port": port, "namespace": operator.api.namespace, "release": settings.release}},
        )
        await operator.run(stop)


async def _first(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks and waits for their end, whatever it is."""
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def _ended(parts: Iterable[asyncio.Task[None]]) -> EndedError:
    for task in parts:
        if task.done():
            error = None if task.cancelled() else task.exception()
            ended = EndedError(f"{task.get_name()} ended ({type(error).__name__ if error else 'of itself'}).")
            ended.__cause__ = error
            return ended
    return EndedError("A part ended.")
