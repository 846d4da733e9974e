"""Keys on their whole way: a running operator, a simulated API server, and a real router that reads from it."""

import base64
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import pytest

from hlserve_operator.refs import Ref
from hlserve_operator.resources import CUSTOM_API
from hlserve_operator.run import Operator
from hlserve_operator.testing.api_server import Simulated, simulated
from hlserve_operator.testing.running import CLASS, KEY, POOL, manifest, operator_on, quiet, until
from hlserve_router.testing.running import RunningRouter, running_router

KEY_REF = Ref(CUSTOM_API, "ClientKey", "alice")
REVOCATION_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class World:
    """An API server, the operator on it, and a router."""

    server: Simulated
    operator: Operator
    router: RunningRouter

    def status(self, ref: Ref = KEY_REF) -> dict[str, Any]:
        """A stored status; empty if there is none."""
        found: dict[str, Any] = self.server.objects[ref].get("status", {})
        return found

    def is_ready(self, ref: Ref = KEY_REF) -> bool:
        """Whether the condition Ready is True."""
        return any((c["type"], c["status"]) == ("Ready", "True") for c in self.status(ref).get("conditions", ()))

    def reason(self, ref: Ref = KEY_REF) -> str:
        """The reason of the condition Ready."""
        return next((c["reason"] for c in self.status(ref).get("conditions", ()) if c["type"] == "Ready"), "")

    def routable(self) -> str:
        """The reason of the pool's condition Routable."""
        status = self.status(Ref(CUSTOM_API, "ServingPool", "chat"))
        return next((c["reason"] for c in status.get("conditions", ()) if c["type"] == "Routable"), "")

    def key(self, secret: str = "alice-one") -> str:
        """The key in a Secret."""
        return base64.b64decode(self.server.objects[Ref("v1", "Secret", secret)]["data"]["key"]).decode()

    async def call(self, key: str) -> int:
        """The status of a call with the key."""
        answer = await self.router.http.get(f"{self.router.url}/v1/models", headers={"authorization": f"Bearer {key}"})
        return answer.status_code

    async def answers(self, key: str, wanted: int) -> float:
        """Calls until the status is the wanted one; seconds that it took. Raises AssertionError after `REVOCATION_SECONDS`."""
        began = monotonic()
        while (got := await self.call(key)) != wanted:
            assert monotonic() - began < REVOCATION_SECONDS, f"still {got}"
        return monotonic() - began


@asynccontextmanager
async def world(folder: Path, *keys: dict[str, Any]) -> AsyncIterator[World]:
    """A pool, a class, these keys, and a router that the operator can ask."""
    (folder / "token").write_text("t")
    async with simulated() as server:
        for each in (manifest(POOL), manifest(CLASS), *keys):
            server.put(each)
        settings = {
            "kubernetes": True, "kubernetes_server": server.address, "kubernetes_token_file": folder / "token",
            "namespace": server.namespace, "keyring_shards": 4, "kubernetes_retry_max_seconds": 0.1,
        }  # fmt: skip
        async with running_router(folder, None, settings=settings) as router:
            server.put(a_router_pod())
            port = urlsplit(router.admin_url).port
            async with operator_on(server, router_admin_port=port) as operator:
                yield World(server, operator, router)


def a_router_pod(name: str = "router-0") -> dict[str, Any]:
    labels = {"app.kubernetes.io/instance": "hlserve", "app.kubernetes.io/component": "router"}
    status = {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "status": status}


def with_credentials(*ids: str) -> dict[str, Any]:
    return {"spec": {"credentials": [{"id": each} for each in ids]}}


async def test_a_made_key_works_is_suspended_and_revoked_within_seconds(tmp_path: Path) -> None:
    async with world(tmp_path, manifest(KEY)) as here:
        await until(here.is_ready, "the key is ready")
        assert here.status()["syncedRouters"] == "1/1"
        await until(lambda: here.routable() == "RouterSynced", "the pool knows it too, without a resync")
        here.server.remove(Ref("v1", "Pod", "router-0"))
        await until(lambda: here.routable() == "NoRouter", "the router is gone")
        here.server.put(a_router_pod())
        await until(lambda: here.routable() == "RouterSynced", "it is there again")
        key = here.key()
        assert await here.call(key) == 200
        for suspended, wanted in ((True, 403), (False, 200)):
            here.server.change(KEY_REF, {"spec": {"suspended": suspended}})
            await here.answers(key, wanted)
        await until(here.is_ready, "the key is ready again")
        here.server.remove(KEY_REF)
        await here.answers(key, 401)


async def test_b44_a_rotation_refuses_no_valid_key(tmp_path: Path) -> None:
    async with world(tmp_path, manifest(KEY)) as here:
        await until(here.is_ready, "the key is ready")
        old = here.key()
        here.server.change(KEY_REF, with_credentials("one", "two"))
        await until(lambda: len(here.status()["credentials"]) == 2 and here.is_ready(), "both are known")
        new = here.key("alice-two")
        assert (await here.call(old), await here.call(new)) == (200, 200)
        here.server.change(KEY_REF, with_credentials("two"))
        await here.answers(old, 401)
        assert await here.call(new) == 200
        await until(lambda: Ref("v1", "Secret", "alice-one") not in here.server.objects, "the old Secret is gone")


async def test_b85_a_secrets_new_content_is_live_within_seconds(tmp_path: Path) -> None:
    key = manifest(KEY)
    key["spec"]["credentials"][0]["secretRef"] = {"name": "mine", "key": "key"}
    async with world(tmp_path, key) as here:
        await until(lambda: here.reason() == "SecretMissing", "it is told")
        for text in ("hls_first_Xv7QpR2mW9sKd4TzLb8Ny3", "hls_second_Xv7QpR2mW9sKd4TzLb8Ny3"):
            data = {"key": base64.b64encode(text.encode()).decode()}
            here.server.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mine"}, "data": data})
            await here.answers(text, 200)
        assert await here.call("hls_first_Xv7QpR2mW9sKd4TzLb8Ny3") == 401
        await until(here.is_ready, "the key is ready")
        here.server.remove(Ref("v1", "Secret", "mine"))
        await here.answers("hls_second_Xv7QpR2mW9sKd4TzLb8Ny3", 401)


async def test_a_lost_made_secret_is_not_made_anew(tmp_path: Path) -> None:
    async with world(tmp_path, manifest(KEY)) as here:
        await until(here.is_ready, "the key is ready")
        here.server.remove(Ref("v1", "Secret", "alice-one"))
        await until(lambda: here.reason() == "SecretMissing", "it is told")
        await quiet(here.server)
        assert Ref("v1", "Secret", "alice-one") not in here.server.objects


async def test_no_key_is_told_anywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not in logs, events, statuses, documents or metrics: only in its own Secret."""
    caplog.set_level(logging.DEBUG)
    async with world(tmp_path, manifest(KEY), manifest(KEY, "bob")) as here:
        await until(here.is_ready, "the key is ready")
        here.server.change(KEY_REF, with_credentials("one", "two"))
        await until(lambda: len(here.status()["credentials"]) == 2 and here.is_ready(), "both are known")
        keys = [here.key(), here.key("alice-two"), here.key("bob-one")]
        objects = {ref: found for ref, found in here.server.objects.items() if ref.name not in KEY_SECRETS}
        told = [caplog.text, json.dumps(list(objects.values())), here.operator.metrics.text().decode()]
        documents = [base64.b64decode(text).decode() for found in objects.values() if found["kind"] == "Secret"
                     for text in found["data"].values()]  # fmt: skip
        assert documents
        for key in keys:
            assert key.startswith("hls_")
            for text in (*told, *documents):
                assert key not in text
                assert base64.b64encode(key.encode()).decode() not in text


KEY_SECRETS = ("alice-one", "alice-two", "bob-one")
