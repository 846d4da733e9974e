"""The charts on a real API server: what it accepts, what an upgrade keeps, what an uninstall leaves. Pods are simulated there."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from hlserve_cluster import programs
from hlserve_cluster.charts import CHARTS, VERSIONS, helm
from hlserve_cluster.testing import api_server
from hlserve_local.testing.manifests import client_key, workload_class

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]
SMALL = {"requests": {"cpu": "10m", "memory": "16Mi"}}
VALUES: dict[str, Any] = {
    "operator": {"resources": SMALL},
    "router": {"resources": SMALL},
    "valkey": {"enabled": True, "persistence": {"enabled": False}},
    "ingress": {"enabled": True, "hosts": ["a.example"]},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kubeconfig() -> AsyncIterator[Path]:
    """A server with one simulated node and the definitions."""
    async with api_server(nodes=1) as found:
        await chart(found, "install", "hlserve-crds", str(CHARTS / "hlserve-crds"))
        yield found


async def chart(kubeconfig: Path, *arguments: str, values: Any = None, version: int = 4) -> str:
    """Run Helm against the server."""
    return await asyncio.to_thread(partial(helm, *arguments, values=values, version=version, kubeconfig=kubeconfig))


async def kubectl(kubeconfig: Path, *arguments: str, body: object = None) -> str:
    """Run kubectl; `body` becomes its standard input. Its output, also of a failure."""
    command = [str(programs.kubectl()), f"--kubeconfig={kubeconfig}", *arguments]
    text = None if body is None else json.dumps(body)
    done = await asyncio.to_thread(subprocess.run, command, input=text, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


async def made(kubeconfig: Path, namespace: str, kind: str, *names: str) -> Any:
    """Objects as JSON."""
    return json.loads(await kubectl(kubeconfig, "-n", namespace, "get", kind, *names, "-o", "json"))


@pytest.mark.parametrize("version", VERSIONS)
async def test_chart_installs_upgrades_and_uninstalls_and_keeps_what_it_should(kubeconfig: Path, version: int) -> None:
    namespace = f"serving-{version}"
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": restricted}}
    await kubectl(kubeconfig, "create", "-f", "-", body=body)
    release = ("hlserve", str(CHARTS / "hlserve"), "-n", namespace, "--wait", "--timeout=90s")

    notes = await chart(kubeconfig, "install", *release, values=VALUES, version=version)
    assert "MISSING" not in notes
    pods = (await made(kubeconfig, namespace, "pods"))["items"]
    assert len(pods) == 5, "operators, routers and Valkey, all of them allowed under `restricted`"
    secrets = await made(kubeconfig, namespace, "secrets", "hlserve-admin-token", "hlserve-valkey")
    before = [each["data"] for each in secrets["items"]]

    for kind in (workload_class("interactive", "Interactive", ["chat"]), client_key("chat-app", "interactive")):
        assert "created" in await kubectl(kubeconfig, "-n", namespace, "create", "-f", "-", body=kind)

    changed = {**VALUES, "router": {"resources": SMALL, "autoscaling": {"enabled": True, "minReplicas": 2}}}
    await chart(kubeconfig, "upgrade", *release, values=changed, version=version)
    await kubectl(kubeconfig, "-n", namespace, "scale", "deployment/hlserve-router", "--replicas=3")
    await chart(kubeconfig, "upgrade", *release, values=changed, version=version)
    router = await made(kubeconfig, namespace, "deployment", "hlserve-router")
    assert router["spec"]["replicas"] == 3, "what an autoscaler has set is not set back"
    secrets = await made(kubeconfig, namespace, "secrets", "hlserve-admin-token", "hlserve-valkey")
    assert [each["data"] for each in secrets["items"]] == before, "an upgrade makes no new token and no new password"

    await chart(kubeconfig, "uninstall", "hlserve", "-n", namespace, "--wait", version=version)
    assert (await made(kubeconfig, namespace, "deployments"))["items"] == []
    assert len((await made(kubeconfig, namespace, "clientkeys,workloadclasses"))["items"]) == 2


@pytest.mark.parametrize(
    ("account", "allowed", "refused"),
    [
        (
            "hlserve-operator",
            (
                "patch servingpools/status.serving.hlserve.io",
                "create deployments.apps",
                "watch secrets",
                "update leases.coordination.k8s.io/hlserve-operator",
            ),
            (
                "update leases.coordination.k8s.io/other",
                "create pods",
                "get nodes",
                "create roles.rbac.authorization.k8s.io",
                "patch servingpools.serving.hlserve.io",
            ),
        ),
        (
            "hlserve-router",
            (
                "watch secrets/hlserve-keyring-3",
                "list endpointslices.discovery.k8s.io",
                "get configmaps/hlserve-routing-table",
            ),
            ("watch secrets/hlserve-keyring-4", "list secrets", "get secrets/hlserve-admin-token", "get pods"),
        ),
    ],
    ids=["operator", "router"],
)
async def test_chart_accounts_may_do_their_work_and_no_more(
    kubeconfig: Path, account: str, allowed: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    rendered = [
        each
        for each in yaml.safe_load_all(helm("template", "hlserve", str(CHARTS / "hlserve"), "-n", "default"))
        if each
    ]
    roles = [each for each in rendered if each["kind"] in ("Role", "RoleBinding", "ServiceAccount")]
    await kubectl(kubeconfig, "apply", "-f", "-", body={"apiVersion": "v1", "kind": "List", "items": roles})
    user = f"--as=system:serviceaccount:default:{account}"
    for right in (*allowed, *refused):
        verb, target = right.split()
        what = ["--subresource=status", target.replace("/status", "")] if "/status" in target else [target]
        answer = await kubectl(kubeconfig, "-n", "default", "auth", "can-i", user, verb, *what)
        assert answer.splitlines()[0] == ("yes" if right in allowed else "no"), right


async def test_chart_definitions_stay_when_their_release_goes(kubeconfig: Path) -> None:
    await chart(kubeconfig, "upgrade", "hlserve-crds", str(CHARTS / "hlserve-crds"))
    await chart(kubeconfig, "uninstall", "hlserve-crds")
    names = await kubectl(kubeconfig, "get", "crd", "-l", "app.kubernetes.io/part-of=hlserve", "-o", "name")
    assert len(names.split()) == 3
