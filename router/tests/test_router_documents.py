"""Routing tables and keyrings: hot reload, last good kept, no stream broken."""

import asyncio
import json
from typing import Any

import pytest

from hlserve_router.errors import TableError
from hlserve_router.keys import Keyrings
from hlserve_router.pools import Pools
from hlserve_router.testing.documents import AGENT_KEY, INTERACTIVE_KEY, a_class, a_key, a_keyring, a_pool, a_table
from hlserve_router.testing.engine import ScriptedEngine, Session
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import DONE, ORDINARY, begun_until, delta
from hlserve_router.testing.stage import Stage

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}


async def one_engine(stage: Stage, play: Any = ORDINARY) -> tuple[RunningRouter, ScriptedEngine]:
    engine = await stage.engine(play)
    return await stage.router(a_table(a_pool("agents", engine.url), a_class("agent", "agents"))), engine


def generation(router: RunningRouter) -> str:
    table = router.router.proxy.pools.table
    return "" if table is None else table.generation


async def test_a_new_table_moves_new_requests_and_breaks_no_stream(stage: Stage) -> None:
    release = asyncio.Event()

    async def play(session: Session) -> None:
        await session.head()
        await session.write(delta("A"))
        await session.until(release)
        await session.write(DONE)
        await session.end()

    router, old = await one_engine(stage, play)
    new = await stage.engine(ORDINARY)
    streams = [asyncio.create_task(router.post(CHAT, {**NS, "stream": True})) for _ in range(20)]
    await old.wait_for(lambda: old.open_sessions == 20)
    router.write("table.json", a_table(a_pool("fresh", new.url), a_class("agent", "fresh"), generation="g2"))
    await router.until(lambda: generation(router) == "g2")
    assert (await router.post(CHAT, NS)).headers["x-hlserve-pool"] == "fresh"
    release.set()
    assert all(answer.content == delta("A") + DONE for answer in await asyncio.gather(*streams))
    assert 'hlserve_router_table_info{generation="g2"} 1.0' in await router.metrics()


BAD = {
    "a syntax error": "{",
    "a missing field": json.dumps({"generation": "x", "classes": [{"name": "a"}]}),
    "a newer schema": json.dumps({"schemaVersion": 2, "generation": "x"}),
    "a class whose pool is not there": a_table(a_class("agent", "nowhere"), generation="x").model_dump_json(
        by_alias=True
    ),
    "a keyring": a_keyring().model_dump_json(by_alias=True),
    "an address that is none": a_table(a_pool("agents", "ftp://x"), a_class("agent", "agents")).model_dump_json(
        by_alias=True
    ),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
async def test_a_bad_table_changes_nothing_and_says_why(stage: Stage, text: str) -> None:
    router, engine = await one_engine(stage)
    router.write("table.json", text)
    await router.until(lambda: bool(router.router.tables.problems))
    assert generation(router) == "g1"
    assert (await router.post(CHAT, NS)).status_code == 200
    assert router.count("hlserve_router_document_errors_total", "table") == 1
    problem = next(iter((await router.http.get(f"{router.admin_url}/readyz")).json()["problems"].values()))
    assert "table.json is not in force: " in problem
    assert len(problem) < 400
    router.write("table.json", a_table(a_pool("agents", engine.url), a_class("agent", "agents"), generation="g3"))
    await router.until(lambda: generation(router) == "g3")
    assert not router.router.tables.problems


async def test_a_table_in_the_place_of_a_keyring_revokes_nobody(stage: Stage) -> None:
    router, _ = await one_engine(stage)
    router.write("keyring.json", a_table(a_class("agent", "agents"), generation="k2"))
    await router.until(lambda: bool(router.router.tables.problems))
    problem = router.router.tables.problems[str(router.folder / "keyring.json")]
    assert problem.endswith(
        "is not in force: This is a routing table, and a keyring is asked for here: name the right file."
    )
    assert (await router.post(CHAT, NS)).status_code == 200


async def test_a_renamed_class_and_a_renamed_model_leave_no_queue_behind(stage: Stage) -> None:
    router, engine = await one_engine(stage)
    admission = router.router.proxy.admission
    assert (await router.post(CHAT, NS)).status_code == 200
    assert [(lane.route.name, lane.model) for lane in admission.lanes()] == [("agent", "m1")]
    pool = a_pool("agents", engine.url, model="m2")
    router.write("table.json", a_table(pool, a_class("agent", "agents"), generation="g2"))
    await router.until(lambda: generation(router) == "g2")
    assert not admission.lanes()
    assert (await router.post(CHAT, {**NS, "model": "m2"})).status_code == 200
    router.write("table.json", a_table(pool, a_class("worker", "agents"), generation="g3"))
    await router.until(lambda: generation(router) == "g3")
    assert not admission.lanes()


async def test_a_deleted_file_keeps_what_was_read(stage: Stage) -> None:
    router, _ = await one_engine(stage)
    (router.folder / "table.json").unlink()
    await router.until(lambda: bool(router.router.tables.problems))
    assert (await router.post(CHAT, NS)).status_code == 200


async def test_a_revoked_key_is_refused_and_a_rotated_one_keeps_its_client(stage: Stage) -> None:
    router, _ = await one_engine(stage)
    new = "hls_rotated_0123456789abcdef0123456789abcde"
    router.write(
        "keyring.json", a_keyring(a_key(AGENT_KEY, "coder", "agent"), a_key(new, "coder", "agent"), generation="k2")
    )
    await router.until(lambda: len(router.router.proxy.keyrings) == 2)
    assert {(await router.post(CHAT, NS, key)).status_code for key in (AGENT_KEY, new)} == {200}
    router.write("keyring.json", a_keyring(a_key(new, "coder", "agent"), generation="k3"))
    await router.until(lambda: len(router.router.proxy.keyrings) == 1)
    assert (await router.post(CHAT, NS)).json()["error"]["code"] == "invalid_key"
    assert (await router.post(CHAT, NS, new)).status_code == 200
    assert router.count("hlserve_router_client_requests_total", "coder", "agent", "ok") == 3


async def test_the_router_waits_for_its_documents_before_it_is_ready(stage: Stage) -> None:
    router, engine = await one_engine(stage)
    assert (await router.http.get(f"{router.url}/readyz")).status_code == 200
    router.router.proxy.pools.table = None
    assert (await router.http.get(f"{router.url}/readyz")).status_code == 503
    assert (await router.http.get(f"{router.url}/healthz")).status_code == 200
    assert engine.connections >= 0


def test_unknown_fields_are_ignored() -> None:
    from hlserve_api.routing import parse_table

    document = json.loads(a_table(a_pool("agents"), a_class("agent", "agents")).model_dump_json(by_alias=True))
    document["future"] = document["pools"][0]["future"] = {"x": 1}
    assert parse_table(json.dumps(document)).pools[0].name == "agents"


def test_a_table_is_applied_whole_or_not_at_all() -> None:
    pools = Pools()
    pools.apply(a_table(a_pool("a", "http://x:1"), a_class("agent", "a")), 0.0)
    with pytest.raises(TableError):
        pools.apply(a_table(a_pool("b", "http://x:1"), a_class("agent", "b"), a_class("batch", "c")), 1.0)
    assert list(pools.pools) == ["a"]
    assert list(pools.classes) == ["agent"]


def test_endpoints_that_stay_keep_their_state_and_newcomers_start_slowly() -> None:
    pools = Pools()
    pools.apply(a_table(a_pool("a", "http://x:1"), a_class("agent", "a")), 0.0)
    old = pools.pools["a"].endpoints["a-0"]
    pools.apply(a_table(a_pool("a", "http://x:1", "http://x:2"), a_class("agent", "a")), 100.0)
    assert pools.pools["a"].endpoints["a-0"] is old
    young = pools.pools["a"].endpoints["a-1"]
    ramps = [young.ramp(100.0 + age) for age in (0, 10, 20, 90)]
    assert ramps == [0.1, 0.5, 1.0, 1.0]
    assert old.ramp(100.0) == 1.0
    pools.apply(a_table(a_pool("a", "http://x:2"), a_class("agent", "a")), 200.0)
    assert old.removed


def test_two_clients_with_one_key_are_both_refused() -> None:
    keyrings = Keyrings()
    keyrings.apply("0", a_keyring(a_key(AGENT_KEY, "one", "agent"), a_key(INTERACTIVE_KEY, "two", "agent")))
    keyrings.apply("1", a_keyring(a_key(AGENT_KEY, "three", "agent")))
    assert len(keyrings) == 1
    keyrings.apply("1", a_keyring(a_key("x" * 30, "three", "agent")))
    assert len(keyrings) == 3


async def test_b66_an_engine_that_drains_keeps_its_streams_and_gets_nothing_new(stage: Stage) -> None:
    release = asyncio.Event()

    play = begun_until(release)
    one, two = await stage.engine(play), await stage.engine(play)
    router = await stage.router(a_table(a_pool("agents", one.url, two.url), a_class("agent", "agents")))
    streams = [asyncio.create_task(router.post(CHAT, {**NS, "stream": True})) for _ in range(10)]
    await router.until(lambda: one.open_sessions + two.open_sessions == 10)
    streaming, others = one.open_sessions, len(two.requests)
    assert streaming
    draining = a_pool("agents", one.url, two.url, draining=("agents-0",))
    router.write("table.json", a_table(draining, a_class("agent", "agents"), generation="g2"))
    await router.until(lambda: generation(router) == "g2")
    assert {(await router.post(CHAT, NS)).status_code for _ in range(10)} == {200}
    assert (len(one.requests), len(two.requests)) == (streaming, others + 10)
    report = (await router.http.get(f"{router.admin_url}/v1/report")).json()
    assert report["draining"] == {"agents-0": streaming}
    release.set()
    assert all(answer.content == delta("A") + DONE for answer in await asyncio.gather(*streams))


async def test_b77_reloads_good_and_bad_break_no_stream_and_mix_nothing(stage: Stage) -> None:
    release = asyncio.Event()
    router, engine = await one_engine(stage, begun_until(release))
    pool = a_pool("agents", engine.url)
    streams = [asyncio.create_task(router.post(CHAT, {**NS, "stream": True})) for _ in range(50)]
    await engine.wait_for(lambda: engine.open_sessions == 50)
    router.write(
        "table.json",
        a_table(pool, a_class("agent", "agents", targets=({"pool": "agents", "weight": 7},)), generation="w7"),
    )
    new = "hls_another_0123456789abcdef0123456789abcde"
    router.write(
        "keyring.json", a_keyring(a_key(AGENT_KEY, "coder", "agent"), a_key(new, "added", "agent"), generation="k2")
    )
    await router.until(lambda: generation(router) == "w7" and len(router.router.proxy.keyrings) == 2)
    assert (await router.post(CHAT, NS, new)).status_code == 200
    for count, (bad, words) in enumerate(
        (
            ("{", "Invalid JSON"),
            (a_table(a_class("agent", "nowhere"), generation="n").model_dump_json(by_alias=True), "'nowhere'"),
        ),
        1,
    ):
        router.write("table.json", bad)
        await router.until(lambda count=count: router.count("hlserve_router_document_errors_total", "table") == count)  # type: ignore[misc]
        detail = (await router.http.get(f"{router.admin_url}/readyz")).json()
        assert words in detail["problems"][str(router.folder / "table.json")]
        assert generation(router) == "w7"
        assert (await router.post(CHAT, NS)).status_code == 200
    router.write("table.json", a_table(pool, a_class("agent", "agents"), generation="first"))
    await asyncio.sleep(0.01)  # two changes 10 ms apart
    router.write("table.json", a_table(pool, a_class("agent", "agents"), generation="last"))
    await router.until(lambda: generation(router) == "last")
    assert 'hlserve_router_table_info{generation="last"} 1.0' in await router.metrics()
    assert (await router.http.get(f"{router.admin_url}/readyz")).json()["problems"] == {}
    release.set()
    assert {answer.content for answer in await asyncio.gather(*streams)} == {delta("A") + DONE}
    assert router.count("hlserve_router_document_errors_total", "table") == 2
