"""The one node: its addresses, its configuration files, its command lines and the objects that it needs. Pure but for `write`."""

from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Final

from hlserve_cluster.api import Object
from hlserve_cluster.control_plane import DOMAIN, SERVICES
from hlserve_cluster.layout import SOURCES, Layout
from hlserve_cluster.pki import Identity

# All addresses are of the range that RFC 2544 sets apart for tests: no network of the machine is hidden by them.
PODS: Final = "198.18.0.0/24"
GATEWAY: Final = "198.18.0.1"
"""The node's address on the bridge of its pods; DNS answers there."""
DNS_SERVICE: Final = "198.19.0.10"
HOST_ADDRESS: Final = "198.18.255.1"
"""The machine's end of the cable to the node."""
NODE_ADDRESS: Final = "198.18.255.2"
"""The node's end: the API server, the kubelet and NodePorts are reached there."""
API_PORT: Final = 6443

NODE: Final = "hlserve-node"
BRIDGE: Final = "pods0"
PAUSE_IMAGE: Final = "localhost/hlserve/pause:1"
CGROUP: Final = "/hlserve-cluster"
"""The pods' cgroups lie below it, apart from those of another kubelet."""
CNI_PROGRAMS: Final = "/usr/lib/cni"

USERS: Final = (Identity("proxy", "system:kube-proxy"), Identity("dns", "hlserve-dns"))
KUBELET: Final = Identity("kubelet", f"system:node:{NODE}", "system:nodes")

_FILES: Final = {
    "containerd.toml": "containerd.toml",
    "cni.json": "cni/10-pods.conflist",
    "kubelet.yaml": "kubelet.yaml",
    "proxy.yaml": "proxy.yaml",
    "Corefile": "Corefile",
}


def write(layout: Layout) -> None:
    """Write the node's configuration, from the templates in `e2e/cluster/config`."""
    values = {
        "state": str(layout.directory),
        "pods": PODS,
        "gateway": GATEWAY,
        "dns_service": DNS_SERVICE,
        "node": NODE,
        "node_address": NODE_ADDRESS,
        "bridge": BRIDGE,
        "pause_image": PAUSE_IMAGE,
        "cgroup": CGROUP,
        "cni_programs": CNI_PROGRAMS,
        "domain": DOMAIN,
    }
    for source, target in _FILES.items():
        file = layout.directory / target
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Template((SOURCES / "config" / source).read_text()).substitute(values))
    # Pods are to resolve the cluster's names and no others: the node has no way out.
    (layout.directory / "resolv.conf").write_text("")


def socket(layout: Layout) -> Path:
    """containerd's socket."""
    return layout.directory / "containerd.sock"


def containerd(layout: Layout) -> list[str]:
    """The container runtime."""
    return ["containerd", "--config", str(layout.directory / "containerd.toml")]


def kubelet(program: Path, layout: Layout) -> list[str]:
    """The kubelet."""
    return [
        str(program),
        f"--config={layout.directory / 'kubelet.yaml'}",
        f"--kubeconfig={layout.kubeconfig('kubelet')}",
        f"--root-dir={layout.directory / 'kubelet'}",
        f"--hostname-override={NODE}",
        f"--node-ip={NODE_ADDRESS}",
        "--v=1",
    ]


def kube_proxy(program: Path, layout: Layout) -> list[str]:
    """Services, by iptables."""
    return [str(program), f"--config={layout.directory / 'proxy.yaml'}"]


def coredns(program: Path, layout: Layout) -> list[str]:
    """DNS of the cluster's names, as a process of the node behind the Service `kube-dns`."""
    return [str(program), "-conf", str(layout.directory / "Corefile")]


def kube_router(program: Path, layout: Layout) -> list[str]:
    """NetworkPolicy, by iptables and ipset; kube-router's other two parts stay off."""
    return [
        str(program),
        f"--kubeconfig={layout.admin}",
        f"--hostname-override={NODE}",
        "--run-router=false",
        "--run-service-proxy=false",
        "--run-firewall=true",
        f"--service-cluster-ip-range={SERVICES}",
        "--metrics-port=0",
        "--iptables-sync-period=1m",
    ]


def api_server_options(layout: Layout) -> list[str]:
    """How the API server reaches the kubelet, for logs, exec and port-forward."""
    return [
        f"--kubelet-client-certificate={layout.certificate('admin')}",
        f"--kubelet-client-key={layout.key('admin')}",
        f"--kubelet-certificate-authority={layout.certificate('ca')}",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def dns_objects() -> Iterator[tuple[str, Object]]:
    """Paths and objects that make CoreDNS the cluster's DNS."""
    rbac = "rbac.authorization.k8s.io"
    name = "hlserve-dns"
    read = ["list", "watch"]
    yield (
        f"/apis/{rbac}/v1/clusterroles/{name}",
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": [
                {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": read},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
            ],
        },
    )
    yield (
        f"/apis/{rbac}/v1/clusterrolebindings/{name}",
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": name}],
        },
    )
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    yield (
        "/api/v1/namespaces/kube-system/services/kube-dns",
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns"},
            "spec": {"clusterIP": DNS_SERVICE, "ports": ports},
        },
    )
    yield (
        "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices/kube-dns",
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "kube-dns", "labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": [{"addresses": [GATEWAY], "conditions": {"ready": True}}],
        },
    )
