"""Several processes on one port: starts them, restarts one that dies, and answers the admin port for all of them.

Each worker binds the client port for itself (SO_REUSEPORT), so the kernel spreads connections, and enforces its part of
every limit and capacity. Counters of a worker that died stay in the sums: they never go down.
"""

import asyncio
import logging
import os
import re
import signal
import socket
import sys
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from hlserve_router.server import AdminServer, url_of
from hlserve_router.settings import Settings

WORKER_VARIABLE: Final = "HLSERVE_ROUTER_IS_WORKER"
RESTART_SECONDS: Final = 1.0
_LISTENING: Final = re.compile(r"admin (http://\S+)")
_SAME_EVERYWHERE: Final = frozenset(
    {
        "hlserve_router_endpoint_up", "hlserve_router_endpoint_breaker", "hlserve_router_table_info", "hlserve_router_keys",
        "hlserve_router_table_applied_timestamp_seconds", "hlserve_router_pool_endpoints", "hlserve_router_zombie_requests",
    }
)  # fmt: skip
"""Gauges that every worker sees alike: the largest is shown. Everything else is summed."""
_SUMMED_KEYS: Final = frozenset(
    {"inFlight", "inFlightTokens", "sessions", "queued", "queuedBytes", "inFlightByClass", "draining", "backlogTokens"}
)
_log = logging.getLogger("hlserve_router.supervisor")


@dataclass(slots=True, eq=False)
class Worker:
    """One place for a worker process."""

    process: asyncio.subprocess.Process | None = None
    admin_url: str = ""
    up: asyncio.Event = field(default_factory=asyncio.Event)
    last: dict[str, float] = field(default_factory=dict)
    """Counters of the process at its last scrape."""
    former: dict[str, float] = field(default_factory=dict)
    """Counters of the processes that had this place before."""


@dataclass(slots=True, eq=False)
class Supervisor:
    """Parent of the workers."""

    settings: Settings
    public: socket.socket
    admin: socket.socket
    arguments: tuple[str, ...]
    workers: list[Worker] = field(init=False)
    stopping: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.workers = [Worker() for _ in range(self.settings.workers)]

    async def run(self) -> None:
        """Runs until SIGTERM or SIGINT, which the workers get too."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signal)
        keeping = [asyncio.create_task(self._keep(worker)) for worker in self.workers]
        async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
            server = AdminServer(self._app(client))
            serving = asyncio.create_task(server.serve(sockets=[self.admin]))
            ready = asyncio.create_task(self._all_up(server))
            done = asyncio.create_task(_all(keeping))
            await asyncio.wait([ready, done], return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                line = f"hlserve-router listening on {url_of(self.public)} admin {url_of(self.admin)}"
                print(line, flush=True)  # noqa: T201 - the line that whoever started this waits for
            await done
            ready.cancel()
            server.should_exit = True
            await serving

    async def _all_up(self, server: AdminServer) -> None:
        for worker in self.workers:
            await worker.up.wait()
        await server.up.wait()

    def _signal(self) -> None:
        self.stopping = True
        for worker in self.workers:
            if worker.process is not None and worker.process.returncode is None:
                worker.process.send_signal(signal.SIGTERM)

    async def _keep(self, worker: Worker) -> None:
        while not self.stopping:
            port = str(self.public.getsockname()[1])
            worker.process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "hlserve_router", *self.arguments, "--port", port, "--admin-port", "0",
                stdout=asyncio.subprocess.PIPE, env={**os.environ, WORKER_VARIABLE: "1"}, start_new_session=True,
            )  # fmt: skip
            assert process.stdout is not None  # noqa: S101 - a pipe was asked for
            async for line in process.stdout:
                found = _LISTENING.search(line.decode())
                if found is not None:
                    worker.admin_url = found.group(1)
                    worker.up.set()
            code = await process.wait()
            worker.admin_url = ""
            worker.former = _sum(worker.former, worker.last)
            worker.last = {}
            if not self.stopping:
                _log.error("worker ended", extra={"fields": {"code": code}})
                await asyncio.sleep(RESTART_SECONDS)

    def _app(self, client: httpx.AsyncClient) -> FastAPI:
        app = FastAPI(title="HlServe router, admin of all workers", docs_url=None, redoc_url=None, openapi_url=None)

        @app.get("/metrics")
        async def metrics() -> Response:
            return Response(await self._metrics(client), media_type=CONTENT_TYPE_LATEST)

        @app.api_route("/healthz", methods=["GET", "HEAD"])
        async def healthz() -> Response:
            return JSONResponse({"status": "ok", "workersUp": sum(bool(worker.admin_url) for worker in self.workers)})

        @app.get("/{path:path}")
        async def merged(request: Request) -> Response:
            token = request.headers.get("authorization", "")
            urls = [worker.admin_url for worker in self.workers if worker.admin_url]
            asked = await asyncio.gather(
                *(client.get(url + request.url.path, headers={"authorization": token}) for url in urls),
                return_exceptions=True,
            )
            answers = [answer for answer in asked if isinstance(answer, httpx.Response)]
            if not answers:
                return JSONResponse({"status": "no worker is up: try again in a second"}, 503)
            worst = max(answers, key=lambda answer: answer.status_code)
            if worst.status_code != httpx.codes.OK:
                return Response(worst.content, worst.status_code, media_type="application/json")
            body = answers[0].json()
            for answer in answers[1:]:
                body = merge(body, answer.json())
            return JSONResponse(body)

        return app

    async def _metrics(self, client: httpx.AsyncClient) -> str:
        pages: list[str] = []
        for worker in self.workers:
            if not worker.admin_url:
                continue
            try:
                page = (await client.get(f"{worker.admin_url}/metrics")).text
            except httpx.HTTPError:
                continue
            if not worker.admin_url:
                continue  # it ended meanwhile: what it had counted at its last scrape is among the former ones
            pages.append(page)
            worker.last = {name: value for name, value in samples(page).items() if _is_counter(name)}
        former = [worker.former for worker in self.workers if worker.former]
        return merge_pages(pages, former)


async def _all(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)


def samples(page: str) -> dict[str, float]:
    """Series of a metrics page: name with labels -> value."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            found[series] = float(value)
    return found


def _is_counter(series: str) -> bool:
    name = series.partition("{")[0]
    return name.endswith(("_total", "_bucket", "_count", "_sum"))


def _sum(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}


def merge_pages(pages: list[str], former: list[dict[str, float]]) -> str:
    """One page out of the workers' pages and the counters of processes that are gone. Help and order as in the pages."""
    heads: dict[str, list[str]] = {}
    values: dict[str, dict[str, float]] = {}
    for page in pages:
        family = ""
        for line in page.splitlines():
            if line.startswith("# HELP "):
                family = line.split(" ", 3)[2]
                heads.setdefault(family, [])
            if line.startswith("#"):
                if line not in heads[family]:
                    heads[family].append(line)
                continue
            series, _, text = line.rpartition(" ")
            _add(values.setdefault(family, {}), family, series, float(text))
    for counters in former:
        for series, value in counters.items():
            name = series.partition("{")[0]
            family = name if name in heads else re.sub(r"_(bucket|count|sum)$", "", name)
            _add(values.setdefault(family, {}), family, series, value)
    lines: list[str] = []
    for family, head in heads.items():
        lines += head
        lines += [f"{series} {value!r}" for series, value in values.get(family, {}).items()]
    return "\n".join(lines) + "\n"


def _add(series_of: dict[str, float], family: str, series: str, value: float) -> None:
    if family in _SAME_EVERYWHERE:
        series_of[series] = max(series_of.get(series, value), value)
    else:
        series_of[series] = series_of.get(series, 0.0) + value


def merge(one: Any, other: Any, *, summed: bool = False) -> Any:
    """One document out of two workers': what each has by itself is summed, what all see alike is the first one's."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [*one, *(key for key in other if key not in one)]
        return {
            key: merge(one[key], other[key], summed=summed or key in _SUMMED_KEYS)
            if key in one and key in other
            else one.get(key, other.get(key))
            for key in keys
        }
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [merge(mine, theirs, summed=summed) for mine, theirs in zip(one, other, strict=True)]
    number = isinstance(one, int | float) and isinstance(other, int | float) and not isinstance(one, bool)
    if summed and number:
        return one + other
    if one is None or (number and not summed and other > one):
        return other
    return one
