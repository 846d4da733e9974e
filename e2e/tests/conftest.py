"""One running stack for each module of tests that can share it: real engines, real router, ports of their own."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from hlserve_local.stack import Stack
from hlserve_local.testing.manifests import base, write_folder


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small good manifests."""
    return write_folder(tmp_path_factory.mktemp("manifests"), base())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(manifests: Path) -> AsyncIterator[Stack]:
    """A stack that serves `manifests` and follows their changes."""
    async with Stack(manifests, watch=True) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A plain HTTP client."""
    async with httpx.AsyncClient(timeout=30, trust_env=False) as opened:
        yield opened
