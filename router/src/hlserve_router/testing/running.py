"""A whole router on free ports inside the test's event loop, behind one of its faces."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from hlserve_api.routing import Document, Keyring, RoutingTable
from hlserve_router.admin import admin_app
from hlserve_router.app import Router
from hlserve_router.server import admin_config, bind, public_config, url_of
from hlserve_router.settings import Settings
from hlserve_router.testing.documents import AGENT_KEY, a_keyring


class Face(StrEnum):
    """The ways of relaying that the conformance tests run on."""

    SPLICE = "splice"
    ASGI = "asgi"


@dataclass(slots=True, eq=False)
class RunningRouter:
    """A router with its files, addresses and a client without retries."""

    router: Router
    url: str
    admin_url: str
    folder: Path
    http: httpx.AsyncClient

    async def post(self, path: str, body: Any, key: str | None = AGENT_KEY, **headers: str) -> httpx.Response:
        """POSTs JSON (or bytes as they are)."""
        content = body if isinstance(body, bytes) else httpx.Request("POST", self.url, json=body).read()
        sent = {
            "content-type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        if key is not None:
            sent["authorization"] = f"Bearer {key}"
        return await self.http.post(self.url + path, content=content, headers=sent)

    async def until(self, check: Callable[[], bool], timeout_seconds: float = 5.0) -> None:
        """Waits until something that the router does by itself (a reload, a probe) has happened."""
        async with asyncio.timeout(timeout_seconds):
            while not check():  # noqa: ASYNC110 - the router's state has no event to wait for
                await asyncio.sleep(0.01)

    def write(self, name: str, document: Document | str) -> None:
        """Replaces a document file as a writer should: a new file renamed over the old."""
        text = document if isinstance(document, str) else document.model_dump_json(by_alias=True)
        fresh = self.folder / f"{name}.new"
        fresh.write_text(text)
        fresh.rename(self.folder / name)

    def count(self, name: str, *labels: str) -> float:
        """A counter, over all labels if none are given."""
        metrics = self.router.proxy.metrics
        return metrics.value(name, labels) if labels else metrics.total(name)

    async def metrics(self) -> str:
        """The metrics page."""
        return (await self.http.get(f"{self.admin_url}/metrics")).text


class _QuietServer(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """Signals belong to the test."""


@asynccontextmanager
async def _served(config: uvicorn.Config, host: str) -> AsyncIterator[str]:
    listener = bind(host, 0)
    server = _QuietServer(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    main = asyncio.create_task(server.main_loop())
    try:
        yield url_of(listener, tls=config.ssl is not None)
    finally:
        # As `server.shutdown`, which looks for each end only every 100 ms.
        main.cancel()
        for listening in server.servers:
            listening.close()
        for _ in range(3):  # a connection that was just accepted still has to get its protocol
            await asyncio.sleep(0)
        for connection in tuple(server.server_state.connections):
            connection.shutdown()
        left = [main, *server.server_state.tasks]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for connection in tuple(server.server_state.connections):
            connection.transport.abort()
        listener.close()


@asynccontextmanager
async def running_router(
    folder: Path,
    table: RoutingTable | None,
    keyring: Keyring | None = None,
    *,
    face: Face = Face.SPLICE,
    settings: dict[str, Any] | None = None,
) -> AsyncIterator[RunningRouter]:
    """A router that serves `table`, or what a cluster says, with fast ticks, reloads and probes."""
    fast = {"face": face.value, "tick_seconds": 0.01, "reload_seconds": 0.02, "probe_seconds": 0.1}
    given: dict[str, Any] = {**fast, **(settings or {})}
    if table is not None:
        (folder / "table.json").write_text(table.model_dump_json(by_alias=True))
        (folder / "keyring.json").write_text((keyring or a_keyring()).model_dump_json(by_alias=True))
        given |= {"table": folder / "table.json", "keyrings": (folder / "keyring.json",)}
    router = Router(Settings(**given))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with (
        router.running(),
        _served(public_config(router), router.settings.host) as url,
        _served(admin_config(admin_app(router)), router.settings.host) as admin_url,
        httpx.AsyncClient(
            timeout=20, limits=limits, trust_env=False, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        ) as http,
    ):
        yield RunningRouter(router, url, admin_url, folder, http)
