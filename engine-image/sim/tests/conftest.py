"""Clients for the simulator's tests."""

from collections.abc import AsyncIterator

import httpx
import pytest


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client without a default server."""
    # Plain HTTP only: loading the certificates would take longer than most tests.
    async with httpx.AsyncClient(timeout=30.0, verify=False) as client:
        yield client
