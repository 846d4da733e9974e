"""Wires the router together: the state of one process, its two FastAPI applications, and its background work."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry
from starlette.types import Message, Receive, Scope, Send

from hlserve_api.answers import Outcome
from hlserve_router import openapi, report
from hlserve_router.admin_access import AdminToken
from hlserve_router.answers import answer
from hlserve_router.asgi import AsgiFace
from hlserve_router.certificate import Certificate
from hlserve_router.classify import classify
from hlserve_router.cors import Cors
from hlserve_router.credentials import Credentials
from hlserve_router.discovery import Discovery
from hlserve_router.errors import Refusal
from hlserve_router.files import Files
from hlserve_router.head import read_head, the_key
from hlserve_router.intake import Intake, RequestRules, is_own, wrong_method
from hlserve_router.kubernetes_api import kubernetes_api
from hlserve_router.ledger import Ledger
from hlserve_router.limit_stores import share_limits
from hlserve_router.limit_sync import LimitSync
from hlserve_router.metrics import Gauge, RouterCollector
from hlserve_router.models import describe_model, describe_models, find_model
from hlserve_router.probes import Probes
from hlserve_router.proxy import Clocks, Proxy
from hlserve_router.reflector import Rhythm
from hlserve_router.settings import Settings
from hlserve_router.sharing import YIELD_SECONDS
from hlserve_router.splice import SpliceFace
from hlserve_router.state import Pace, Shape
from hlserve_router.tables import Kind, Tables
from hlserve_router.upstream import UpstreamClient

_log = logging.getLogger("hlserve_router")


@dataclass(slots=True, eq=False)
class Router:
    """The state of one process."""

    settings: Settings
    proxy: Proxy = field(init=False)
    client: UpstreamClient = field(init=False)
    intake: Intake = field(init=False)
    face: AsgiFace = field(init=False)
    splice: SpliceFace = field(init=False)
    tables: Tables = field(init=False)
    registry: CollectorRegistry = field(init=False)
    source: Files | Discovery = field(init=False)
    admin_token: AdminToken = field(init=False)
    certificate: Certificate | None = field(init=False, default=None)
    ledger: Ledger | None = None
    """What the pod's workers tell each other; None: this process is the only one."""
    limit_sync: LimitSync | None = field(init=False)
    """None: this process is alone with its limits."""
    stopping: bool = field(init=False, default=False)
    """True from SIGTERM on."""
    drain_asked: bool = field(init=False, default=False)
    """True while `POST /hlserve/drain` holds."""

    def __post_init__(self) -> None:
        settings = self.settings
        clocks = Clocks(time.monotonic, time.time)
        pace = Pace(
            slow_start_seconds=settings.slow_start_seconds,
            breaker_open_seconds=settings.breaker_open_seconds,
            session_idle_seconds=settings.session_idle_seconds,
            affinity_wait_seconds=settings.affinity_wait_seconds,
        )
        self.proxy = Proxy(clocks, Random(secrets.randbits(64)), self.ledger, pace=pace)
        self.client = UpstreamClient(settings.connect_timeout_seconds)
        rules = RequestRules(
            settings.body_max_bytes, settings.header_max_bytes, settings.body_timeout_seconds,
            settings.header_timeout_seconds, settings.keep_alive_seconds, settings.linger_seconds,
            settings.header_max_count,
        )  # fmt: skip
        self.intake = Intake(self.proxy, self.client, rules)
        self.intake.cors = Cors(settings.cors_origins) if settings.cors_origins else None
        self.face = AsgiFace(self.intake)
        self.splice = SpliceFace(self.intake)
        self.limit_sync = share_limits(self.proxy.limits, self.proxy.metrics, settings)
        if self.proxy.queues is not None:
            self.proxy.queues.later = self._look_later
        self.source = self._source()
        self.tables = self.source.tables
        self.proxy.metrics.gauges = self.gauges
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(RouterCollector(self.proxy.metrics))
        self.admin_token = AdminToken(settings.admin_token_file)
        if settings.tls_cert is not None and settings.tls_key is not None:
            self.certificate = Certificate(settings.tls_cert, settings.tls_key, self._certificate_told)

    def _source(self) -> Files | Discovery:
        """Where documents and endpoints come from. Raises StartError."""
        settings = self.settings
        if settings.kubernetes:
            api = kubernetes_api(settings)
            rhythm = Rhythm(
                settings.relist_seconds, settings.watch_silence_seconds, settings.kubernetes_retry_max_seconds
            )
            tables = Tables(self.proxy, Credentials(api.namespace), settings.shards_wait_seconds)
            return Discovery(api, tables, settings.keyring_shards, rhythm)
        given = (
            (Kind.ENGINE_CREDENTIALS, settings.engine_credentials),
            *((Kind.KEYRING, path) for path in settings.keyrings),
            (Kind.TABLE, settings.table),
        )
        tables = Tables(self.proxy, shards_wait_seconds=settings.shards_wait_seconds)
        return Files(tables, tuple((kind, path) for kind, path in given if path is not None))

    def _certificate_told(self, problem: str | None) -> None:
        source = str(self.settings.tls_cert)
        if problem is None:
            self.tables.problems.pop(source, None)
        else:
            self.tables.refuse(Kind.CERTIFICATE, source, f"{problem} The former certificate stays in use.")

    def gauges(self) -> Iterable[Gauge]:
        """Every gauge, read now."""
        return report.gauges(self.proxy, self.tables, self.settings.abort_grace_seconds)

    def limits_rule(self) -> dict[str, str]:
        """How limits are shared, for the log's first lines."""
        if self.limit_sync is None:
            return {"store": "memory", "rule": "this process enforces every limit by itself; other pods do too"}
        return {
            "store": self.limit_sync.address,
            "rule": "every process spends leases of one limit; together never more than it",
        }

    @property
    def ready(self) -> bool:
        """The rule of readiness: a table and every keyring shard have been in force, and the process is not draining.

        That no engine can be reached does not count: then clients get a 503 that says when to return, not a refused
        connection.
        """
        return self.tables.ready and not self.draining

    @property
    def draining(self) -> bool:
        """True while load balancers should send nothing new."""
        return self.stopping or self.drain_asked

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Background work: deadlines, reloads, probes."""
        self.source.await_all()
        if isinstance(self.source, Files):
            self.source.load()
        probes = Probes(self.proxy, self.settings.probe_seconds)
        tasks = [
            asyncio.create_task(self._guard("tick", self._tick)),
            asyncio.create_task(self._guard("documents", self._follow)),
            asyncio.create_task(self._guard("certificate", self._renew)),
            asyncio.create_task(self._guard("probes", probes.run)),
        ]
        if self.limit_sync is not None:
            tasks.append(asyncio.create_task(self._guard("limits", self.limit_sync.run)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self.limit_sync is not None:
                await self.limit_sync.close()
            await self.client.close()

    def _look_later(self) -> None:
        """Looks for room again after it was left to an older request in another worker."""
        proxy = self.proxy
        asyncio.get_running_loop().call_later(YIELD_SECONDS, lambda: proxy.admission.pump(proxy.now()))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.settings.tick_seconds)
            now = self.proxy.now()
            self.proxy.admission.sweep(now)
            self.intake.tick(now)
            self.splice.tick(now)
            if self.proxy.pod is not None:
                self.proxy.pod.sweep()
            self.proxy.pools.sweep(now)
            self.client.sweep()

    async def _follow(self) -> None:
        if isinstance(self.source, Files):
            await self.source.watch(self.settings.reload_seconds)
        else:
            await self.source.run()

    async def _renew(self) -> None:
        if self.certificate is None:
            await asyncio.Event().wait()
        else:
            await self.certificate.watch(self.settings.reload_seconds)

    async def _guard(self, name: str, work: Any) -> None:
        """Runs a background loop; a fault in one round is logged and counted, and the loop goes on."""
        while True:
            try:
                await work()
            except Exception:  # the boundary of background work: the process must not go on without it
                _log.exception("background work failed", extra={"fields": {"work": name}})
                self.proxy.metrics.count("hlserve_router_internal_errors_total")
                await asyncio.sleep(1)

    def cancel_all(self) -> None:
        """Ends every request in progress: what is left when the drain time is over."""
        for relay in tuple(self.intake.relays):
            relay.shut_down()


class PublicApp(FastAPI):
    """FastAPI for the few routes that the router answers from its own state; everything else goes to the face."""

    def __init__(self, router: Router) -> None:
        super().__init__(
            title="HlServe router", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
        )
        self.hlserve = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Splits traffic before FastAPI's middleware: relayed requests do not pay for it."""
        cors = self.hlserve.intake.cors
        if cors is not None and scope["type"] == "http":
            origin = cors.origin(scope["headers"])
            if origin is not None:
                send = with_headers(send, cors.headers(origin))
            allowed = cors.preflight(scope["method"], scope["headers"])
            if allowed is not None:
                await send({"type": "http.response.start", "status": 204, "headers": allowed})
                await send({"type": "http.response.body", "body": b""})
                return
        if scope["type"] == "http" and not is_own(scope["path"]):
            await self.hlserve.face(scope, receive, send)
            return
        if scope["type"] == "http" and await self.hlserve.face.refuse_head(scope, send):
            return
        if scope["type"] == "http" and len(scope["path"]) > 1:
            scope["path"] = scope["path"].rstrip("/")
        await super().__call__(scope, receive, send)


def with_headers(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    """As `send`, with more headers in the response."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return sending


def public_app(router: Router) -> PublicApp:
    """The application of the client port."""
    app = PublicApp(router)
    add_health(app, router, details=False)

    @app.api_route("/v1/models", methods=["GET", "HEAD"])
    async def models(request: Request) -> Response:
        return _models(router, request, None)

    @app.api_route("/v1/models/{name:path}", methods=["GET", "HEAD"])
    async def model(request: Request, name: str) -> Response:
        return _models(router, request, name)

    described = openapi.document_json()

    @app.api_route(openapi.PATH, methods=["GET", "HEAD"])
    async def api() -> Response:
        return Response(described, media_type="application/json")

    @app.exception_handler(405)
    async def not_allowed(request: Request, _: Exception) -> Response:
        path = request.url.path
        made = router.intake.reject(wrong_method(path, request.method, "GET, HEAD"), path, request.headers.raw)
        return Response(made.body, made.status, {name.decode(): value.decode() for name, value in made.headers})

    return app


def _models(router: Router, request: Request, name: str | None) -> Response:
    """The models of the key, from the table in force: no engine is asked, so a dead one cannot break the list."""
    proxy = router.proxy
    head, credentials = read_head(None, request.headers.raw, proxy.request_id())
    identity = {"x-request-id": head.request_id, "request-id": head.request_id}
    try:
        key = proxy.authenticate(the_key(credentials))
        found = proxy.allowed_models(key, classify(key, head.asked_class, proxy.pools.classes).route)
        anthropic = head.shape is Shape.ANTHROPIC
        body = describe_models(found, anthropic=anthropic) if name is None else describe_model(
            find_model(found, name), anthropic=anthropic
        )  # fmt: skip
    except Refusal as refusal:
        proxy.reject("models", refusal)
        made = answer(refusal, head.shape, head.request_id, proxy.random)
        headers = {key.decode(): value.decode() for key, value in made.headers}
        return Response(made.body, made.status, {**headers, **identity})
    proxy.metrics.count("hlserve_router_requests_total", ("", "", Outcome.OK.value, ""))
    return JSONResponse(body, headers=identity)


def add_health(app: FastAPI, router: Router, *, details: bool) -> None:
    """The routes that kubelets and load balancers ask. `details`: readiness also says why, with names of files, pools and stores."""

    @app.api_route("/healthz", methods=["GET", "HEAD"])
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.api_route("/readyz", methods=["GET", "HEAD"])
    async def readyz() -> Response:
        ready = router.ready
        code = 200 if ready else 503
        status = "ok" if ready else "draining" if router.draining else "waiting_for_documents"
        if not details:
            return JSONResponse({"status": status}, code)
        now = router.proxy.now()
        body = {
            "status": status,
            "problems": router.tables.problems,
            "waitingFor": [*router.tables.waiting_for, *router.tables.late_shards],
            "limits": router.limit_sync.status() if router.limit_sync is not None else {"address": "memory"},
            "sourceAgeSeconds": {kind.value: round(age, 1) for kind, age in router.tables.ages().items()},
            "pools": {
                name: sum(endpoint.usable(now) for endpoint in pool.endpoints.values())
                for name, pool in router.proxy.pools.pools.items()
            },
        }
        return JSONResponse(body, code)
