"""A real API server that goes away and comes back, with its history compacted meanwhile."""

import asyncio
import base64
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from hlserve_cluster.daemons import Daemon, Daemons
from hlserve_cluster.layout import Layout
from hlserve_cluster.testing import api_server
from hlserve_operator.testing.real import ALICE, CHAT, Namespace, Server, becomes, install, namespace_of, server_of
from hlserve_operator.testing.running import quiet, until

pytestmark = pytest.mark.cluster
OUTAGE_SECONDS = 12
"""Four Leases; a minute in which every pause has reached its longest would say no more."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def own(definitions: list[dict[str, Any]]) -> AsyncIterator[Path]:
    """A server for this module alone, which may end it."""
    async with api_server(nodes=1) as found:
        async with server_of(found) as server:
            await install(server, definitions)
        yield found


@pytest_asyncio.fixture
async def server(own: Path) -> AsyncIterator[Server]:
    """The server, in the administrator's hands."""
    async with server_of(own) as found:
        yield found


@pytest_asyncio.fixture
async def here(
    server: Server, rights: list[dict[str, Any]], request: pytest.FixtureRequest
) -> AsyncIterator[Namespace]:
    """A namespace with the operator's rights."""
    number = abs(hash(request.node.name)) % 10**6
    async with namespace_of(server, f"serving-{number}", rights) as found:
        yield found


async def ended(own: Path) -> list[str]:
    """Ends the API server as if its machine were lost; returns its command line."""
    daemons = Daemons(Layout(own.parent))
    found = next(daemon for daemon in daemons.known() if daemon.name == "apiserver")
    command = await asyncio.to_thread(Path(f"/proc/{found.pid}/cmdline").read_bytes)

    def stop(daemon: Daemon) -> None:
        daemons.stop(daemon, grace_seconds=0)

    await asyncio.to_thread(stop, found)
    return command.decode().rstrip("\0").split("\0")


async def begun(own: Path, command: list[str], server: Server) -> None:
    """Starts it again on its port, and returns once it answers."""
    daemons = Daemons(Layout(own.parent))
    await asyncio.to_thread(daemons.start, "apiserver", command)

    async def answers() -> bool:
        try:
            await server.call("GET", "/api/v1/namespaces")
        except (aiohttp.ClientError, ValueError):
            return False
        except Exception as error:
            if getattr(error, "status", 0) in (401, 403, 500, 503):
                return False
            raise
        return True

    await becomes(answers, "the API server answers", 60)


async def compacted(own: Path) -> int:
    """Has etcd forget every revision but the last; returns which that is."""
    connector = aiohttp.UnixConnector(path=str(own.parent / "etcd:1"))
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
        key = base64.b64encode(b"\0").decode()
        async with session.post("http://etcd/v3/kv/range", json={"key": key, "limit": 1}) as answer:
            revision = int((await answer.json(content_type=None))["header"]["revision"])
        body = {"revision": revision, "physical": True}
        async with session.post("http://etcd/v3/kv/compaction", json=body) as answer:
            assert answer.status == 200, await answer.text()
    return revision


async def test_operator_cluster_gets_over_an_outage_of_the_server_in_which_nothing_changes(
    own: Path, server: Server, here: Namespace
) -> None:
    """Engines, table and keys stay as they are; the operator neither ends nor grows, and works again when the server does."""
    await here.fill()
    async with here.operator() as (operator, way):
        await becomes(here.settled, "all is there")
        await quiet(way, 0.5)
        before = {pod["metadata"]["uid"] for pod in await here.pods()}, await here.digests(), await here.table()
        threads, tasks, calls = threading.active_count(), len(asyncio.all_tasks()), len(way.seen)
        command = await ended(own)
        await until(lambda: operator.leading is None, "nobody leads", 15)
        await asyncio.sleep(OUTAGE_SECONDS)
        assert operator.alive() == ""
        assert threading.active_count() <= threads
        assert len(asyncio.all_tasks()) <= tasks
        assert len(way.seen) - calls < 300
        await begun(own, command, server)
        await until(lambda: operator.leading is not None, "it leads again", 30)
        await quiet(way, 1.0)
        now = {pod["metadata"]["uid"] for pod in await here.pods()}, await here.digests(), await here.table()
        assert now == before
        await here.patch(CHAT, {"spec": {"replicas": 3}})
        await becomes(lambda: _pods(here, 3), "a third pod")
        await here.delete(ALICE)
        await becomes(lambda: _revoked(here), "the key is revoked")


async def test_operator_cluster_misses_no_deletion_when_history_was_compacted(
    own: Path, server: Server, here: Namespace
) -> None:
    """A key goes while watches bring nothing; then the server is started anew on a store without a past: every watch is told 410."""
    await here.fill()
    # Longer than the outage: so that the same process has its watches refused.
    async with here.operator(lease_seconds=120.0) as (operator, way):
        await becomes(here.settled, "all is there")
        await quiet(way, 0.5)
        leading = operator.leading
        way.silent = True
        await here.delete(ALICE)
        await here.patch(CHAT, {"spec": {"replicas": 3}})
        for number in range(50):
            await here.patch(CHAT, {"metadata": {"labels": {"edit": str(number)}}})
        assert len(await here.digests()) == 1
        command = await ended(own)
        await compacted(own)
        await begun(own, command, server)
        way.silent = False
        await becomes(lambda: _revoked(here), "the key is revoked", 30)
        # The controllers of the server take their time to find it again.
        await becomes(lambda: _pods(here, 3), "a third pod", 90)
        await until(lambda: way.gone, "a watch that was told 410", 30)
        assert operator.leading is leading, "the same process, which led all the time"


async def _pods(namespace: Namespace, count: int) -> bool:
    return len(await namespace.pods()) == count


async def _revoked(namespace: Namespace) -> bool:
    return not await namespace.digests()
