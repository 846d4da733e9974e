"""The profile `full`: a node that runs pods, in namespaces of its own, with GPUs that are simulated on its status."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from hlserve_cluster import archive, control_plane, node, programs, sandbox, sysctls
from hlserve_cluster.api import Api
from hlserve_cluster.api_profile import start_control_plane
from hlserve_cluster.control_plane import Address
from hlserve_cluster.daemons import Daemons
from hlserve_cluster.errors import ClusterError
from hlserve_cluster.gpus import gpu_labels, gpu_status
from hlserve_cluster.layout import Layout
from hlserve_cluster.pki import COMPONENTS, write_certificates, write_kubeconfig

ADDRESS: Final = Address(node.NODE_ADDRESS, node.API_PORT)
CONTEXT: Final = "hlserve-cluster"
PROGRAMS: Final = ("helm-4", "helm-3", "pause", "kube", "coredns", "kube-router")
NODE_SECONDS: Final = 90.0
RUNTIME_SECONDS: Final = 30.0


def start(layout: Layout, *, gpus: int) -> None:
    """Start the cluster in an empty state folder. Raises ClusterError when a part does not come up; nothing of it is left then."""
    if any(layout.directory.is_relative_to(hidden) for hidden in sandbox.HIDDEN):
        raise ClusterError(f"The state folder may not lie below {', '.join(sandbox.HIDDEN)}: set XDG_STATE_HOME.")
    layout.create()
    try:
        _start(layout, gpus)
    except BaseException:
        stop(layout)
        raise


def stop(layout: Layout) -> None:
    """End the cluster, set back what it changed on the machine and delete its folder. Harmless if there is none."""
    daemons = Daemons(layout)
    known = daemons.known()
    sandbox.destroy(next((daemon for daemon in known if daemon.name == sandbox.FIRST), None), daemons)
    daemons.stop(*(daemon for daemon in known if daemon.name != sandbox.FIRST), grace_seconds=0)
    sysctls.restore(layout)
    shutil.rmtree(layout.directory, ignore_errors=True)


def _start(layout: Layout, gpus: int) -> None:
    daemons = Daemons(layout)
    kube = programs.PROGRAMS["kube"].folder
    sysctls.keep(layout)
    authority = write_certificates(layout, control_plane.api_hosts(ADDRESS), (*COMPONENTS, *node.USERS))
    authority.issue(layout, node.KUBELET, [node.NODE, node.NODE_ADDRESS])
    write_kubeconfig(layout, node.KUBELET.name, ADDRESS.url, CONTEXT)
    node.write(layout)
    # Entering a mount namespace leads to its root folder.
    inside = [*sandbox.create(daemons), "env", f"--chdir={layout.directory}"]
    runtime = daemons.start("containerd", node.containerd(layout), prefix=inside)
    start_control_plane(
        daemons,
        layout,
        ADDRESS,
        context=CONTEXT,
        scheduler=True,
        users=(*COMPONENTS, *node.USERS),
        prefix=inside,
        api_extra=node.api_server_options(layout),
    )
    daemons.wait("containerd", RUNTIME_SECONDS, lambda: _answers(layout), runtime)
    import_pause_image(layout)
    kubelet = daemons.start("kubelet", node.kubelet(kube / "kubelet", layout), prefix=inside)
    daemons.start("kube-proxy", node.kube_proxy(kube / "kube-proxy", layout), prefix=inside)
    with Api(layout, ADDRESS.url) as api:
        for path, body in node.dns_objects():
            api.apply(path, body)
        dns = daemons.start("coredns", node.coredns(programs.path("coredns"), layout), prefix=inside)
        daemons.wait("The node", NODE_SECONDS, lambda: _node_ready(api), kubelet)
        add_gpus(api, gpus)
        # It ends at once if its Node does not exist yet.
        policies = node.kube_router(programs.path("kube-router"), layout)
        firewall = daemons.start("kube-router", policies, prefix=inside)
        ready = f"http://{node.GATEWAY}:8181/ready"
        check = ["curl", "--silent", "--fail", "--noproxy", "*", ready]
        daemons.wait("DNS", NODE_SECONDS, lambda: _succeeds(check), dns, firewall)


def add_gpus(api: Api, count: int) -> None:
    """Give the node simulated GPUs."""
    path = f"/api/v1/nodes/{node.NODE}"
    base = {"apiVersion": "v1", "kind": "Node"}
    api.apply(path, {**base, "metadata": {"name": node.NODE, "labels": gpu_labels()}})
    body = {**base, "metadata": {"name": node.NODE}, "status": gpu_status(count)}
    api.apply(path, body, subresource="status")


def import_image(layout: Layout, archive_file: Path) -> None:
    """Give an image in a docker-archive to the node. Raises ClusterError with containerd's words."""
    command = [
        "ctr",
        "--address",
        str(node.socket(layout)),
        "--namespace",
        "k8s.io",
        "images",
        "import",
        str(archive_file),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"containerd refused {archive_file.name}: {done.stderr.strip()}")


def import_pause_image(layout: Layout) -> None:
    """The image of every pod's sandbox: one static program."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "pause.tar"
        archive.write_single_program(file, programs.path("pause"), node.PAUSE_IMAGE)
        import_image(layout, file)


def _answers(layout: Layout) -> bool:
    return _succeeds(["ctr", "--address", str(node.socket(layout)), "version"])


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _node_ready(api: Api) -> bool:
    if not api.ok(f"/api/v1/nodes/{node.NODE}"):
        return False
    conditions = api.get(f"/api/v1/nodes/{node.NODE}")["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
