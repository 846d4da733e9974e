"""A release of the chart with our images in a namespace of its own, as tests install it."""

import asyncio
import base64
import contextlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from hlserve_cluster import images
from hlserve_cluster.api import Object
from hlserve_cluster.charts import CHARTS, RELEASE, Values, helm
from hlserve_cluster.kubectl import Kubectl, KubectlError
from hlserve_cluster.target import Target
from hlserve_operator.render.metadata import POOL_LABEL

SMALL: Final = {"requests": {"cpu": "10m", "memory": "64Mi"}}
"""Requests of pods that share a developer's machine."""

CLIENT: Final = "client"
"""Pod from which tests send requests."""

CALL: Final = (Path(__file__).parent / "in_pod" / "call.py").read_text(encoding="utf-8")
READY_SECONDS: Final = 120


def values(**more: Any) -> dict[str, Any]:
    """Values for images that lie on the node. Values of `more` replace whole top-level ones."""
    return {
        "image": {"registry": "localhost", "tag": images.TAG, "pullPolicy": "Never"},
        "engine": {"image": images.reference("sim")},
        "operator": {"resources": SMALL},
        "router": {"resources": SMALL},
        **more,
    }


def idle_pod(name: str, **labels: str) -> dict[str, Any]:
    """A pod that does nothing until a test runs a program in it."""
    container = {
        "name": "python",
        "image": images.reference("sim"),
        "imagePullPolicy": "Never",
        "command": ["sleep", "infinity"],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name, **labels}},
        "spec": spec,
    }


class Release:
    """One namespace with a release of the chart."""

    def __init__(self, target: Target, namespace: str) -> None:
        self.kubectl = Kubectl(target, namespace)
        self.namespace = namespace
        self.url = f"http://{RELEASE}-router.{namespace}.svc"

    async def helm(self, *arguments: str, values: Values | None = None, version: int = 4, namespace: str = "") -> str:
        """What Helm prints, by default for our namespace. Raises ChartError with its words."""
        target = self.kubectl.target
        aimed = (*arguments, f"--namespace={namespace or self.namespace}", f"--kube-context={target.context}")
        return await asyncio.to_thread(
            partial(helm, *aimed, values=values, version=version, kubeconfig=target.kubeconfig)
        )

    async def deploy(self, action: str, given: Values, *, version: int = 4) -> str:
        """Install or upgrade, and wait until operator and routers are ready. Returns Helm's notes. Raises ChartError."""
        wait = ("--wait", f"--timeout={READY_SECONDS}s")
        return await self.helm(action, RELEASE, str(CHARTS / "hlserve"), *wait, values=given, version=version)

    async def create(self, given: Values) -> None:
        """Make definitions, namespace, release and the pod that tests call from."""
        definitions = f"{RELEASE}-crds"
        await self.helm("upgrade", "--install", definitions, str(CHARTS / definitions), namespace="default")
        await self.kubectl.apply(namespace(self.namespace))
        await self.deploy("install", given)
        await self.kubectl.apply(idle_pod(CLIENT))
        await self.kubectl.run("wait", "--for=condition=Ready", f"pod/{CLIENT}", f"--timeout={READY_SECONDS}s")

    async def delete(self) -> None:
        """Delete the namespace with all in it, and wait for that. Harmless if it is gone.

        The namespace controller looks again only after half of the longest grace period that a pod had (Kubernetes v1.34.4,
        `namespace_controller.go`), or when the namespace changes: so it is changed once the pods are gone.
        """
        name, limit = self.namespace, f"--timeout={READY_SECONDS}s"
        await self.kubectl.run("delete", "namespace", name, "--ignore-not-found", "--wait=false")
        await self.kubectl.run("wait", "--for=delete", "pods", "--all", limit)
        with contextlib.suppress(KubectlError):
            await self.kubectl.run("annotate", "namespace", name, "hlserve.io/pods=gone")
        await self.kubectl.run("wait", "--for=delete", f"namespace/{name}", limit)

    async def ready(self, kind: str, *names: str) -> None:
        """Wait until pools, classes or keys are Ready. Raises KubectlError."""
        wanted = [f"{kind}/{name}" for name in names]
        await self.kubectl.run("wait", "--for=condition=Ready", *wanted, f"--timeout={READY_SECONDS}s")

    async def key(self, secret: str) -> str:
        """The client key that a Secret holds."""
        data: Mapping[str, str] = (await self.kubectl.get("secret", secret))["data"]
        return base64.b64decode(data["key"]).decode()

    async def engines(self, pool: str) -> dict[str, Any]:
        """A pool's engine pods by UID."""
        found = await self.kubectl.items("pods", f"{POOL_LABEL}={pool}")
        return {pod["metadata"]["uid"]: pod for pod in found}

    async def call(
        self, url: str, key: str = "", *, method: str = "GET", body: Object | None = None, pod: str = CLIENT
    ) -> dict[str, Any]:
        """Send a request from a pod: `status`, `headers` and `text`, or `failed`."""
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        text = json.dumps(body) if body is not None else ""
        answer: dict[str, Any] = json.loads(
            await self.kubectl.python(pod, CALL, method, url, json.dumps(headers), text)
        )
        return answer


def namespace(name: str, **labels: str) -> Object:
    """A namespace that enforces what engines meet: SGLang's image runs as root, which `restricted` refuses."""
    enforced = {"pod-security.kubernetes.io/enforce": "baseline", **labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": enforced}}
