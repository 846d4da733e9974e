"""The profile `full`, started and ended by this module: pods, DNS, Services, NetworkPolicy, and nothing left afterwards. Needs root."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hlserve_cluster import full_profile, images, node, programs, residue
from hlserve_cluster.daemons import Daemons
from hlserve_cluster.layout import Layout, state_directory

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

GPUS = 4
REFUSED = {7, 28}
"""Exit statuses of curl: it could not connect, it waited too long."""
RULES_SECONDS = 30.0
BACKGROUND_SECONDS = 15.0
"""The kernel and runtimes take apart in the background what nobody uses any more."""
STATE = tuple[Layout, dict[str, frozenset[str]]]


@pytest.fixture(scope="module")
def started() -> Iterator[STATE]:
    """A cluster that is up, with the image of the simulated engine, and the machine as it was before."""
    layout = Layout(state_directory("full"))
    if Daemons(layout).known():
        pytest.fail(
            "A cluster is up, and this module starts and ends one itself. Run: make cluster-down.", pytrace=False
        )
    if not images.archive_file("sim").exists():
        pytest.fail("The image sim was not built. Run: make images.", pytrace=False)
    before = residue.snapshot()
    try:
        full_profile.start(layout, gpus=GPUS)
        images.load(layout, ["sim"])
        yield layout, before
    finally:
        full_profile.stop(layout)


@pytest.fixture(scope="module")
def kubectl(started: STATE) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the cluster's own kubectl; `body` becomes its standard input as JSON."""

    def run(*arguments: str, body: object = None) -> subprocess.CompletedProcess[str]:
        command = [str(programs.kubectl()), f"--kubeconfig={started[0].admin}", *arguments]
        text = json.dumps(body) if body is not None else None
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=90)

    return run


def pod(name: str, app: str, command: list[str], gpus: int = 0) -> dict[str, Any]:
    """A pod of the simulated engine's image, restricted as the project's own pods are."""
    container = {
        "name": "c",
        "image": images.reference("sim"),
        "imagePullPolicy": "Never",
        "command": command,
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True},
    }
    if command == SERVE:
        container["readinessProbe"] = {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1}
    metadata = {"name": name, "labels": {"app": app}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


SERVE = ["python3", "-c", "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000)"]
REST = ["sleep", "infinity"]


@pytest.fixture(scope="module")
def pods(kubectl: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Two web servers behind Services, of which only pods of the app `router` may reach one, and two clients. Returns kubectl."""
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "only-router"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "router"}}}]}],
        },
    }
    items = [
        pod("web", "web", SERVE, gpus=3),
        pod("open", "open", SERVE),
        pod("router", "router", REST),
        pod("stranger", "stranger", REST),
        service("web"),
        service("open"),
        policy,
    ]
    made = kubectl("apply", "-f", "-", body={"apiVersion": "v1", "kind": "List", "items": items})
    assert made.returncode == 0, made.stderr
    waited = kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
    assert waited.returncode == 0, waited.stdout + waited.stderr
    # Rules of Services and policies follow a pod's readiness, a second or so later.
    deadline = time.monotonic() + RULES_SECONDS
    while (answer := ask(kubectl, "router")).returncode:
        assert time.monotonic() < deadline, answer.stderr
    return kubectl


def service(app: str) -> dict[str, Any]:
    """A Service of an app's pods."""
    spec = {"selector": {"app": app}, "ports": [{"port": 80, "targetPort": 8000}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": app}, "spec": spec}


def ask(kubectl: Callable[..., subprocess.CompletedProcess[str]], client: str) -> subprocess.CompletedProcess[str]:
    """Let a pod ask the web server by its Service's name."""
    code = "import urllib.request as u; print(u.urlopen('http://web.default.svc.cluster.local', timeout=3).status)"
    return kubectl("exec", client, "--", "python3", "-c", code)


def test_a_pod_reaches_another_by_the_name_of_its_service(
    pods: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """DNS, kube-proxy and the pod network carry a request."""
    assert ask(pods, "router").stdout.strip() == "200"


def test_a_network_policy_is_enforced(pods: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """A pod that the policy does not name is refused."""
    answer = ask(pods, "stranger")
    assert answer.returncode != 0
    assert "refused" in answer.stderr or "timed out" in answer.stderr


def test_a_pod_that_wants_more_gpus_than_are_left_waits(pods: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Simulated GPUs are counted as real ones: three of four are taken."""
    pods("apply", "-f", "-", body=pod("greedy", "greedy", REST, gpus=2))
    waited = pods("wait", "--for=jsonpath={.status.conditions[0].reason}=Unschedulable", "pod/greedy", "--timeout=20s")
    assert waited.returncode == 0, waited.stderr
    assert "Insufficient nvidia.com/gpu" in pods("describe", "pod", "greedy").stdout


def test_logs_come_from_the_kubelet(pods: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """The API server reaches the kubelet with a certificate of its own."""
    assert '"GET / HTTP/1.1" 200' in pods("logs", "web").stdout


def test_the_machine_reaches_a_service_without_a_forwarder(
    pods: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """Addresses of Services are routed to the node."""
    deadline = time.monotonic() + RULES_SECONDS
    while (answer := from_machine(pods, "open")).returncode:
        assert time.monotonic() < deadline, answer.stderr
    assert answer.stdout.endswith("200")


def test_the_machine_is_no_exception_from_a_network_policy(
    pods: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """It stands outside of the node, so a policy that does not name it refuses it."""
    answer = from_machine(pods, "web")
    assert answer.stdout == "000"
    assert answer.returncode in REFUSED, answer.stderr


def from_machine(
    kubectl: Callable[..., subprocess.CompletedProcess[str]], app: str
) -> subprocess.CompletedProcess[str]:
    """Ask a Service by its address, from outside of every pod."""
    address = kubectl("get", "service", app, "-o", "jsonpath={.spec.clusterIP}").stdout
    command = ["curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", "5", "--write-out", "%{http_code}"]
    return subprocess.run(
        [*command, "--output", "/dev/null", f"http://{address}/"], capture_output=True, text=True, check=False
    )


def test_up_twice_is_harmless(started: STATE) -> None:
    """The second one says so and starts nothing."""
    before = Daemons(started[0]).known()
    command = [sys.executable, "-m", "hlserve_cluster", "up"]
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (again.returncode, "is up already" in again.stdout) == (0, True), again.stderr
    assert Daemons(started[0]).known() == before


def test_down_leaves_the_machine_as_it_was(
    started: STATE, pods: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Kernel settings, rules, sets, mounts, namespaces, cgroups, interfaces: with pods running, and a second time with none."""
    layout, before = started
    assert pods("get", "pods", "-o", "name").stdout
    full_profile.stop(layout)
    deadline = time.monotonic() + BACKGROUND_SECONDS
    while (left := residue.difference(before, residue.snapshot())) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == {}
    assert not layout.directory.exists()
    assert not [line for line in _command_lines() if str(layout.directory) in line]
    full_profile.stop(layout)


def _command_lines() -> Iterator[str]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield file.read_text(errors="replace").replace("\0", " ")
        except OSError:
            continue


def test_the_nodes_addresses_are_of_the_range_for_tests() -> None:
    """RFC 2544 sets 198.18.0.0/15 apart: no network that the machine talks to is hidden by the cluster's routes."""
    assert {address.split(".")[0] for address in (node.PODS, node.DNS_SERVICE, node.HOST_ADDRESS)} == {"198"}
