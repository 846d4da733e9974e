"""Fixtures of the router's tests."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from hlserve_router.testing.running import Face
from hlserve_router.testing.stage import Stage


@pytest.fixture(params=list(Face), ids=lambda face: f"face {face}")
def face(request: pytest.FixtureRequest) -> Face:
    """Every test that takes a router runs on every face."""
    chosen: Face = request.param
    return chosen


@pytest.fixture
async def stage(tmp_path: Path, face: Face) -> AsyncIterator[Stage]:
    """Where a test sets up its engines and routers."""
    async with AsyncExitStack() as stack:
        yield Stage(tmp_path, face, stack)
