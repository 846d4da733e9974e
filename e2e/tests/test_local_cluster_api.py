"""The profile `api`: a real API server that starts in seconds, several at once, and nothing of it afterwards."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hlserve_cluster import programs
from hlserve_cluster.testing import api_server
from hlserve_local.testing.waiting import eventually, is_gone

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


async def kubectl(kubeconfig: Path, *arguments: str, body: object = None) -> subprocess.CompletedProcess[str]:
    """Run the cluster's own kubectl; `body` becomes its standard input as JSON."""
    command = [str(programs.kubectl()), f"--kubeconfig={kubeconfig}", *arguments]
    text = json.dumps(body) if body is not None else None
    return await asyncio.to_thread(subprocess.run, command, input=text, capture_output=True, text=True, check=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kubeconfig() -> AsyncIterator[Path]:
    """A server with two simulated nodes of four GPUs."""
    async with api_server(nodes=2, gpus_per_node=4) as found:
        yield found


def deployment(name: str, replicas: int, gpus: int) -> dict[str, Any]:
    """Pods that ask for GPUs."""
    container = {"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


async def test_pods_are_placed_by_gpus_and_the_rest_waits_with_the_schedulers_reason(kubeconfig: Path) -> None:
    """Two nodes of four hold two pods of three: the third is told why it waits."""
    await kubectl(kubeconfig, "apply", "-f", "-", body=deployment("trio", 3, 3))

    async def ready() -> bool:
        answer = await kubectl(kubeconfig, "get", "deployment", "trio", "-o", "jsonpath={.status.readyReplicas}")
        return answer.stdout == "2"

    await eventually(ready, "two pods ready", 30)

    async def refused() -> bool:
        return "Insufficient nvidia.com/gpu" in (await kubectl(kubeconfig, "get", "events")).stdout

    await eventually(refused, "the third pod's reason", 30)


async def test_the_servers_controllers_and_apply_are_real(kubeconfig: Path) -> None:
    """Two field managers that want different values conflict, as in production; deleting an owner deletes what it owns."""
    await kubectl(kubeconfig, "apply", "--server-side", "--field-manager=a", "-f", "-", body=deployment("owned", 1, 0))
    other = deployment("owned", 2, 0)
    answer = await kubectl(kubeconfig, "apply", "--server-side", "--field-manager=b", "-f", "-", body=other)
    assert 'conflict with "a"' in answer.stderr
    await kubectl(kubeconfig, "delete", "deployment", "owned", "--wait=false")

    async def collected() -> bool:
        return "owned" not in (await kubectl(kubeconfig, "get", "replicasets,pods", "-o", "name")).stdout

    await eventually(collected, "garbage collected", 30)


async def test_nobody_without_a_certificate_gets_in(kubeconfig: Path) -> None:
    """No anonymous reader, although only this machine can reach the port."""
    server = (await kubectl(kubeconfig, "config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")).stdout
    assert server.startswith("https://127.0.0.1:")
    command = ["curl", "--silent", "--insecure", "--noproxy", "*", "--write-out", "%{http_code}", f"{server}/api"]
    answer = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert answer.stdout.endswith("401")


async def test_a_second_server_beside_it_knows_nothing_of_the_first(kubeconfig: Path) -> None:
    """Each test may have its own; when its block ends, no process and no folder is left."""
    async with api_server() as second:
        folder = second.parent
        assert (await kubectl(second, "get", "nodes", "-o", "name")).stdout == ""
        assert "kwok-0" in (await kubectl(kubeconfig, "get", "nodes", "-o", "name")).stdout
        pids = [int(file.read_text().split()[0]) for file in (folder / "run").iterdir()]
        assert len(pids) == 3
    assert not folder.exists()
    assert all(is_gone(pid) for pid in pids)


async def test_the_servers_of_a_killed_test_run_end_with_it() -> None:
    """SIGKILL leaves a test process no time to clean up; its API server goes all the same."""
    code = (
        "import asyncio\nfrom hlserve_cluster.testing import api_server\n"
        "async def main():\n  async with api_server() as found:\n    print(found, flush=True); await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    folder = Path((await process.stdout.readline()).decode().strip()).parent
    pids = [int(file.read_text().split()[0]) for file in (folder / "run").iterdir()]
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await eventually(lambda: all(is_gone(pid) for pid in pids) and not folder.exists(), "all ended", 20)
