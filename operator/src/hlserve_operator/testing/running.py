"""A whole operator in the test's own process, on a simulated API server, with its times scaled down."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import yaml

from hlserve_operator.connect import name_user
from hlserve_operator.run import Operator, operator_of
from hlserve_operator.settings import Settings
from hlserve_operator.testing.api_server import Reachable, api_of

UNTIL_SECONDS = 10.0
FAST = {
    "lease_seconds": 3.0,
    "report_seconds": 0.5,
    "report_urgent_seconds": 0.1,
    "resync_seconds": 600.0,
    "call_seconds": 2.0,
}
"""Settings of tests, in seconds."""
POOL = """
apiVersion: serving.hlserve.io/v1alpha1
kind: ServingPool
metadata: {name: chat}
spec:
  mode: Interactive
  replicas: 2
  model: {name: m, source: {uri: "hf://a/b", revision: c}}
  slo: {ttftMilliseconds: 1000, tpotMilliseconds: 30}
  engine: {image: "registry.example/engine@sha256:0000000000000000000000000000000000000000000000000000000000000000"}
"""
CLASS = """
apiVersion: serving.hlserve.io/v1alpha1
kind: WorkloadClass
metadata: {name: interactive}
spec:
  intent: Interactive
  targets: [{name: chat, poolRef: {name: chat}, role: Primary}]
"""
KEY = """
apiVersion: serving.hlserve.io/v1alpha1
kind: ClientKey
metadata: {name: alice}
spec:
  tenant: red
  workloadClassRef: {name: interactive}
  credentials: [{id: one}]
"""


def manifest(text: str, name: str | None = None) -> dict[str, Any]:
    """A manifest, optionally under another name."""
    found: dict[str, Any] = yaml.safe_load(text)
    if name is not None:
        found["metadata"]["name"] = name
    return found


@asynccontextmanager
async def operator_on(server: Reachable, **settings: Any) -> AsyncIterator[Operator]:
    """An operator that runs until the end of the block. Its own end by a fault is raised there."""
    name_user()
    chosen: Mapping[str, Any] = {**FAST, "namespace": server.namespace, **settings}
    stop = asyncio.Event()
    async with api_of(server) as api:
        operator = operator_of(Settings(**chosen), api.client)
        task = asyncio.create_task(operator.run(stop))
        try:
            yield operator
        finally:
            stop.set()
            await task


async def until(holds: Callable[[], object], what: str = "", seconds: float = UNTIL_SECONDS) -> None:
    """Waits until `holds` gives something true. Raises TimeoutError that says for what it waited."""
    try:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - what is waited for is in another program's state
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise TimeoutError(f"not within {seconds:g} s: {what or holds}") from None


async def quiet(server: Reachable, seconds: float = 0.5) -> None:
    """Waits until nothing was written for `seconds`."""
    seen, since = len(server.writes()), 0.0
    while since < seconds:
        await asyncio.sleep(0.05)
        since += 0.05
        if len(server.writes()) != seen:
            seen, since = len(server.writes()), 0.0
