"""What a test sets up: engines and a router behind the face under test, all ended with the test."""

from contextlib import AsyncExitStack
from pathlib import Path
from ssl import SSLContext
from typing import Any

from hlserve_api.routing import Keyring, RoutingTable
from hlserve_router.testing.cluster import PretendedCluster, pretended_cluster
from hlserve_router.testing.documents import a_keyring
from hlserve_router.testing.engine import Play, ScriptedEngine, scripted_engine
from hlserve_router.testing.running import Face, RunningRouter, running_router
from hlserve_router.testing.wire import Wire


class Stage:
    """Starts engines and routers, and ends them with the test."""

    def __init__(self, folder: Path, face: Face, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._face = face
        self._stack = stack

    async def engine(self, play: Play, host: str = "127.0.0.1", tls: SSLContext | None = None) -> ScriptedEngine:
        """A scripted engine."""
        return await self._stack.enter_async_context(scripted_engine(play, host, tls))

    async def cluster(self, tls: SSLContext | None = None) -> PretendedCluster:
        """A pretended API server."""
        return await self._stack.enter_async_context(pretended_cluster(tls))

    async def router_of(
        self, cluster: PretendedCluster, keyring: Keyring | None = None, **settings: Any
    ) -> RunningRouter:
        """A router that reads `cluster`, where the keyring is written first."""
        await cluster.keyring(keyring or a_keyring())
        return await self.router(None, **{**cluster.settings(self._folder), **settings})

    async def router(
        self, table: RoutingTable | None, keyring: Keyring | None = None, **settings: Any
    ) -> RunningRouter:
        """A router behind this test's face. Without a table it reads the cluster that the settings name."""
        return await self._stack.enter_async_context(
            running_router(self._folder, table, keyring, face=self._face, settings=settings)
        )

    async def wire(self, router: RunningRouter) -> Wire:
        """A client that writes its own bytes."""
        wire = await Wire.to(router.url)
        self._stack.callback(wire.hang_up)
        return wire
