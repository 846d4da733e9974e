"""The link to engines: their key, their CA, the name in their certificates; nothing of it reaches a client, nor the reverse."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hlserve_api.routing import EngineCredential, EngineCredentials, EngineTrust
from hlserve_router.testing.certificates import Authority
from hlserve_router.testing.cluster import Pod
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_pool, a_table
from hlserve_router.testing.engine import ScriptedEngine, Session
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import DONE, ORDINARY, begun_until, delta, event
from hlserve_router.testing.stage import Stage

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
ENGINE_KEY = "sk-engine-0123456789"


def document(*, api_key: str = "", ca: str | None = None, server_name: str = "", pool: str = "agents") -> str:
    trust = None if ca is None else EngineTrust(ca=ca, server_name=server_name)
    entry = EngineCredential(api_key=api_key, tls=trust)
    return EngineCredentials(generation="e1", pools={pool: entry}).model_dump_json(by_alias=True)


async def linked(
    stage: Stage,
    folder: Path,
    credentials: str,
    play: Any = ORDINARY,
    *,
    authority: Authority | None = None,
    name: str = "127.0.0.1",
) -> tuple[RunningRouter, ScriptedEngine]:
    """A router with a credentials file in front of one engine, which speaks TLS under `name` if there is an authority."""
    (folder / "engines.json").write_text(credentials)
    engine = await stage.engine(play, tls=None if authority is None else authority.server(name))
    table = a_table(a_pool("agents", engine.url), a_class("agent", "agents"))
    return await stage.router(table, engine_credentials=folder / "engines.json"), engine


async def test_the_engines_key_goes_to_the_engine_and_the_clients_key_does_not(stage: Stage, tmp_path: Path) -> None:
    router, engine = await linked(stage, tmp_path, document(api_key=ENGINE_KEY))
    assert (await router.post(CHAT, NS)).status_code == 200
    assert (await router.post(CHAT, {**NS, "stream": True}, None, x_api_key=AGENT_KEY)).status_code == 200
    await engine.wait_for(lambda: len(engine.requests) == 2)
    await router.until(lambda: {probe.path for probe in engine.probes} == {"/health", "/metrics"})
    for request in (*engine.requests, *engine.probes):
        assert [value for name, value in request.headers if name == "authorization"] == [f"Bearer {ENGINE_KEY}"]
        assert AGENT_KEY not in str(request.headers)
        assert request.header("x-api-key") is None


async def test_an_abort_shows_the_engines_key_too(stage: Stage, tmp_path: Path) -> None:
    """SGLang guards /abort_request with the same key: without it, a client that left would keep its slot."""
    release = asyncio.Event()
    router, engine = await linked(stage, tmp_path, document(api_key=ENGINE_KEY), begun_until(release))
    wire = await stage.wire(router)
    body = json.dumps({**NS, "stream": True}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\nauthorization: Bearer {AGENT_KEY}\r\n"
    await wire.send(head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body))
    await engine.wait_for(lambda: engine.open_sessions == 1)
    wire.hang_up()
    await engine.wait_for(lambda: len(engine.aborts) == 1)
    assert engine.abort_requests[0].header("authorization") == f"Bearer {ENGINE_KEY}"


async def echo_the_key(session: Session) -> None:
    """An engine that repeats what it was sent where it can."""
    shown = session.request.header("authorization") or ""
    headers = [f"x-debug: {shown}", f"openai-organization: {shown}", f"retry-after: {shown}", f"set-cookie: k={shown}"]
    error = {"error": {"message": f"bad key {shown.removeprefix('Bearer ')}", "code": 400}}
    if session.request.json.get("stream"):
        await session.head(headers=headers)
        await session.write(event(error) if session.request.json.get("seed") else delta("A") + DONE)
        await session.end()
    else:
        status = 401 if session.request.json.get("seed") else 200
        await session.reply(json.dumps(error).encode() if status == 401 else b"{}", status, headers)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("seed", [0, 1], ids=["well", "an error"])
async def test_an_engine_that_echoes_its_key_does_not_tell_it_to_the_client(
    stage: Stage, tmp_path: Path, *, stream: bool, seed: int
) -> None:
    router, engine = await linked(stage, tmp_path, document(api_key=ENGINE_KEY), echo_the_key)
    answer = await router.post(CHAT, {**NS, "stream": stream, "seed": seed})
    assert engine.requests[0].header("authorization") == f"Bearer {ENGINE_KEY}"
    assert ENGINE_KEY not in str(answer.headers)
    assert ENGINE_KEY.encode() not in answer.content
    if seed:
        assert b"bad key ********" in answer.content


async def test_credentials_change_without_a_restart_and_bad_ones_change_nothing(stage: Stage, tmp_path: Path) -> None:
    router, engine = await linked(stage, tmp_path, document(api_key=ENGINE_KEY))
    link = router.router.proxy.pools.pools["agents"].endpoints["agents-0"].link
    router.write("engines.json", document(api_key="sk-second-0123456789"))
    await router.until(lambda: link.authorization == b"Bearer sk-second-0123456789")
    assert (await router.post(CHAT, NS)).status_code == 200
    assert engine.requests[-1].header("authorization") == "Bearer sk-second-0123456789"
    router.write("engines.json", document(api_key="third", ca="not a certificate"))
    await router.until(lambda: bool(router.router.tables.problems))
    problem = next(iter(router.router.tables.problems.values()))
    assert "Pool 'agents': its CA cannot be read" in problem
    router.write("engines.json", document(api_key="good").replace("good", "bad\\nkey"))
    await router.until(lambda: "pools.agents.apiKey" in next(iter(router.router.tables.problems.values())))
    assert "bad" not in str(router.router.tables.problems)
    assert (await router.post(CHAT, NS)).status_code == 200
    assert engine.requests[-1].header("authorization") == "Bearer sk-second-0123456789"
    router.write("engines.json", EngineCredentials(pools={}).model_dump_json(by_alias=True))
    await router.until(lambda: link.authorization == b"")
    assert not router.router.tables.problems
    assert router.count("hlserve_router_document_errors_total", "engine_credentials") == 2


@pytest.mark.parametrize(
    ("name", "server_name", "trusted", "works"),
    [
        pytest.param("127.0.0.1", "", True, True, id="the URL's host"),
        pytest.param("engine.example", "engine.example", True, True, id="a name of the pool's own"),
        pytest.param("engine.example", "", True, False, id="another name"),
        pytest.param("127.0.0.1", "engine.example", True, False, id="not the pool's name"),
        pytest.param("127.0.0.1", "", False, False, id="another CA"),
    ],
)
async def test_engines_are_trusted_by_the_pools_own_ca_and_name(
    stage: Stage, tmp_path: Path, name: str, server_name: str, *, trusted: bool, works: bool
) -> None:
    theirs, ours = Authority(), Authority()
    ca = (theirs if trusted else ours).pem
    router, engine = await linked(
        stage, tmp_path, document(api_key=ENGINE_KEY, ca=ca, server_name=server_name), authority=theirs, name=name
    )
    answer = await router.post(CHAT, NS)
    endpoint = router.router.proxy.pools.pools["agents"].endpoints["agents-0"]
    if works:
        assert answer.status_code == 200
        await router.until(lambda: bool(engine.probes) and endpoint.reachable)
    else:
        assert answer.json()["error"]["code"] in ("engine_connect", "no_endpoint")
        assert (engine.requests, engine.probes) == ([], [])
        assert not endpoint.reachable


async def test_a_renewed_ca_is_taken_over(stage: Stage, tmp_path: Path) -> None:
    old, new = Authority(), Authority()
    router, engine = await linked(stage, tmp_path, document(ca=old.pem), authority=new)
    endpoint = router.router.proxy.pools.pools["agents"].endpoints["agents-0"]
    await router.until(lambda: not endpoint.reachable)
    router.write("engines.json", document(ca=new.pem))
    await router.until(lambda: endpoint.reachable)
    assert (await router.post(CHAT, NS)).status_code == 200
    assert engine.requests


async def test_pods_are_known_by_the_name_of_their_service(stage: Stage) -> None:
    authority = Authority()
    cluster = await stage.cluster()
    engine = await stage.engine(ORDINARY, tls=authority.server("agents-svc.serving.svc"))
    await cluster.table(a_table(a_pool("agents", service="agents-svc"), a_class("agent", "agents")))
    await cluster.slice("agents-svc", "one", Pod("p"), port=engine.port)
    await cluster.credentials(document(api_key=ENGINE_KEY, ca=authority.pem))
    router = await stage.router_of(cluster)
    await router.until(lambda: router.router.ready)
    endpoint = router.router.proxy.pools.pools["agents"].endpoints["p"]
    assert endpoint.url == f"https://127.0.0.1:{engine.port}"
    assert (await router.post(CHAT, NS)).status_code == 200
    await router.until(lambda: len(engine.probes) > 1)
    assert engine.requests[0].header("authorization") == f"Bearer {ENGINE_KEY}"
    await cluster.credentials(document(api_key=ENGINE_KEY))
    await router.until(lambda: router.router.proxy.pools.pools["agents"].endpoints["p"].url.startswith("http://"))


def test_a_key_is_not_shown_when_a_document_is() -> None:
    credentials = EngineCredentials(pools={"agents": EngineCredential(api_key=ENGINE_KEY)})
    assert ENGINE_KEY not in repr(credentials)
    assert ENGINE_KEY in credentials.model_dump_json()
