"""API keys, as SGLang checks them: a bearer token for clients, another for administration."""

import hmac
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from hlserve_sim import wire
from hlserve_sim.answers import json_answer
from hlserve_sim.flags import Flags

OPEN_PATHS = frozenset({"/health", "/health_generate", "/ready", "/hlserve/ready", "/metrics"})
Handler = Callable[[Request], Awaitable[Response]]


def holds(authorization: str | None, key: str) -> bool:
    """Whether an `Authorization` header carries `key` as a bearer token."""
    scheme, _, token = (authorization or "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), key.encode())


def admin(flags: Flags) -> Callable[[Handler], Handler]:
    """Guard a handler with the administration key, if there is one."""

    def guard(handler: Handler) -> Handler:
        key = flags.admin_api_key
        if key is None:
            return handler

        async def guarded(request: Request) -> Response:
            if not holds(request.headers.get("authorization"), key):
                return json_answer({"error": "Unauthorized"}, 401)
            return await handler(request)

        return guarded

    return guard


class KeyCheck:
    """Lets only clients with the API key through; the administration key opens everything too."""

    def __init__(self, app: ASGIApp, flags: Flags) -> None:
        self._app = app
        self._keys = tuple(key for key in (flags.api_key, flags.admin_api_key) if key is not None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            given = wire.header(scope, b"authorization")
            if not any(holds(given, key) for key in self._keys):
                await wire.send_json(send, {"error": "Unauthorized"}, 401)
                return
        await self._app(scope, receive, send)
