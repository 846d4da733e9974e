"""Several processes on one port: starts them, restarts one that dies, and answers the admin port for all of them.

The workers take connections from one listening socket (`accepting`), hold admission together by a ledger that each of them
maps (`ledger`, `sharing`), and their clients' limits by a book that this process keeps, unless a store is named
(`limit_store_pod`). Counters of a worker that died stay in the sums: they never go down.
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
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from hlserve_router.admin_access import AdminToken, guard_changes, wants_drain
from hlserve_router.ledger import VARIABLE as LEDGER_VARIABLE
from hlserve_router.ledger import Handles, Ledger
from hlserve_router.limit_store import MEMORY
from hlserve_router.limit_store_pod import VARIABLE as LIMITS_VARIABLE
from hlserve_router.limit_store_pod import PodBook
from hlserve_router.merging import added, is_counter, merge, merge_pages, risen, samples
from hlserve_router.server import AdminServer, url_of
from hlserve_router.settings import Settings

WORKER_VARIABLE: Final = "HLSERVE_ROUTER_IS_WORKER"
LISTENER_VARIABLE: Final = "HLSERVE_ROUTER_LISTENER"
"""Names the listening socket in a worker's environment."""
PARENT_VARIABLE: Final = "HLSERVE_ROUTER_PARENT"
"""Names the end of a pipe there whose other end is the supervisor's alone: killed, it can tell nobody that it ended."""
RESTART_SECONDS: Final = 1.0
METER_SECONDS: Final = 5.0
"""How old the counters of a worker that is killed may be: nobody can ask it any more."""
REPORT_PATH: Final = "/v1/report"
_LISTENING: Final = re.compile(r"admin (http://\S+)")
_log = logging.getLogger("hlserve_router.supervisor")


@dataclass(slots=True, eq=False)
class Worker:
    """One place for a worker process."""

    row: int = 0
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
    handles: Handles = field(init=False)
    ledger: Ledger = field(init=False)
    book: PodBook = field(init=False, default_factory=PodBook)
    """The clients' limits, unless a store is named."""
    token: AdminToken = field(init=False)
    alive: tuple[int, int] = field(init=False)
    """A pipe that nobody writes to: the workers have the first end, and see when the second is gone."""
    drain_asked: bool = field(init=False, default=False)
    stopping: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.workers = [Worker(row) for row in range(self.settings.workers)]
        self.handles = Handles.make(self.settings.workers)
        self.alive = os.pipe()
        self.ledger = Ledger(self.handles, None)
        self.token = AdminToken(self.settings.admin_token_file)

    async def run(self) -> None:
        """Runs until SIGTERM or SIGINT, which the workers get too."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signal)
        keeping = [asyncio.create_task(self._keep(worker)) for worker in self.workers]
        async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
            server = AdminServer(self._app(client))
            serving = asyncio.create_task(server.serve(sockets=[self.admin]))
            metering = asyncio.create_task(self._meter(client))
            ready = asyncio.create_task(self._all_up(server))
            done = asyncio.create_task(_all(keeping))
            await asyncio.wait([ready, done], return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not self.stopping:
                public = url_of(self.public, tls=self.settings.tls_cert is not None)
                line = f"hlserve-router listening on {public} admin {url_of(self.admin)}"
                print(line, flush=True)  # noqa: T201 - the line that whoever started this waits for
            await done
            ready.cancel()
            metering.cancel()
            server.should_exit = True
            await serving

    async def _all_up(self, server: AdminServer) -> None:
        for worker in self.workers:
            await worker.up.wait()
        await server.up.wait()

    def _signal(self) -> None:
        self.stopping = True
        self.public.close()  # the workers have it too, and close it when they take no more
        for worker in self.workers:
            if worker.process is not None and worker.process.returncode is None:
                worker.process.send_signal(signal.SIGTERM)

    async def _keep(self, worker: Worker) -> None:
        while not self.stopping:
            ours, theirs = socket.socketpair()
            with theirs:
                worker.process = process = await self._start(worker, theirs)
            book = asyncio.create_task(self.book.serve(ours))
            if process.stdout is not None:
                await self._read(worker, process.stdout)
            code = await process.wait()
            await book
            self.ledger.clear(worker.row)
            worker.admin_url = ""
            worker.former = added(worker.former, worker.last)
            worker.last = {}
            if not self.stopping:
                _log.error("worker ended", extra={"fields": {"code": code}})
                await asyncio.sleep(RESTART_SECONDS)

    async def _start(self, worker: Worker, limits: socket.socket) -> asyncio.subprocess.Process:
        port = str(self.public.getsockname()[1])
        inherited = {
            WORKER_VARIABLE: "1",
            LISTENER_VARIABLE: str(self.public.fileno()),
            PARENT_VARIABLE: str(self.alive[0]),
            LEDGER_VARIABLE: self.handles.variable(worker.row),
        }
        if self.settings.limits_store == MEMORY:
            inherited[LIMITS_VARIABLE] = str(limits.fileno())
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hlserve_router", *self.arguments, "--port", port, "--admin-port", "0",
            stdout=asyncio.subprocess.PIPE, env={**os.environ, **inherited}, start_new_session=True,
            pass_fds=(self.public.fileno(), limits.fileno(), self.alive[0], *self.handles.descriptors),
        )  # fmt: skip
        if self.stopping and process.returncode is None:  # the signal came meanwhile
            process.send_signal(signal.SIGTERM)
        return process

    async def _read(self, worker: Worker, output: asyncio.StreamReader) -> None:
        """Reads what a worker prints until it ends; the line that says where it listens counts."""
        async for line in output:
            found = _LISTENING.search(line.decode())
            if found is not None:
                worker.admin_url = found.group(1)
                if self.drain_asked:
                    await self._tell_drain(worker)
                worker.up.set()

    def _app(self, client: httpx.AsyncClient) -> FastAPI:
        app = FastAPI(title="HlServe router, admin of all workers", docs_url=None, redoc_url=None, openapi_url=None)

        @app.get("/metrics")
        async def metrics() -> Response:
            return Response(await self._metrics(client), media_type=CONTENT_TYPE_LATEST)

        @app.api_route("/healthz", methods=["GET", "HEAD"])
        async def healthz() -> Response:
            return JSONResponse({"status": "ok", "workersUp": sum(bool(worker.admin_url) for worker in self.workers)})

        @app.api_route("/hlserve/drain", methods=["POST", "DELETE"], dependencies=[Depends(guard_changes(self.token))])
        async def drain(request: Request) -> dict[str, Any]:
            self.drain_asked = await wants_drain(request)
            answers = await asyncio.gather(*(self._tell_drain(worker) for worker in self.workers if worker.admin_url))
            return {"draining": self.drain_asked, "inFlight": sum(answers)}

        @app.api_route("/{path:path}", methods=["GET", "HEAD"])
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
            if len(answers) < len(urls) and request.url.path == REPORT_PATH:
                # The operator takes back keys and engines on the word of all workers, so silence must not pass for consent.
                return JSONResponse({"status": "a worker does not answer: try again in a second"}, 503)
            worst = max(answers, key=lambda answer: answer.status_code)
            if worst.status_code != httpx.codes.OK:
                return Response(worst.content, worst.status_code, media_type="application/json")
            body = answers[0].json()
            for answer in answers[1:]:
                body = merge(body, answer.json())
            return JSONResponse(body)

        return app

    async def _tell_drain(self, worker: Worker) -> int:
        """Tells a worker what was asked for; returns its requests in flight. One that ends meanwhile has none."""
        async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
            try:
                answer = await client.post(
                    f"{worker.admin_url}/hlserve/drain", json={"drain": self.drain_asked}, headers=self.token.headers
                )
                answer.raise_for_status()
            except httpx.HTTPError as error:
                _log.warning("worker not told", extra={"fields": {"error": type(error).__name__}})
                return 0
        return int(answer.json()["inFlight"])

    async def _meter(self, client: httpx.AsyncClient) -> None:
        """Remembers the workers' counters, for the day when one is killed."""
        while True:
            await asyncio.sleep(METER_SECONDS)
            await asyncio.gather(*(self._page(client, worker) for worker in self.workers))

    async def _metrics(self, client: httpx.AsyncClient) -> str:
        pages = await asyncio.gather(*(self._page(client, worker) for worker in self.workers))
        silent = [worker.last for worker, page in zip(self.workers, pages, strict=True) if page is None]
        former = [worker.former for worker in self.workers]
        return merge_pages([page for page in pages if page is not None], [*silent, *former])

    @staticmethod
    async def _page(client: httpx.AsyncClient, worker: Worker) -> str | None:
        """A worker's metrics page. None if it does not answer; then its counters of the last time stand for it."""
        process = worker.process
        if not worker.admin_url:
            return None
        try:
            answer = await client.get(f"{worker.admin_url}/metrics")
            page = answer.raise_for_status().text
        except httpx.HTTPError:
            return None
        if worker.process is not process or not worker.admin_url:
            return None  # it ended meanwhile, and what it had counted is among the former ones
        counters = {name: value for name, value in samples(page).items() if is_counter(name)}
        worker.last = risen(worker.last, counters)
        return page


async def _all(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)
