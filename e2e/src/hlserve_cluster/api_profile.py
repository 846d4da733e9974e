"""The profile `api`: etcd, API server, controllers, and on demand a scheduler with nodes that kwok plays. Needs no privilege."""

import shutil
import socket
from collections.abc import Sequence
from typing import Final

from hlserve_cluster import control_plane, programs
from hlserve_cluster.api import Api
from hlserve_cluster.commands import need
from hlserve_cluster.control_plane import Address
from hlserve_cluster.daemons import Daemon, Daemons
from hlserve_cluster.gpus import kwok_node
from hlserve_cluster.layout import Layout
from hlserve_cluster.pki import COMPONENTS, Identity, write_certificates, write_kubeconfig

READY_SECONDS: Final = 60.0
"""An API server alone on two cores needs 4 s; this leaves room for a busy machine."""

NODES_SECONDS: Final = 30.0

_UNREACHABLE: Final = ("--endpoint-reconciler-type=none",)
"""No pod can reach a loopback address, so the Service `kubernetes` gets no endpoint (and may get none of that kind)."""

PROGRAMS: Final = ("helm-4", "kube", "kwok")
"""What the profile runs, and kubectl for people."""


def free_address() -> Address:
    """A port of the loopback address that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return Address("127.0.0.1", int(listener.getsockname()[1]))


def start(
    layout: Layout, *, nodes: int = 0, gpus_per_node: int = 8, context: str = "hlserve-api"
) -> tuple[Daemon, ...]:
    """Start an API server with its controllers in an empty state folder, and write `layout.admin`.

    With `nodes`, that many simulated nodes of `gpus_per_node` GPUs each are ready for pods when this returns.
    Raises ClusterError when something does not come up; nothing of it runs then.
    """
    layout.create()
    address = free_address()
    daemons = Daemons(layout)
    try:
        write_certificates(layout, control_plane.api_hosts(address), COMPONENTS)
        start_control_plane(daemons, layout, address, context=context, scheduler=nodes > 0, api_extra=_UNREACHABLE)
        if nodes:
            _start_nodes(daemons, layout, address, nodes, gpus_per_node)
    except BaseException:
        daemons.stop(*reversed(daemons.known()), grace_seconds=0)
        raise
    return daemons.known()


def stop(layout: Layout) -> None:
    """End what runs in the state folder and delete the folder. Harmless if there is none."""
    daemons = Daemons(layout)
    # Nothing of it is kept, so nothing need end in order.
    daemons.stop(*reversed(daemons.known()), grace_seconds=0)
    shutil.rmtree(layout.directory, ignore_errors=True)


def start_control_plane(
    daemons: Daemons,
    layout: Layout,
    address: Address,
    *,
    context: str,
    scheduler: bool,
    users: Sequence[Identity] = COMPONENTS,
    prefix: Sequence[str] = (),
    api_extra: Sequence[str] = (),
    controller_extra: Sequence[str] = (),
) -> None:
    """Start etcd, API server, controllers and, if asked, the scheduler, and wait until a namespace has its service account."""
    for user in users:
        write_kubeconfig(layout, user.name, address.url, context)
    kube = programs.PROGRAMS["kube"].folder
    store = daemons.start("etcd", control_plane.etcd(need("etcd")), prefix=prefix)
    server = daemons.start(
        "apiserver", control_plane.api_server(kube / "kube-apiserver", layout, address, api_extra), prefix=prefix
    )
    with Api(layout, address.url) as api:
        daemons.wait("The API server", READY_SECONDS, lambda: api.ok("/readyz"), store, server)
        managed = control_plane.controller_manager(kube / "kube-controller-manager", layout, controller_extra)
        manager = daemons.start("controller-manager", managed, prefix=prefix)
        if scheduler:
            daemons.start("scheduler", control_plane.scheduler(kube / "kube-scheduler", layout), prefix=prefix)
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        daemons.wait("The default service account", READY_SECONDS, lambda: api.ok(account), server, manager)


def _start_nodes(daemons: Daemons, layout: Layout, address: Address, count: int, gpus: int) -> None:
    player = daemons.start("kwok", control_plane.kwok(programs.path("kwok"), layout))
    with Api(layout, address.url) as api:
        for index in range(count):
            api.create("/api/v1/nodes", kwok_node(index, gpus))

        def ready() -> bool:
            nodes = api.get("/api/v1/nodes?resourceVersion=0")["items"]
            return sum(_usable(node) for node in nodes) >= count

        daemons.wait("A simulated node", NODES_SECONDS, ready, player)


def _usable(node: dict[str, object]) -> bool:
    status, spec = node.get("status"), node.get("spec")
    conditions = status.get("conditions", []) if isinstance(status, dict) else []
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and not (spec.get("taints") if isinstance(spec, dict) else None)
