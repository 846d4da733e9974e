"""Clients for the simulator's tests."""

from collections.abc import AsyncIterator

import httpx
import pytest


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client without a default server."""
    async with httpx.AsyncClient(timeout=30.0) as client:
        yield client
