"""Wires the router together: the state of one process, its two FastAPI applications, and its background work."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.types import Receive, Scope, Send

from hlserve_api.answers import Outcome
from hlserve_router import report
from hlserve_router.answers import answer
from hlserve_router.asgi import AsgiFace, RequestRules
from hlserve_router.classify import classify
from hlserve_router.errors import Refusal
from hlserve_router.head import read_head, the_key
from hlserve_router.metrics import Gauge, RouterCollector
from hlserve_router.models import describe_model, describe_models, find_model
from hlserve_router.probes import Probes
from hlserve_router.proxy import Clocks, Proxy
from hlserve_router.settings import Settings
from hlserve_router.state import Shape
from hlserve_router.tables import Tables
from hlserve_router.upstream import UpstreamClient

_log = logging.getLogger("hlserve_router")


@dataclass(slots=True, eq=False)
class Router:
    """The state of one process."""

    settings: Settings
    proxy: Proxy = field(init=False)
    client: UpstreamClient = field(init=False)
    face: AsgiFace = field(init=False)
    tables: Tables = field(init=False)
    registry: CollectorRegistry = field(init=False)
    admin_token: str | None = field(init=False, default=None)
    draining: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        settings = self.settings
        clocks = Clocks(time.monotonic, time.time)
        self.proxy = Proxy(clocks, Random(secrets.randbits(64)), share=1 / settings.workers)
        self.client = UpstreamClient(settings.connect_timeout_seconds)
        self.face = AsgiFace(
            self.proxy,
            self.client,
            RequestRules(settings.body_max_bytes, settings.header_max_bytes, settings.body_timeout_seconds),
        )
        self.tables = Tables(self.proxy, settings.table, settings.keyrings)
        self.proxy.metrics.gauges = self.gauges
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(RouterCollector(self.proxy.metrics))
        if settings.admin_token_file is not None:
            self.admin_token = settings.admin_token_file.read_text().strip()

    def gauges(self) -> Iterable[Gauge]:
        """Every gauge, read now."""
        return report.gauges(self.proxy, self.tables)

    @property
    def ready(self) -> bool:
        """The rule of readiness: a table and every keyring shard have been in force, and the process is not draining.

        That no engine can be reached does not count: then clients get a 503 that says when to return, not a refused
        connection.
        """
        return self.tables.ready and not self.draining

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Background work: deadlines, reloads, probes."""
        self.tables.load()
        probes = Probes(self.proxy, self.settings.probe_seconds)
        tasks = [
            asyncio.create_task(self._guard("tick", self._tick)),
            asyncio.create_task(self._guard("watch", self._watch)),
            asyncio.create_task(self._guard("probes", probes.run)),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.client.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.settings.tick_seconds)
            now = self.proxy.now()
            self.proxy.admission.sweep(now)
            self.face.tick(now)
            self.proxy.pools.sessions.sweep(now)
            self.client.sweep()

    async def _watch(self) -> None:
        await self.tables.watch(self.settings.reload_seconds)

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
        for relay in tuple(self.face.relays):
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
        if scope["type"] == "http" and not _own_path(scope["path"]):
            await self.hlserve.face(scope, receive, send)
            return
        if scope["type"] == "http" and len(scope["path"]) > 1:
            scope["path"] = scope["path"].rstrip("/")
        await super().__call__(scope, receive, send)


def _own_path(path: str) -> bool:
    plain = path.rstrip("/")
    return plain in ("/healthz", "/readyz", "/v1/models") or plain.startswith("/v1/models/")


def public_app(router: Router) -> PublicApp:
    """The application of the client port."""
    app = PublicApp(router)
    _add_health(app, router)

    @app.api_route("/v1/models", methods=["GET", "HEAD"])
    async def models(request: Request) -> Response:
        return _models(router, request, None)

    @app.api_route("/v1/models/{name:path}", methods=["GET", "HEAD"])
    async def model(request: Request, name: str) -> Response:
        return _models(router, request, name)

    @app.exception_handler(405)
    async def wrong_method(request: Request, _: Exception) -> Response:
        return JSONResponse(
            {"error": {"message": f"{request.url.path} takes GET.", "type": "invalid_request_error", "param": None,
                       "code": "method_not_allowed"}},
            405,
        )  # fmt: skip

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


def _add_health(app: FastAPI, router: Router) -> None:
    @app.api_route("/healthz", methods=["GET", "HEAD"])
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.api_route("/readyz", methods=["GET", "HEAD"])
    async def readyz() -> Response:
        now = router.proxy.now()
        body = {
            "status": "ok" if router.ready else "draining" if router.draining else "waiting for documents",
            "problems": router.tables.problems,
            "pools": {
                name: sum(endpoint.usable(now) for endpoint in pool.endpoints.values())
                for name, pool in router.proxy.pools.pools.items()
            },
        }
        return JSONResponse(body, 200 if router.ready else 503)


def admin_app(router: Router) -> FastAPI:
    """The application of the admin port. All of it but /metrics and health wants the token, if one is set."""
    app = FastAPI(title="HlServe router, admin", docs_url=None, redoc_url=None, openapi_url=None)
    _add_health(app, router)

    def allowed(authorization: Annotated[str, Header()] = "") -> None:
        token = router.admin_token
        if token is not None and not secrets.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(
                401, "Send the admin token as `Authorization: Bearer TOKEN`.", {"www-authenticate": "Bearer"}
            )

    guarded = [Depends(allowed)]

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(router.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/report", dependencies=guarded)
    async def report_() -> dict[str, Any]:
        return report.report(router.proxy, router.tables, draining=router.draining)

    @app.get("/v1/pools", dependencies=guarded)
    async def pools() -> dict[str, Any]:
        return {"pools": report.pools(router.proxy)}

    @app.get("/v1/classes", dependencies=guarded)
    async def classes() -> dict[str, Any]:
        return {"classes": report.classes(router.proxy)}

    return app
