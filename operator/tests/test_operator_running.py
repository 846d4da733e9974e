"""The operator as it runs, with kopf, its Lease and all its watches, against a simulated API server and the faults that one can have."""

import asyncio
import base64
import json
from copy import deepcopy
from typing import Any

import pytest
from aiohttp import ClientSession, web

from hlserve_api.generate.crd import object_schema
from hlserve_api.v1alpha1 import GROUP, VERSION, ServingPool
from hlserve_operator.health import Port, serve
from hlserve_operator.keys import ACCESS, pool_key
from hlserve_operator.lease import LEASE_NAME
from hlserve_operator.refs import Ref
from hlserve_operator.resources import CUSTOM_API
from hlserve_operator.run import EndedError, Operator
from hlserve_operator.testing.api_server import WRITES, Simulated, simulated, status
from hlserve_operator.testing.running import CLASS, KEY, POOL, manifest, operator_on, quiet, until

POOL_REF = Ref(CUSTOM_API, "ServingPool", "chat")
KEY_REF = Ref(CUSTOM_API, "ClientKey", "alice")
SERVICE = Ref("v1", "Service", "chat")
TABLE = Ref("v1", "ConfigMap", "hlserve-routing-table")
LEASE = Ref("coordination.k8s.io/v1", "Lease", LEASE_NAME)


def filled(server: Simulated) -> Simulated:
    """With a pool, a class and a key."""
    for text in (POOL, CLASS, KEY):
        server.put(manifest(text))
    return server


def digests(server: Simulated) -> set[str]:
    """Digests in all keyring shards."""
    found: set[str] = set()
    for ref, secret in server.objects.items():
        if ref.kind == "Secret" and ref.name.startswith("hlserve-keyring-"):
            keyring = json.loads(base64.b64decode(secret["data"]["keyring.json"]))
            found |= {entry["digest"] for entry in keyring["keys"]}
    return found


def conditions(server: Simulated, ref: Ref) -> dict[str, str]:
    """Reason by condition type."""
    return {c["type"]: c["reason"] for c in server.objects[ref].get("status", {}).get("conditions", ())}


def deployments(server: Simulated) -> list[dict[str, Any]]:
    """All Deployments."""
    return [found for ref, found in server.objects.items() if ref.kind == "Deployment"]


def all_settled(server: Simulated) -> bool:
    """Everything of pool, class and key is there."""
    return bool(
        len(digests(server)) == 1 and deployments(server) and SERVICE in server.objects and conditions(server, POOL_REF)
    )


async def test_operator_b63_settles_then_writes_nothing_not_even_as_a_new_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no proxy of the environment gets in between."""
    for variable in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    async with simulated() as server:
        filled(server)
        async with operator_on(server) as operator:
            await until(lambda: all_settled(server), "all objects")
            await quiet(server)
            written = server.writes()
            if operator.leading is not None:
                operator.leading.reconciler.resync([pool_key("chat"), ACCESS])
            await quiet(server, 0.3)
            assert server.writes() == written
            assert operator.metrics.text().count(b"hlserve_operator_reconciles_total{") >= 2
        assert server.objects[LEASE]["spec"]["holderIdentity"] == ""
        async with operator_on(server) as second:
            await until(
                lambda: second.leading is not None and "chat" in second.leading.reconciler.pools, "a second run"
            )
            await quiet(server)
            assert server.writes() == written


async def test_operator_repairs_drift_and_leaves_foreign_fields_alone() -> None:
    async with simulated() as server:
        filled(server)
        async with operator_on(server):
            await until(lambda: all_settled(server), "all objects")
            await quiet(server, 0.3)
            server.remove(SERVICE)
            await until(lambda: SERVICE in server.objects, "the Service again")
            deployment = Ref.of(deployments(server)[0])
            server.change(deployment, {"spec": {"template": {"spec": {"enableServiceLinks": True}}}})
            server.change(deployment, {"metadata": {"annotations": {"team": "red"}}})
            await until(
                lambda: server.objects[deployment]["spec"]["template"]["spec"]["enableServiceLinks"] is False, "repair"
            )
            assert server.objects[deployment]["metadata"]["annotations"]["team"] == "red"
            server.remove(TABLE)
            await until(lambda: TABLE in server.objects, "the table again")


async def test_operator_converges_when_every_write_fails_once() -> None:
    """Cut off before it is done, and answered with an error although it was done: no orphan, no duplicate, one key."""
    failed: set[tuple[str, str]] = set()

    def fault(request: web.Request) -> web.StreamResponse | None:
        place = (request.method, request.path)
        if request.method not in WRITES or "/leases" in request.path or place in failed:
            return None
        failed.add(place)
        return status(500, "InternalError", "made to fail")

    async with simulated() as server:
        filled(server)
        server.faults.append(fault)
        async with operator_on(server):
            await until(lambda: all_settled(server), "all objects", 20)
            await quiet(server, 1.5)
            assert len(deployments(server)) == 1
            generated = [ref for ref in server.objects if ref.kind == "Secret" and ref.name == "alice-one"]
            assert len(generated) == 1
            assert len(failed) > 10


async def test_operator_revokes_a_key_whose_deletion_no_watch_told_of() -> None:
    async with simulated() as server:
        filled(server)
        async with operator_on(server):
            await until(lambda: all_settled(server), "all objects")
            server.silent = True
            server.remove(KEY_REF)
            server.silent = False
            server.forget_history()
            server.cut_watches()
            await until(lambda: not digests(server), "an empty keyring", 5)


async def test_operator_notices_a_silent_watch() -> None:
    async with simulated() as server:
        filled(server)
        async with operator_on(server, watch_silence_seconds=0.5):
            await until(lambda: all_settled(server), "all objects")
            server.silent = True
            server.remove(KEY_REF)
            await until(lambda: not digests(server), "an empty keyring", 5)


async def test_operator_obeys_retry_after_and_gets_over_an_outage() -> None:
    refused: list[float] = []
    outage = True

    def fault(request: web.Request) -> web.StreamResponse | None:
        if not outage or "/leases" in request.path:
            return None
        if request.method == "PATCH" and "/configmaps/" in request.path:
            refused.append(asyncio.get_running_loop().time())
            return status(429, "TooManyRequests", headers={"Retry-After": "1"})
        return None

    async with simulated() as server:
        filled(server)
        server.faults.append(fault)
        async with operator_on(server):
            await until(lambda: len(refused) >= 2, "two tries")
            assert refused[1] - refused[0] >= 1.0
            outage = False
            await until(lambda: TABLE in server.objects, "the table")


async def test_operator_says_which_right_it_lacks_and_heals() -> None:
    denied = True

    def fault(request: web.Request) -> web.StreamResponse | None:
        if denied and request.method == "PATCH" and "/poddisruptionbudgets/" in request.path:
            return status(403, "Forbidden", 'cannot patch resource "poddisruptionbudgets"')
        return None

    async with simulated() as server:
        filled(server)
        server.faults.append(fault)
        async with operator_on(server):
            await until(lambda: conditions(server, POOL_REF).get("Ready") == "PermissionDenied", "the condition")
            await until(lambda: len(digests(server)) == 1, "others work on")

            def told() -> list[str]:
                events = [e for r, e in server.objects.items() if r.kind == "Event"]
                return [e["message"] for e in events if e["reason"] == "PermissionDenied"]

            await until(lambda: bool(told()), "the event")
            assert "poddisruptionbudgets" in told()[0]
            await until(lambda: conditions(server, POOL_REF).get("Ready") == "PermissionDenied", "the condition")
            await quiet(server, 0.5)
            assert len(told()) == 1, "once, by the first look and by the next one's condition"
            denied = False
            await until(lambda: conditions(server, POOL_REF).get("Ready") != "PermissionDenied", "healing")


async def test_operator_b82_two_operators_one_writes_and_the_other_takes_over() -> None:
    async with simulated() as server:
        filled(server)
        async with operator_on(server, identity="b"):
            await until(lambda: all_settled(server), "all objects")
            async with operator_on(server, identity="a") as second:
                await quiet(server, 0.3)
                assert second.leading is None
                assert not second.guard.leads
        holder = server.objects[LEASE]["spec"]["holderIdentity"]
        assert holder == ""


async def test_operator_stands_aside_when_the_lease_is_taken_from_it() -> None:
    async with simulated() as server:
        filled(server)
        async with operator_on(server) as operator:
            await until(lambda: all_settled(server), "all objects")
            server.change(LEASE, {"spec": {"holderIdentity": "hlserve/other"}})
            await until(lambda: operator.leading is None, "standing by")
            written = server.writes()
            server.remove(SERVICE)
            await quiet(server, 0.3)
            assert server.writes() == written
            await until(lambda: SERVICE in server.objects, "leading again once the other is silent", 8)


async def test_operator_leaves_a_pool_that_is_being_deleted_alone() -> None:
    async with simulated() as server:
        filled(server)
        async with operator_on(server):
            await until(lambda: all_settled(server), "all objects")
            server.remove(POOL_REF)
            await until(
                lambda: not json.loads(server.objects[TABLE]["data"]["table.json"])["pools"], "a table without it"
            )
            await quiet(server, 0.3)
            assert not deployments(server)


async def broken_stream(server: Simulated) -> None:
    """An operator whose watches all get an ERROR that is no 410."""
    async with operator_on(server) as operator:
        await until(lambda: _kopf_told_of_the_pool(server, operator), "kopf")
        # What it told of comes from a list; the watch begins a moment later.
        async with asyncio.timeout(KOPF_HANGS_SECONDS - 1):
            while operator.leading is not None:
                server.break_watches()
                await asyncio.sleep(0.1)


def _kopf_told_of_the_pool(server: Simulated, operator: Operator) -> bool:
    return operator.leading is not None and operator.leading.sight.knows(server.objects[POOL_REF]["metadata"]["uid"])


KOPF_HANGS_SECONDS = 5.0
"""How long kopf waits, when a stream of it broke, for whatever still runs in its loop."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_operator_ends_when_a_stream_of_kopf_breaks_so_that_the_standby_takes_over_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with simulated() as server:
        filled(server)
        with pytest.raises(EndedError, match="kopf ended"):
            await broken_stream(server)
        assert server.objects[LEASE]["spec"]["holderIdentity"] == ""
    assert "OS signals are ignored" not in caplog.text, "ours are not"


async def test_operator_b84_names_fields_that_an_older_definition_would_drop() -> None:
    async with simulated() as server:
        filled(server)
        older = deepcopy(object_schema(ServingPool))
        older["x-kubernetes-group-version-kind"] = [{"group": GROUP, "version": VERSION, "kind": "ServingPool"}]
        del older["properties"]["spec"]["properties"]["rollout"]
        server.schemas[CUSTOM_API] = {"components": {"schemas": {"pool": older}}}
        async with operator_on(server):
            await until(lambda: conditions(server, POOL_REF).get("Ready") == "PrunedField", "the condition")
        ready = next(c for c in server.objects[POOL_REF]["status"]["conditions"] if c["type"] == "Ready")
        assert "spec.rollout" in ready["message"]


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_operator_port_answers(path: str) -> None:
    port = Port(lambda: "", lambda: "", lambda: b"", lambda _: None)
    runner, number = await serve(port, "127.0.0.1", 0)
    try:
        async with ClientSession() as session, session.get(f"http://127.0.0.1:{number}{path}") as answer:
            assert answer.status == 200
    finally:
        await runner.cleanup()
