"""kubectl for tests, aimed at one cluster by its name: it never follows whatever the environment says."""

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from typing import Any, Final

from hlserve_cluster import programs
from hlserve_cluster.api import Object
from hlserve_cluster.errors import ClusterError
from hlserve_cluster.target import Target

TIMEOUT_SECONDS: Final = 120.0


class KubectlError(ClusterError):
    """kubectl refuses; the message is what it says."""


class Kubectl:
    """kubectl on one namespace of a cluster."""

    def __init__(self, target: Target, namespace: str) -> None:
        self.target = target
        self.namespace = namespace

    async def run(self, *arguments: str, body: object = None, timeout_seconds: float = TIMEOUT_SECONDS) -> str:
        """What kubectl prints; `body` becomes its standard input as JSON. Raises KubectlError with its words, or TimeoutError."""
        text = None if body is None else json.dumps(body).encode()
        process = await self.start(*arguments, with_input=text is not None)
        try:
            output, errors = await asyncio.wait_for(process.communicate(text), timeout_seconds)
        except BaseException:
            process.kill()
            await process.wait()
            raise
        if process.returncode:
            raise KubectlError((errors + output).decode(errors="replace").strip())
        return output.decode(errors="replace")

    async def start(self, *arguments: str, with_input: bool = False) -> Process:
        """Start kubectl; the caller ends it."""
        named = [f"--kubeconfig={self.target.kubeconfig}", f"--context={self.target.context}"]
        command = [str(programs.kubectl()), *named, f"--namespace={self.namespace}", *arguments]
        given = PIPE if with_input else asyncio.subprocess.DEVNULL
        return await asyncio.create_subprocess_exec(*command, stdin=given, stdout=PIPE, stderr=PIPE)

    async def apply(self, *objects: Object) -> None:
        """Apply objects. Raises KubectlError if the server refuses one."""
        await self.run("apply", "-f", "-", body={"apiVersion": "v1", "kind": "List", "items": list(objects)})

    async def get(self, kind: str, name: str) -> Any:
        """An object. Raises KubectlError if there is none."""
        return json.loads(await self.run("get", kind, name, "-o", "json"))

    async def items(self, kind: str, selector: str = "") -> list[Any]:
        """The objects of a kind, those of a label selector if one is given."""
        found: list[Any] = json.loads(await self.run("get", kind, f"--selector={selector}", "-o", "json"))["items"]
        return found

    async def python(self, pod: str, program: str, *arguments: str) -> str:
        """Run a Python program in a pod's first container: what it prints. Raises KubectlError if it fails."""
        return await self.run("exec", pod, "--", "python3", "-c", program, *arguments)
