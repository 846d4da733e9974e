"""`/hlserve/drain` on the admin port: readiness fails, what runs goes on, and it can be undone."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from hlserve_router.admin import admin_app
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_pool, a_table
from hlserve_router.testing.engine import scripted_engine
from hlserve_router.testing.process import plain_client, router_process
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import DONE, ORDINARY, begun_until, delta
from hlserve_router.testing.stage import Stage

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
HEADERS = {"authorization": f"Bearer {AGENT_KEY}"}


async def ready(router: RunningRouter) -> tuple[int, str]:
    answer = await router.http.get(f"{router.url}/readyz")
    return answer.status_code, answer.json()["status"]


@pytest.mark.parametrize(
    ("method", "query", "body"),
    [("DELETE", "", None), ("POST", "?cancel", None), ("POST", "?cancel=true", None), ("POST", "", {"drain": False})],
    ids=["DELETE", "cancel", "cancel=true", "the engines' form"],
)
async def test_a_drain_fails_readiness_keeps_streams_and_can_be_undone(
    stage: Stage, method: str, query: str, body: dict[str, bool] | None
) -> None:
    release = asyncio.Event()
    engine = await stage.engine(begun_until(release))
    router = await stage.router(a_table(a_pool("agents", engine.url), a_class("agent", "agents")))
    url = f"{router.admin_url}/hlserve/drain"
    stream = asyncio.create_task(router.post(CHAT, {**NS, "stream": True}))
    await engine.wait_for(lambda: engine.open_sessions == 1)
    assert (await router.http.post(url)).json() == {"draining": True, "inFlight": 1}
    assert await ready(router) == (503, "draining")
    assert (await router.http.get(f"{router.url}/healthz")).status_code == 200
    report = (await router.http.get(f"{router.admin_url}/v1/report")).json()
    assert report["routerDraining"] is True
    assert (await router.post(CHAT, NS)).status_code == 200  # load balancers take a moment to notice
    undone = await router.http.request(method, url + query, json=body)
    assert undone.json()["draining"] is False
    assert await ready(router) == (200, "ok")
    release.set()
    assert (await stream).content == delta("A") + DONE


async def test_an_end_that_has_begun_cannot_be_undone(stage: Stage) -> None:
    engine = await stage.engine(ORDINARY)
    router = await stage.router(a_table(a_pool("agents", engine.url), a_class("agent", "agents")))
    router.router.stopping = True
    assert (await router.http.delete(f"{router.admin_url}/hlserve/drain")).json()["draining"] is True
    assert await ready(router) == (503, "draining")


async def test_the_token_guards_it_and_is_read_again(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("opensesame\n")
    engine = await stage.engine(ORDINARY)
    table = a_table(a_pool("agents", engine.url), a_class("agent", "agents"))
    router = await stage.router(table, admin_token_file=tmp_path / "token")
    url = f"{router.admin_url}/hlserve/drain"

    async def status(token: str | None) -> int:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return (await router.http.post(url, headers=headers)).status_code

    assert [await status(token) for token in (None, "x", AGENT_KEY)] == [401, 401, 401]
    assert await ready(router) == (200, "ok")
    assert await status("opensesame") == 200
    router.write("token", "renewed")
    assert [await status(token) for token in ("opensesame", "renewed")] == [401, 200]
    (tmp_path / "token").unlink()
    assert await status("renewed") == 200
    assert (await router.http.post(f"{router.url}/hlserve/drain", headers=HEADERS)).status_code == 404


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"drain": 1}'])
async def test_a_body_that_says_neither_is_refused(stage: Stage, body: bytes) -> None:
    router = await stage.router(a_table(a_pool("agents"), a_class("agent", "agents")))
    answer = await router.http.post(f"{router.admin_url}/hlserve/drain", content=body)
    assert (answer.status_code, answer.json()["detail"][:12]) == (400, "Send no body")
    assert await ready(router) == (200, "ok")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("::1", 200),
        ("::ffff:127.0.0.1", 200),
        ("10.0.0.9", 403),
        ("fd00::9", 403),
        ("testclient", 403),
    ],
)
async def test_without_a_token_only_the_own_machine_may_drain(stage: Stage, host: str, status: int) -> None:
    router = await stage.router(a_table(a_pool("agents"), a_class("agent", "agents")))
    app: FastAPI = admin_app(router.router)
    transport = httpx.ASGITransport(app, client=(host, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as http:
        assert (await http.post("/hlserve/drain")).status_code == status
        assert (await http.get("/v1/report")).status_code == 200


async def test_every_worker_is_drained_also_one_that_is_started_later(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("opensesame")
    options = ("--workers", "2", "--admin-token-file", str(tmp_path / "token"))
    token = {"authorization": "Bearer opensesame"}

    async def status() -> int:
        return (await admin.get(f"{router.admin_url}/readyz")).status_code

    async def workers_up() -> int:
        up: int = (await admin.get(f"{router.admin_url}/healthz")).json()["workersUp"]
        return up

    def replaced() -> bool:
        return len(router.children()) == 2 and router.children() != former

    async with (
        scripted_engine(ORDINARY) as engine,
        router_process(tmp_path, engine.url, *options) as router,
        plain_client() as admin,
    ):
        url = f"{router.admin_url}/hlserve/drain"
        assert await status() == 200
        assert (await admin.head(f"{router.admin_url}/readyz")).status_code == 200
        assert (await admin.post(url)).status_code == 401
        assert (await admin.post(url, headers=token)).json() == {"draining": True, "inFlight": 0}
        assert await status() == 503
        report = (await admin.get(f"{router.admin_url}/v1/report", headers=token)).json()
        assert report["routerDraining"] is True
        former = router.children()
        os.kill(former[0], signal.SIGKILL)
        async with asyncio.timeout(20):
            while not replaced() or await workers_up() < 2:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.05)
        assert await status() == 503
        assert (await admin.delete(url, headers=token)).json()["draining"] is False
        assert await status() == 200
        assert await router.end() == 0
        log = await router.log()
    assert "opensesame" not in log
    warnings = [line for line in map(json.loads, log.splitlines()) if line["level"] == "warning"]
    assert [line for line in warnings if line["message"] == "worker not told"] == []
