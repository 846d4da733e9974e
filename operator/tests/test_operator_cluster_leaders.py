"""Several operators on one namespace of a real API server: one writes, and it is never in doubt which."""

import asyncio
from pathlib import Path

import pytest

from hlserve_operator.refs import Ref
from hlserve_operator.testing.process import kubeconfig, process
from hlserve_operator.testing.real import CHAT, Namespace, becomes
from hlserve_operator.testing.running import POOL, manifest, quiet, until

pytestmark = pytest.mark.cluster
LEASE = Ref("coordination.k8s.io/v1", "Lease", "hlserve-operator")
SERVICE = Ref("v1", "Service", "chat")
LEASE_SECONDS = 3


async def test_operator_cluster_leader_that_stood_still_writes_nothing_when_it_goes_on(
    namespace: Namespace, tmp_path: Path
) -> None:
    """It is paused for two Leases in the midst of its work; another takes over; when it goes on it must see that first."""
    await namespace.create(manifest(POOL))
    way = await namespace.way()
    async with process(kubeconfig(tmp_path, way), namespace.name, f"--lease-seconds={LEASE_SECONDS}") as first:
        await becomes(lambda: namespace.find(SERVICE), "it leads")
        # So that there is something to write at the very moment it goes on.
        for number in range(5):
            await namespace.patch(CHAT, {"metadata": {"labels": {"edit": str(number)}}})
        first.pause()
        await namespace.delete(SERVICE)
        async with namespace.operator(lease_seconds=LEASE_SECONDS) as (second, other):
            await until(lambda: second.leading is not None, "the other leads", 20)
            await becomes(lambda: namespace.find(SERVICE), "the Service again")
            await asyncio.sleep(2 * LEASE_SECONDS)
            written = way.writes()
            await namespace.delete(SERVICE)
            first.resume()
            await becomes(lambda: namespace.find(SERVICE), "the Service again")
            await until(lambda: first.says("lost the Lease") or first.says("standing by"), "it knows", 20)
            await quiet(other, 1.0)
            assert way.writes() == written, "the old leader wrote nothing"
            assert second.leading is not None
        await namespace.delete(SERVICE)
        await becomes(lambda: namespace.find(SERVICE), "the first leads again")
        assert len(way.writes()) > len(written)


async def test_operator_cluster_standby_takes_over_at_once_when_the_leader_is_told_to_end(
    namespace: Namespace, tmp_path: Path
) -> None:
    await namespace.create(manifest(POOL))
    way = await namespace.way()
    config = kubeconfig(tmp_path, way)
    async with process(config, namespace.name) as first:
        await becomes(lambda: namespace.find(SERVICE), "it leads")
        async with namespace.operator(lease_seconds=15.0) as (second, _):
            loop = asyncio.get_running_loop()
            began = loop.time()
            assert await first.end() == 0
            await until(lambda: second.leading is not None, "the other leads", 10)
            assert loop.time() - began < 10, "it did not wait for the Lease to run out"
    assert not first.says("Traceback")


async def test_operator_cluster_second_release_in_a_namespace_yields_and_says_so(
    namespace: Namespace, tmp_path: Path
) -> None:
    await namespace.create(manifest(POOL))
    async with namespace.operator() as (operator, _):
        await becomes(lambda: namespace.find(SERVICE), "the first works")
        way = await namespace.way()
        async with process(kubeconfig(tmp_path, way), namespace.name, "--release=other") as second:
            await until(lambda: second.says("the release hlserve has an operator in namespace"), "it says why", 20)
            assert second.says(f"{namespace.name} already, so this one of other does nothing")
            await quiet(way, 1.0)
            assert way.writes() == []
            assert operator.leading is not None


async def test_operator_cluster_clocks_of_machines_do_not_matter(namespace: Namespace) -> None:
    """The record says that it was renewed half a minute ago, or will be: only that it changes counts."""
    await namespace.create(manifest(POOL))
    for year in ("1999", "2999"):
        async with namespace.operator(lease_seconds=LEASE_SECONDS, identity="a") as (operator, _):
            await until(lambda operator=operator: operator.leading is not None, "it leads", 20)  # type: ignore[misc]
            time = f"{year}-01-01T00:00:00.000000Z"
            async with namespace.operator(lease_seconds=LEASE_SECONDS, identity="b") as (second, way):
                for _ in range(4):
                    await namespace.patch(LEASE, {"spec": {"renewTime": time, "acquireTime": time}})
                    await asyncio.sleep(1)
                assert operator.guard.leads
                assert second.leading is None
                assert way.writes() == []
