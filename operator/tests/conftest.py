"""A real API server for the tests of the operator that share one, and a namespace of it for each test."""

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hlserve_cluster.charts import render
from hlserve_cluster.testing import api_server
from hlserve_operator.testing.real import Namespace, Server, install, namespace_of, server_of

_NUMBERS = count()
_RIGHTS = ("ServiceAccount", "Role", "RoleBinding")


@pytest.fixture(scope="session")
def definitions() -> list[dict[str, Any]]:
    """The chart's custom resource definitions."""
    return list(render(chart="hlserve-crds"))


@pytest.fixture(scope="session")
def rights() -> list[dict[str, Any]]:
    """The chart's account of the operator: what its Role allows, and no more."""
    found = [each for each in render() if each["kind"] in _RIGHTS and each["metadata"]["name"].endswith("-operator")]
    assert len(found) == len(_RIGHTS)
    return found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kubeconfig(definitions: list[dict[str, Any]]) -> AsyncIterator[Path]:
    """A server with two simulated nodes of 64 GPUs, and the definitions."""
    async with api_server(nodes=2, gpus_per_node=64) as found:
        async with server_of(found) as server:
            await install(server, definitions)
        yield found


@pytest_asyncio.fixture
async def server(kubeconfig: Path) -> AsyncIterator[Server]:
    """The shared server, in the administrator's hands."""
    async with server_of(kubeconfig) as found:
        yield found


@pytest_asyncio.fixture
async def namespace(server: Server, rights: list[dict[str, Any]]) -> AsyncIterator[Namespace]:
    """A new namespace with the operator's rights in it; what is in it is deleted afterwards."""
    async with namespace_of(server, f"serving-{next(_NUMBERS)}", rights) as found:
        yield found
