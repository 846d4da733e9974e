"""The operator's own port: is it alive, is it ready, how is it doing, and how much is each pool asked for."""

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from hlserve_operator.errors import StartError
from hlserve_operator.metrics import CONTENT_TYPE

Signals = Callable[[str], dict[str, float] | None]
"""A pool's scale signals by name; None: there is no such pool."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
STOP_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Port:
    """What is answered. `alive` and `ready` give a sentence if they are not the case, else nothing."""

    alive: Callable[[], str]
    ready: Callable[[], str]
    metrics: Callable[[], bytes]
    signals: Signals
    token_file: Path | None = None
    """Bearer token of scale signals; None: they are open."""

    def application(self) -> web.Application:
        """The routes."""
        application = web.Application()
        application.router.add_get("/healthz", _probe(self.alive))
        application.router.add_get("/readyz", _probe(self.ready))
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/v1/scale-signals/{pool}", self._signals)
        return application

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=self.metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def _signals(self, request: web.Request) -> web.StreamResponse:
        if not self._allowed(request):
            return web.json_response({"error": "Send the release's admin token as a bearer token."}, status=401)
        found = self.signals(request.match_info["pool"])
        if found is None:
            return web.json_response({"error": "No such pool, or this operator does not lead."}, status=404)
        return web.json_response(found)

    def _allowed(self, request: web.Request) -> bool:
        if self.token_file is None:
            return True
        try:
            token = self.token_file.read_text(encoding="utf-8").strip()
        except OSError:
            return False
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return bool(token) and hmac.compare_digest(given.encode(), token.encode())


def _probe(problem: Callable[[], str]) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        found = problem()
        return web.Response(text=f"{found or 'ok'}\n", status=503 if found else 200)

    return answer


async def serve(port: Port, host: str, number: int) -> tuple[web.AppRunner, int]:
    """Starts to answer; gives what to clean up and the port's number. Raises StartError if the address cannot be had."""
    runner = web.AppRunner(port.application(), access_log=None, shutdown_timeout=STOP_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, number).start()
    except OSError as error:
        await runner.cleanup()
        raise StartError(f"{host}:{number} cannot be listened on ({error.strerror or error}): give --port.") from error
    return runner, int(runner.addresses[0][1])
