"""Calls, the Lease and watches against a simulated API server: refusals, hanging, outages, clocks."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from hlserve_operator.errors import (
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    NotLeaderError,
    ThrottledError,
    UnavailableError,
)
from hlserve_operator.lease import LeaseGuard, LeaseTimes
from hlserve_operator.refs import Ref
from hlserve_operator.testing.api_server import Simulated, api_of, simulated, status
from hlserve_operator.testing.running import until
from hlserve_operator.watching import Change, Reflector, Rhythm, Watched

MAP = Ref("v1", "ConfigMap", "m")


def config_map(**data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data}


# --- API errors


@pytest.mark.parametrize(
    ("code", "headers", "want"),
    [
        pytest.param(404, {}, NotFoundError, id="no such object"),
        pytest.param(409, {}, ConflictError, id="it changed"),
        pytest.param(403, {}, ForbiddenError, id="no right"),
        pytest.param(401, {}, UnavailableError, id="the token is refused"),
        pytest.param(410, {}, GoneError, id="too old"),
        pytest.param(422, {}, InvalidError, id="refused as it is"),
        pytest.param(429, {"Retry-After": "7"}, ThrottledError, id="too many"),
        pytest.param(503, {"Retry-After": "7"}, ThrottledError, id="busy"),
        pytest.param(503, {}, UnavailableError, id="not there"),
        pytest.param(500, {}, UnavailableError, id="internal"),
    ],
)
async def test_api_refusals_are_errors_by_what_to_do(code: int, headers: dict[str, str], want: type[Exception]) -> None:
    async with simulated() as server, api_of(server) as api:
        counted: list[str] = []
        api.on_error = counted.append
        server.faults.append(lambda _: status(code, "Reason", "the words of the server", headers))
        with pytest.raises(want, match="the words of the server") as raised:
            await api.apply(config_map(a="b"))
        assert len(counted) == 1
        assert api.writes == 0
        if isinstance(raised.value, ThrottledError):
            assert raised.value.retry_after_seconds == 7


async def test_api_does_not_wait_for_an_answer_for_ever() -> None:
    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", hang)
    runner = web.AppRunner(application, shutdown_timeout=0.01, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = Simulated(address=f"http://127.0.0.1:{runner.addresses[0][1]}")
    async with api_of(server, call_seconds=0.1) as api:
        with pytest.raises(UnavailableError, match=r"did not answer within 0\.1 s"):
            await api.get(MAP)
    await runner.cleanup()


async def test_api_lists_page_by_page_and_names_kinds() -> None:
    async with simulated() as server, api_of(server) as api:
        for number in range(501):
            server.put({**config_map(), "metadata": {"name": f"m{number}", "labels": {"a": "b"}}})
        server.put(config_map())
        listing = await api.list("v1", "ConfigMap", labels="a=b")
        assert len(listing.items) == 501
        assert {(item["apiVersion"], item["kind"]) for item in listing.items} == {("v1", "ConfigMap")}
        assert len([path for _, path in server.requests if path.endswith("/configmaps")]) == 2


async def test_api_deletes_only_the_object_that_is_meant() -> None:
    async with simulated() as server, api_of(server) as api:
        server.put(config_map())
        with pytest.raises(ConflictError):
            await api.delete(MAP, uid="another")
        assert await api.delete(MAP, uid=server.objects[MAP]["metadata"]["uid"])
        assert not await api.delete(MAP)


async def test_api_writes_nothing_without_the_lease() -> None:
    def refuse() -> None:
        raise NotLeaderError("no")

    async with simulated() as server, api_of(server) as api:
        api.before_write = refuse
        for write in (
            api.apply(config_map()),
            api.create(config_map()),
            api.delete(MAP),
            api.merge_patch(MAP, {}),
            api.scale(MAP, 1),
            api.apply_status(MAP, "u", {}),
        ):
            with pytest.raises(NotLeaderError):
                await write
        assert not server.requests


# --- Lease

TIMES = LeaseTimes(duration_seconds=0.6, renew_deadline_seconds=0.4, retry_seconds=0.05)


async def test_lease_a_leader_without_answers_stops_before_another_may_begin() -> None:
    async with simulated() as server, api_of(server, call_seconds=0.1) as one, api_of(server) as two:
        first, second = LeaseGuard(one, "r/one", TIMES), LeaseGuard(two, "r/two", TIMES)
        await first.acquire()
        held = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(0.7)
        assert first.leads
        assert not waiting.done(), "a leader that renews keeps the Lease"
        one.client.configuration.host = "http://127.0.0.1:9"
        await until(lambda: not first.leads, "the end of leading")
        assert not waiting.done()
        with pytest.raises(NotLeaderError):
            first.check()
        await waiting
        second.check()
        await held
        with pytest.raises(NotLeaderError):
            first.check()


async def test_lease_is_given_away_at_the_end() -> None:
    async with simulated() as server, api_of(server) as api:
        first, second = LeaseGuard(api, "r/one", TIMES), LeaseGuard(api, "r/two", TIMES)
        await first.acquire()
        await first.release()
        assert not first.leads
        async with asyncio.timeout(0.3):
            await second.acquire()
        await first.release()
        assert second.leads


async def test_lease_two_releases_in_a_namespace_the_second_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with simulated() as server, api_of(server) as api:
        first, second = LeaseGuard(api, "red/one", TIMES), LeaseGuard(api, "blue/two", TIMES)
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await until(lambda: "release red has an operator in namespace serving already" in caplog.text, "the sentence")
        waiting.cancel()


@pytest.mark.parametrize("hours", [-48, 0, 48])
async def test_lease_clocks_of_other_machines_do_not_count(hours: int) -> None:
    async with simulated() as server, api_of(server) as api:
        spec = {
            "holderIdentity": "r/other",
            "leaseDurationSeconds": 1,
            "renewTime": datetime.fromtimestamp(1.8e9 + hours * 3600, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        server.put(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "hlserve-operator"},
                "spec": spec,
            }
        )
        guard = LeaseGuard(api, "r/one", TIMES)
        began = asyncio.get_running_loop().time()
        await guard.acquire()
        assert asyncio.get_running_loop().time() - began >= 1.0, "the other's own duration counts"


# --- watches


def follow(api: Any, told: list[tuple[str, Any, Any]], **rhythm: float) -> Reflector[str]:
    def changed_(change: Change[str]) -> None:
        told.append((change.name, change.before, change.after))

    def keep(found: dict[str, Any]) -> str:
        return str(found.get("data", {}).get("a", ""))

    return Reflector(api, Watched("v1", "ConfigMap"), keep, changed_, Rhythm(retry_first_seconds=0.01, **rhythm))


async def test_watch_tells_what_came_changed_and_went() -> None:
    async with simulated() as server, api_of(server) as api:
        told: list[tuple[str, Any, Any]] = []
        server.put(config_map(a="1"))
        reflector = follow(api, told)
        task = asyncio.create_task(reflector.run())
        await reflector.synced()
        server.change(MAP, {"data": {"a": "2"}})
        server.change(MAP, {"data": {"b": "ignored"}})
        await until(lambda: len(told) == 2)
        server.remove(MAP)
        await until(lambda: len(told) == 3)
        assert told == [("m", None, "1"), ("m", "1", "2"), ("m", "2", None)]
        task.cancel()


async def test_watch_b65_finds_a_missed_deletion_after_410_silence_and_close() -> None:
    async with simulated() as server, api_of(server) as api:
        told: list[tuple[str, Any, Any]] = []
        reflector = follow(api, told, silence_seconds=0.2)
        task = asyncio.create_task(reflector.run())
        await reflector.synced()
        for hide in ("silent", "gone", "closed"):
            server.put(config_map(a="1"))
            await until(lambda: "m" in reflector.objects, hide)
            server.silent = True
            server.remove(MAP)
            if hide == "gone":
                server.forget_history()
            if hide != "silent":
                server.cut_watches()
            await until(lambda: "m" not in reflector.objects, hide)
            server.silent = False
        task.cancel()


async def test_watch_keeps_the_copy_while_the_api_server_is_away_and_waits_for_a_kind_that_is_absent() -> None:
    async with simulated() as server, api_of(server) as api:
        told: list[tuple[str, Any, Any]] = []
        server.put(config_map(a="1"))
        reflector = follow(api, told, absent_seconds=0.05)
        task = asyncio.create_task(reflector.run())
        await reflector.synced()
        server.faults.append(lambda _: status(503, "Unavailable"))
        server.cut_watches()
        await until(lambda: reflector.restarts > 2)
        assert reflector.objects == {"m": "1"}
        server.faults[:] = [lambda _: status(404, "NotFound")]
        await until(lambda: reflector.absent)
        server.faults.clear()
        await until(lambda: not reflector.absent)
        assert reflector.objects == {"m": "1"}
        task.cancel()
