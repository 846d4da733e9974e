"""API servers for tests: each its own, on a free port of the loopback address, ended with the block or with the test process."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hlserve_cluster import api_profile
from hlserve_cluster.daemons import Daemon
from hlserve_cluster.errors import ClusterError
from hlserve_cluster.layout import Layout
from hlserve_cluster.programs import PROGRAMS
from hlserve_local.processes import Guard


@asynccontextmanager
async def api_server(*, nodes: int = 0, gpus_per_node: int = 8) -> AsyncIterator[Path]:
    """A real API server with its controllers; the value is the administrator's kubeconfig.

    With `nodes`, a scheduler and that many simulated nodes run too: pods become ready, nothing is in them.
    Raises ClusterError if the programs were not built: a test must not spend minutes on that.
    """
    missing = [name for name in ("kube", "kwok")[: 2 if nodes else 1] if not PROGRAMS[name].cached]
    if missing:
        raise ClusterError(f"Not built yet: {', '.join(missing)}. Run: make cluster-programs PROFILE=api.")
    layout = Layout(Path(tempfile.mkdtemp(prefix="hlserve-api-")))
    guard = Guard(layout.directory)
    daemons: Sequence[Daemon] = ()
    try:
        daemons = await asyncio.to_thread(api_profile.start, layout, nodes=nodes, gpus_per_node=gpus_per_node)
        for daemon in daemons:
            guard.watch(daemon.pid)
        yield layout.admin
    finally:
        await asyncio.to_thread(api_profile.stop, layout)
        for daemon in daemons:
            guard.forget(daemon.pid)
        guard.close()
