"""The application of the admin port: metrics, reports, and the call that drains the router before it ends."""

from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from hlserve_router import report
from hlserve_router.admin_access import guard, guard_changes, wants_drain
from hlserve_router.app import Router, add_health


def admin_app(router: Router) -> FastAPI:
    """All of it but /metrics and health wants the token, if one is set."""
    app = FastAPI(title="HlServe router, admin", docs_url=None, redoc_url=None, openapi_url=None)
    add_health(app, router, details=True)
    token = router.admin_token
    guarded = [Depends(guard(token))]

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(router.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/report", dependencies=guarded)
    async def report_() -> dict[str, Any]:
        return report.report(router.proxy, router.tables, draining=router.draining)

    @app.get("/v1/pools", dependencies=guarded)
    async def pools() -> dict[str, Any]:
        return {"pools": report.pools(router.proxy, router.settings.abort_grace_seconds)}

    @app.get("/v1/classes", dependencies=guarded)
    async def classes() -> dict[str, Any]:
        return {"classes": report.classes(router.proxy)}

    @app.api_route("/hlserve/drain", methods=["POST", "DELETE"], dependencies=[Depends(guard_changes(token))])
    async def drain(request: Request) -> dict[str, Any]:
        router.drain_asked = await wants_drain(request)
        return {"draining": router.draining, "inFlight": len(router.intake.relays)}

    return app
