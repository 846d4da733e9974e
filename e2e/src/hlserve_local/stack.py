"""The one-machine stack: manifests in, engines and a router out, and reload while it runs.

What `hlserve up` does, as an async context manager for tests and the demo::

    async with Stack(Path("examples/quickstart")) as stack:
        client = AsyncOpenAI(base_url=f"{stack.base_url}/v1", api_key=stack.keys["chat-app"])
"""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx

from hlserve_local.documents import make_documents
from hlserve_local.engine_option import check_engine_pools
from hlserve_local.engines import Engine
from hlserve_local.events import EventKind, EventLog
from hlserve_local.fleet import Fleet
from hlserve_local.foreign import foreign_note
from hlserve_local.planning import Plan, SimulationOptions, make_plan
from hlserve_local.problems import Problem
from hlserve_local.processes import Guard, StartError
from hlserve_local.router_process import RouterProcess, check_port_free
from hlserve_local.runtime_dir import make_runtime_dir
from hlserve_local.snippets import Access
from hlserve_local.validation import Validation, outlives_process, validate
from hlserve_local.watch import changes, fingerprint

HEADER_OVERRIDES: Final = {"SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES": "1"}
CLOSE_GRACE_SECONDS: Final = 3.0


class ManifestsRefusedError(ValueError):
    """The manifests have errors, so nothing was started or changed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class Stack:
    """Engines and a router for one folder of manifests.

    `engines`: pools served by others' engines, pool name → base URLs. `port` 0 takes a free one. `watch`: reload when a
    manifest changes. `limits_store`: where limits and budgets are kept; unset: a file in the stack's folder, for as long
    as that is there. Entering raises ManifestsRefusedError, FolderMissingError, EngineOptionError, PortInUseError or
    StartError, each with a sentence for the user, and then nothing is left running.
    """

    def __init__(
        self,
        manifests: Path,
        engines: Mapping[str, Sequence[str]] | None = None,
        *,
        port: int = 0,
        workers: int = 1,
        simulation: SimulationOptions | None = None,
        watch: bool = False,
        limits_store: str | None = None,
    ) -> None:
        self._manifests = manifests
        self._foreign = {pool: tuple(urls) for pool, urls in (engines or {}).items()}
        self._port = port
        self._workers = workers
        self._simulation = simulation or SimulationOptions()
        self._watch = watch
        self._limits_store = limits_store
        self._generated: dict[tuple[str, str], str] = {}
        self._changing = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._exit = AsyncExitStack()
        self._parts: list[Fleet | RouterProcess] = []
        self._plan: Plan
        self._guard: Guard
        self._fleet: Fleet
        self._router: RouterProcess
        self._directory: Path
        self._client: httpx.AsyncClient
        self.events = EventLog()

    @property
    def durable(self) -> bool:
        """Whether budgets can work here."""
        return outlives_process(self._limits_store)

    @property
    def base_url(self) -> str:
        """Where clients send requests, without `/v1`."""
        return self._router.base_url

    @property
    def admin_url(self) -> str:
        """The router's admin port: `/metrics`, `/v1/pools`, `/v1/classes`, `/v1/report`."""
        return self._router.admin_url

    @property
    def admin_token(self) -> str:
        """Bearer token of everything on the admin port but `/metrics`."""
        return self._router.admin_token

    @property
    def router_pid(self) -> int | None:
        """Process id of the router."""
        return self._router.pid

    @property
    def guard_pid(self) -> int:
        """Process id of the guard that cleans up if this process is killed."""
        return self._guard.pid

    @property
    def directory(self) -> Path:
        """The private folder with routing table, keyrings and logs; gone after the stack ended."""
        return self._directory

    @property
    def plan(self) -> Plan:
        """What is served now, and with which derived settings."""
        return self._plan

    @property
    def keys(self) -> dict[str, str]:
        """ClientKey name → plain key. Keys given only as digests are not here."""
        return {access.client: access.key for access in self._plan.accesses}

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Every plain key with what it opens."""
        return self._plan.accesses

    @property
    def engines(self) -> dict[str, list[tuple[str, int | None]]]:
        """Pool name → (base URL, process id) of each replica; others' engines have no process id."""
        found: dict[str, list[tuple[str, int | None]]] = {pool: [] for pool in self._plan.pool_names}
        for pool, urls in self._plan.foreign.items():
            found[pool] = [(url, None) for url in urls]
        for engine in self.replicas:
            found.setdefault(engine.spec.pool, []).append((engine.url, engine.pid))
        return found

    @property
    def replicas(self) -> Sequence[Engine]:
        """The simulated engines with their states."""
        return self._fleet.engines

    async def __aenter__(self) -> Self:
        known = fingerprint(self._manifests)
        plan = self._make_plan(validate(self._manifests, durable_store=self.durable))
        check_port_free(self._port)
        try:
            await self._start(plan)
            if self._watch:
                self._exit.push_async_callback(_cancel, asyncio.create_task(self._follow(known)))
        except BaseException:
            await self._exit.aclose()
            raise
        self.events.add(EventKind.STARTED, f"serving at {self.base_url}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.aclose()

    def kill(self) -> None:
        """SIGKILL every child at once; the context still has to be left."""
        for part in self._parts:
            part.kill()

    async def reload(self) -> Plan:
        """Read the folder again and move to it without dropping a stream.

        Raises ManifestsRefusedError, FolderMissingError, EngineOptionError or StartError, and then serves on as before.
        """
        async with self._changing:
            plan = self._make_plan(await asyncio.to_thread(validate, self._manifests, durable_store=self.durable))
            await self._fleet.add_missing(plan.wanted)
            known = self._plan.warnings
            self._plan = plan
            self._fleet.drain_surplus(plan.wanted)
            await self._write()
            self.events.add(EventKind.RELOADED, plan.summary)
            for problem in plan.warnings:
                if problem not in known:
                    self.events.add(EventKind.NOTE, str(problem))
            return plan

    def _make_plan(self, validation: Validation) -> Plan:
        if not validation.usable:
            raise ManifestsRefusedError(validation.problems)
        check_engine_pools(self._foreign, (placed.value.name for placed in validation.objects.pools))
        plan = make_plan(validation, self._foreign, self._simulation, self._generated)
        self._generated.update(plan.generated_keys)
        return plan

    async def _start(self, plan: Plan) -> None:
        self._plan = plan
        self._directory = make_runtime_dir()
        self._exit.callback(shutil.rmtree, self._directory, ignore_errors=True)
        self._guard = Guard(self._directory)
        self._exit.callback(self._guard.close)
        self._client = await self._exit.enter_async_context(
            httpx.AsyncClient(timeout=httpx.Timeout(2.0), trust_env=False)
        )
        self._fleet = Fleet(
            guard=self._guard,
            logs=self._directory,
            events=self.events,
            client=self._client,
            on_change=self._rewrite,
            environment=HEADER_OVERRIDES,
        )
        self._parts.append(self._fleet)
        self._exit.push_async_callback(self._fleet.close, CLOSE_GRACE_SECONDS)
        await self._fleet.add_missing(plan.wanted)
        await self._look_at_foreign()
        table, keyrings = await self._write()
        self._router = RouterProcess(
            guard=self._guard, directory=self._directory, events=self.events, port=self._port, workers=self._workers,
            limits_store=self._limits_store or f"sqlite:{self._directory / 'limits.db'}",
        )  # fmt: skip
        self._parts.append(self._router)
        self._exit.push_async_callback(self._router.close, CLOSE_GRACE_SECONDS)
        await self._router.start(table, keyrings, self._client)

    async def _look_at_foreign(self) -> None:
        for pool in self._plan.pools:
            if (note := await foreign_note(pool, self._client)) is not None:
                self.events.add(EventKind.NOTE, note)

    async def _rewrite(self) -> None:
        await self._write()

    async def _write(self) -> tuple[Path, tuple[Path, ...]]:
        async with self._writing:
            documents = make_documents(self._plan, self._fleet.engines)
            return await asyncio.to_thread(documents.write, self._directory)

    async def _follow(self, known: str) -> None:
        async for _ in changes(self._manifests, known):
            try:
                await self.reload()
            except (ValueError, OSError, StartError) as failure:
                self.events.add(EventKind.RELOAD_REFUSED, f"serving on as before, because:\n{failure}")


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
