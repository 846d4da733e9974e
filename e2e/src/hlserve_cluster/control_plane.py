"""Command lines of etcd, the API server, controllers and scheduler. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hlserve_cluster.layout import Layout

SERVICES: Final = "198.19.0.0/20"
"""Addresses of Services: of the range that RFC 2544 sets apart for tests, so that no network of the machine is hidden."""

API_SERVICE: Final = "198.19.0.1"
"""Address of the Service `kubernetes.default`."""

DOMAIN: Final = "cluster.local"

ETCD_CLIENTS: Final = "unix://etcd:1"
"""A socket in the state folder named `etcd:1`: nobody else can reach the store, and no port is taken."""

ETCD_PEERS: Final = "unix://etcd:2"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the API server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"https://{self.host}:{self.port}"


def api_hosts(address: Address) -> list[str]:
    """Names and addresses in the API server's certificate."""
    service = "kubernetes.default.svc"
    names = ["localhost", "kubernetes", "kubernetes.default", service, f"{service}.{DOMAIN}"]
    return [*names, "127.0.0.1", API_SERVICE, address.host]


def etcd(program: str) -> list[str]:
    """The store. It lives as long as its cluster, so it need not wait for the disk."""
    return [
        program,
        "--name=only",
        "--data-dir=etcd",
        f"--listen-client-urls={ETCD_CLIENTS}",
        f"--advertise-client-urls={ETCD_CLIENTS}",
        f"--listen-peer-urls={ETCD_PEERS}",
        f"--initial-advertise-peer-urls={ETCD_PEERS}",
        f"--initial-cluster=only={ETCD_PEERS}",
        "--unsafe-no-fsync",
        "--logger=zap",
        # Without it the API server ends a watch that names no version after 3 s: etcd 3.4 tells idle watchers no progress.
        "--experimental-watch-progress-notify-interval=500ms",
    ]


def api_server(program: Path, layout: Layout, address: Address, extra: Sequence[str] = ()) -> list[str]:
    """The API server, with the authorization and admission of a real cluster."""
    return [
        str(program),
        f"--etcd-servers={ETCD_CLIENTS}",
        f"--bind-address={address.host}",
        f"--secure-port={address.port}",
        f"--advertise-address={address.host}",
        f"--service-cluster-ip-range={SERVICES}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--anonymous-auth=false",
        "--allow-privileged=true",
        "--profiling=false",
        # etcd 3.4 cannot be asked for progress, which a list as a stream needs: refused that way, clients wait ever longer
        # before they try again, for half a minute in the end. Refused by this gate they list at once.
        "--feature-gates=WatchList=false",
        f"--client-ca-file={layout.certificate('ca')}",
        f"--tls-cert-file={layout.certificate('apiserver')}",
        f"--tls-private-key-file={layout.key('apiserver')}",
        f"--service-account-key-file={layout.certificate('service-accounts')}",
        f"--service-account-signing-key-file={layout.key('service-accounts')}",
        f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
        # Aggregated APIs (a metrics API for HPA) trust the API server by these.
        f"--requestheader-client-ca-file={layout.certificate('front-proxy-ca')}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={layout.certificate('front-proxy')}",
        f"--proxy-client-key-file={layout.key('front-proxy')}",
        *extra,
    ]


def controller_manager(program: Path, layout: Layout, extra: Sequence[str] = ()) -> list[str]:
    """All controllers that need no cloud: Deployments, garbage collection, quotas, HPA."""
    return [
        str(program),
        f"--kubeconfig={layout.kubeconfig('controller-manager')}",
        f"--service-account-private-key-file={layout.key('service-accounts')}",
        f"--root-ca-file={layout.certificate('ca')}",
        f"--cluster-signing-cert-file={layout.certificate('ca')}",
        f"--cluster-signing-key-file={layout.key('ca')}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--secure-port=0",
        *extra,
    ]


def scheduler(program: Path, layout: Layout) -> list[str]:
    """The default scheduler."""
    return [
        str(program),
        f"--kubeconfig={layout.kubeconfig('scheduler')}",
        "--leader-elect=false",
        "--secure-port=0",
    ]


def kwok(program: Path, layout: Layout) -> list[str]:
    """Plays the kubelet of every node that carries the annotation `kwok.x-k8s.io/node=fake`: its pods become ready, none runs."""
    return [
        str(program),
        f"--kubeconfig={layout.admin}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--node-lease-duration-seconds=40",
        "--server-address=127.0.0.1:0",
        "--cidr=198.18.128.0/17",
    ]
