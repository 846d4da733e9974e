"""A router that reads a pretended cluster: pool `agents` behind the Service `agents-svc`."""

from typing import Any

from hlserve_api.routing import RoutingTable
from hlserve_router.testing.cluster import Pod, PretendedCluster
from hlserve_router.testing.documents import a_class, a_pool, a_table
from hlserve_router.testing.engine import ScriptedEngine
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import ORDINARY
from hlserve_router.testing.stage import Stage


def table_of_services(*changes: dict[str, Any], **more: Any) -> RoutingTable:
    """Pool `agents` behind Service `agents-svc`."""
    pool = a_pool("agents", **{"service": "agents-svc", **dict(*changes)})
    return a_table(pool, a_class("agent", "agents"), **more)


async def a_pod(cluster: PretendedCluster, uid: str, engine: ScriptedEngine, **conditions: Any) -> None:
    """Each pod has a slice of its own, as its port is its own."""
    await cluster.slice("agents-svc", f"slice-{uid}", Pod(uid, **conditions), port=engine.port)


async def two_pods(stage: Stage, **settings: Any) -> tuple[PretendedCluster, RunningRouter, list[ScriptedEngine]]:
    """Pods `p` and `q`, and a router that knows them and watches everything."""
    cluster = await stage.cluster()
    engines = [await stage.engine(ORDINARY) for _ in range(2)]
    await cluster.table(table_of_services())
    for uid, engine in zip("pq", engines, strict=True):
        await a_pod(cluster, uid, engine)
    router = await stage.router_of(cluster, **settings)
    await router.until(lambda: uids(router) == {"p", "q"} and router.router.ready and cluster.watching == 4)
    return cluster, router, engines


def uids(router: RunningRouter) -> set[str]:
    """Endpoints of the pool, by pod UID."""
    pool = router.router.proxy.pools.pools.get("agents")
    return set() if pool is None else set(pool.endpoints)
