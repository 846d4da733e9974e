"""The router on a cluster: documents and endpoints as a pretended API server tells them, and what it tells wrongly or not at all."""

import asyncio
import time
from typing import Any

import pytest

from hlserve_api.routing import ShardDigest
from hlserve_router.testing.certificates import Authority
from hlserve_router.testing.cluster import TOKEN, Mood, Pod
from hlserve_router.testing.documents import AGENT_KEY, a_key, a_keyring
from hlserve_router.testing.on_cluster import a_pod, table_of_services, two_pods, uids
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import DONE, ORDINARY, begun_until, delta
from hlserve_router.testing.stage import Stage

CHAT = "/v1/chat/completions"
HEADERS = {"authorization": f"Bearer {AGENT_KEY}"}
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
STREAM: dict[str, Any] = {**NS, "stream": True}


def restarts(router: RunningRouter, cause: str) -> float:
    return router.count("hlserve_router_watch_restarts_total", "endpoints", cause)


async def readiness(router: RunningRouter) -> tuple[int, Any]:
    answer = await router.http.get(f"{router.admin_url}/readyz")
    return answer.status_code, answer.json()


async def test_b65_a_deletion_while_a_closed_watch_is_away_is_found(stage: Stage) -> None:
    cluster, router, (gone, left) = await two_pods(stage)
    with cluster.closed_watches():
        await cluster.delete("endpointslices", "slice-p")
        await router.until(lambda: restarts(router, "closed") >= 1)
    began = time.monotonic()
    await router.until(lambda: uids(router) == {"q"})
    assert time.monotonic() - began < 5
    assert {(await router.post(CHAT, NS)).status_code for _ in range(4)} == {200}
    assert (len(gone.requests), len(left.requests)) == (0, 4)


async def test_b65_b_a_version_that_is_gone_leads_to_a_new_list(stage: Stage) -> None:
    cluster, router, _ = await two_pods(stage)
    cluster.mood = Mood.SILENT
    await cluster.delete("endpointslices", "slice-p")
    await cluster.forget_history()
    cluster.mood = Mood.WELL
    await router.until(lambda: uids(router) == {"q"})
    assert restarts(router, "gone") == 1


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        pytest.param({"relist_seconds": 0.5}, None, id="by the full list"),
        pytest.param({"watch_silence_seconds": 0.3}, "silent", id="by its silence"),
    ],
)
async def test_b65_c_a_silent_watch_is_found(stage: Stage, settings: dict[str, float], cause: str | None) -> None:
    cluster, router, _ = await two_pods(stage, **settings)
    cluster.mood = Mood.SILENT
    watches = cluster.count(watches=True)
    await cluster.delete("endpointslices", "slice-p")
    await router.until(lambda: uids(router) == {"q"}, 2.0)
    await router.until(lambda: cluster.count(watches=True) > watches)
    assert (await readiness(router))[0] == 200
    if cause is not None:
        assert restarts(router, cause) >= 1


async def test_b65_d_while_the_api_server_is_down_everything_stays_and_the_age_is_told(stage: Stage) -> None:
    cluster, router, _ = await two_pods(stage)
    await cluster.stop()
    await router.until(lambda: len(router.router.tables.problems) >= 4)
    await asyncio.sleep(0.5)  # an outage has no event that ends it
    assert {(await router.post(CHAT, NS)).status_code for _ in range(10)} == {200}
    status, detail = await readiness(router)
    assert status == 200
    assert all("cannot be reached" in problem for problem in detail["problems"].values())
    assert detail["sourceAgeSeconds"]["endpoints"] >= 0.4
    assert detail["pools"] == {"agents": 2}
    page = await router.metrics()
    for source in ("table", "keyring", "engine_credentials", "endpoints"):
        assert f'hlserve_router_source_age_seconds{{source="{source}"}}' in page
    await cluster.start()
    await router.until(lambda: not router.router.tables.problems)
    await router.until(lambda: router.router.tables.ages()["endpoints"] < 0.4)  # type: ignore[index]
    assert uids(router) == {"p", "q"}


async def test_b66_a_terminating_pod_keeps_its_streams_and_gets_nothing_new(stage: Stage) -> None:
    release = asyncio.Event()
    cluster = await stage.cluster()
    engines = [await stage.engine(begun_until(release)) for _ in range(3)]
    await cluster.table(table_of_services())
    for uid, engine in zip("abc", engines, strict=True):
        await a_pod(cluster, uid, engine)
    router = await stage.router_of(cluster)
    await router.until(lambda: uids(router) == set("abc") and router.router.ready)
    streams = [asyncio.create_task(router.post(CHAT, STREAM)) for _ in range(30)]
    await router.until(lambda: sum(engine.open_sessions for engine in engines) == 30)
    streaming = engines[0].open_sessions
    assert streaming > 0
    await a_pod(cluster, "a", engines[0], ready=False, serving=True, terminating=True)
    endpoint = router.router.proxy.pools.pools["agents"].endpoints["a"]
    await router.until(lambda: endpoint.draining, 1.0)
    assert {(await router.post(CHAT, NS)).status_code for _ in range(10)} == {200}
    assert len(engines[0].requests) == streaming
    await cluster.delete("endpointslices", "slice-a")
    await router.until(lambda: uids(router) == {"b", "c"})
    release.set()
    answers = await asyncio.gather(*streams)
    assert {answer.content for answer in answers} == {delta("A") + DONE}
    assert endpoint.in_flight == 0


async def test_the_sessions_of_a_pod_that_went_begin_anew_elsewhere_at_once(stage: Stage) -> None:
    cluster, router, engines = await two_pods(stage)
    for _ in range(3):
        assert (await router.post(CHAT, NS, x_hlserve_session="s1")).status_code == 200
    home = next(index for index, engine in enumerate(engines) if engine.requests)
    assert len(engines[home].requests) == 3
    await cluster.delete("endpointslices", f"slice-{'pq'[home]}")
    await router.until(lambda: uids(router) == {"pq"[1 - home]})
    assert (await router.post(CHAT, NS, x_hlserve_session="s1")).status_code == 200
    assert len(engines[1 - home].requests) == 1
    await a_pod(cluster, "pq"[home], engines[home])
    await router.until(lambda: uids(router) == {"p", "q"})
    assert router.router.proxy.pools.pools["agents"].endpoints["pq"[home]].sessions == 0


@pytest.mark.parametrize(
    ("conditions", "known"),
    [
        pytest.param({"ready": False, "serving": False}, False, id="an evicted pod that is still listed"),
        pytest.param({"ready": False, "serving": False}, True, id="a pod whose engine container is not ready"),
        pytest.param(
            {"ready": False, "serving": True, "terminating": True}, True, id="a pod that serves and terminates"
        ),
    ],
)
async def test_b68_a_pod_that_is_not_ready_gets_nothing_new(
    stage: Stage, conditions: dict[str, bool], known: bool
) -> None:
    release = asyncio.Event()
    cluster = await stage.cluster()
    one, two = await stage.engine(begun_until(release)), await stage.engine(ORDINARY)
    await cluster.table(table_of_services())
    await a_pod(cluster, "p", one, **({} if known else conditions))
    router = await stage.router_of(cluster)
    await router.until(lambda: router.router.ready and (not known or uids(router) == {"p"}))
    stream = asyncio.create_task(router.post(CHAT, STREAM)) if known else None
    if known:
        await one.wait_for(lambda: one.open_sessions == 1)
    await a_pod(cluster, "p", one, **conditions)
    await a_pod(cluster, "q", two)
    await router.until(lambda: uids(router) == ({"p", "q"} if known else {"q"}))
    assert {(await router.post(CHAT, NS)).status_code for _ in range(6)} == {200}
    assert (len(one.requests), len(two.requests)) == (1 if known else 0, 6)
    release.set()
    if stream is not None:
        assert (await stream).content == delta("A") + DONE
    await a_pod(cluster, "p", one)
    await router.until(lambda: uids(router) == {"p", "q"})
    await router.until(lambda: router.router.proxy.pools.pools["agents"].endpoints["p"].ready)


async def test_b40_an_ipv6_pod_is_reached_counted_once_and_labelled_by_its_name(stage: Stage) -> None:
    cluster = await stage.cluster()
    engine = await stage.engine(ORDINARY, "::1")
    await cluster.table(table_of_services())
    await cluster.slice("agents-svc", "v6", Pod("p", "::1"), port=engine.port, family="IPv6")
    router = await stage.router_of(cluster, host="::1")
    assert router.url.startswith("http://[::1]:")
    await router.until(lambda: router.router.ready and uids(router) == {"p"})
    endpoint = router.router.proxy.pools.pools["agents"].endpoints["p"]
    assert endpoint.url == f"http://[::1]:{engine.port}"
    await cluster.slice("agents-svc", "v4", Pod("p", "127.0.0.9"), port=engine.port)
    await cluster.slice("agents-svc", "later", Pod("q", "::1"), port=1, family="IPv6")
    await router.until(lambda: uids(router) == {"p", "q"})
    await cluster.delete("endpointslices", "later")
    await router.until(lambda: uids(router) == {"p"})
    assert router.router.proxy.pools.pools["agents"].endpoints["p"] is endpoint
    assert (await router.post(CHAT, NS)).status_code == 200
    assert engine.requests[-1].header("host") == f"[::1]:{engine.port}"
    page = await router.metrics()
    assert 'hlserve_router_endpoint_up{endpoint="pod-p",pool="agents"} 1.0' in page
    assert "::1" not in page
    assert "127.0.0.9" not in page


async def test_a_revoked_key_is_refused_within_5_seconds_whatever_the_table_says(stage: Stage) -> None:
    cluster, router, _ = await two_pods(stage)
    assert (await router.post(CHAT, NS)).status_code == 200
    await cluster.keyring(a_keyring(a_key("hls_other_0123456789abcdef0123456789abcdef", "x", "agent"), generation="k2"))
    began = time.monotonic()
    while (await router.post(CHAT, NS)).status_code != 401:
        assert time.monotonic() - began < 5


async def test_the_first_readiness_waits_for_the_shards_that_the_table_names(stage: Stage) -> None:
    cluster = await stage.cluster()
    digest = "a" * 64
    named = (ShardDigest(name="hlserve-keyring-0", digest=digest),)
    await cluster.table(table_of_services().model_copy(update={"keyring_shards": named}))
    router = await stage.router_of(cluster)
    await router.until(lambda: not router.router.tables.waiting_for)
    status, body = await readiness(router)
    assert (status, body["waitingFor"]) == (503, ["hlserve-keyring-0"])
    await cluster.keyring(a_keyring(generation=digest))
    await router.until(lambda: router.router.ready)
    await cluster.keyring(a_keyring(a_key(AGENT_KEY, "coder", "agent"), generation="b" * 64))
    await router.until(lambda: len(router.router.proxy.keyrings) == 1)
    assert (await readiness(router))[0] == 200


async def test_a_writer_that_died_between_shards_and_table_delays_readiness_only(stage: Stage) -> None:
    cluster = await stage.cluster()
    named = (ShardDigest(name="hlserve-keyring-0", digest="a" * 64),)
    await cluster.table(table_of_services().model_copy(update={"keyring_shards": named}))
    router = await stage.router_of(cluster, shards_wait_seconds=0.2)
    await router.until(lambda: router.router.ready)


async def test_fewer_shards_than_the_table_names_is_said_with_the_remedy(stage: Stage) -> None:
    cluster = await stage.cluster()
    named = tuple(ShardDigest(name=f"hlserve-keyring-{number}", digest=f"{number}" * 64) for number in range(2))
    await cluster.table(table_of_services().model_copy(update={"keyring_shards": named}))
    router = await stage.router_of(cluster)
    await router.until(lambda: bool(router.router.tables.problems))
    assert router.router.tables.problems == {
        "keyring shards": "The table names 2 keyring shards and 1 are read: give --keyring-shards 2."
    }
    await cluster.table(table_of_services(generation="g2"))
    await router.until(lambda: not router.router.tables.problems)


async def test_what_is_missing_is_named_and_what_is_deleted_stays_in_force(stage: Stage) -> None:
    cluster = await stage.cluster()
    router = await stage.router_of(cluster)
    await router.until(lambda: router.router.tables.waiting_for == ["ConfigMap hlserve-routing-table"])
    status, detail = await readiness(router)
    assert (status, detail["status"]) == (503, "waiting_for_documents")
    assert detail["problems"] == {
        "ConfigMap hlserve-routing-table": "ConfigMap hlserve-routing-table does not exist; the last good one stays in force."
    }
    engine = await stage.engine(ORDINARY)
    await cluster.table(table_of_services())
    await a_pod(cluster, "p", engine)
    await router.until(lambda: router.router.ready)
    assert router.router.tables.problems == {}
    for resource, name in (("configmaps", "hlserve-routing-table"), ("secrets", "hlserve-keyring-0")):
        await cluster.delete(resource, name)
    await router.until(lambda: len(router.router.tables.problems) == 2)
    assert (await router.post(CHAT, NS)).status_code == 200


@pytest.mark.parametrize("resource", ["configmaps", "secrets", "endpointslices"])
async def test_a_missing_right_is_said_with_the_remedy(stage: Stage, resource: str) -> None:
    cluster = await stage.cluster()
    await cluster.table(table_of_services())
    cluster.refuses[resource] = 403
    router = await stage.router_of(cluster)
    await router.until(lambda: bool(router.router.tables.problems))
    assert not router.router.ready
    problem = next(iter(router.router.tables.problems.values()))
    assert problem.startswith("The router may not read ")
    assert problem.endswith(" in namespace serving: allow its Role get, list and watch.")
    cluster.refuses.clear()
    await router.until(lambda: router.router.ready)
    assert not router.router.tables.problems


async def test_a_token_that_is_renewed_is_read_again_and_never_told(stage: Stage, tmp_path: Any, caplog: Any) -> None:
    cluster, router, _ = await two_pods(stage)
    (tmp_path / "token").write_text("expired")
    cluster.close_watches()
    await router.until(lambda: bool(router.router.tables.problems))
    assert "does not accept the token in" in next(iter(router.router.tables.problems.values()))
    (tmp_path / "token").write_text(TOKEN)
    await router.until(lambda: not router.router.tables.problems)
    assert TOKEN not in caplog.text


async def test_only_what_is_needed_is_asked_for_by_name(stage: Stage) -> None:
    cluster, router, engines = await two_pods(stage)
    asked = {
        (each.path.rpartition("/")[2], each.query.get("fieldSelector"), each.query.get("labelSelector"))
        for each in cluster.asked
    }
    assert asked == {
        ("configmaps", "metadata.name=hlserve-routing-table", None),
        ("secrets", "metadata.name=hlserve-keyring-0", None),
        ("secrets", "metadata.name=hlserve-engine-credentials", None),
        ("endpointslices", None, "kubernetes.io/service-name=agents-svc"),
    }
    assert all(each.query["allowWatchBookmarks"] == "true" for each in cluster.asked if each.watches)
    await cluster.table(table_of_services({"service": "others"}, generation="g2"))
    await cluster.slice("others", "slice-o", Pod("o"), port=engines[0].port)
    await router.until(lambda: uids(router) == {"o"})
    assert router.router.tables.services == {"others"}
    await router.until(lambda: cluster.watching == 4)
    before = len(cluster.asked)
    cluster.close_watches()
    await router.until(lambda: sum(each.watches for each in cluster.asked[before:]) >= 4)
    assert {each.query.get("labelSelector") for each in cluster.asked[before:]} == {
        None,
        "kubernetes.io/service-name=others",
    }


async def test_drained_pods_of_the_table_are_named_by_uid(stage: Stage) -> None:
    cluster, router, (drained, other) = await two_pods(stage)
    await cluster.table(table_of_services({"draining": ("p",)}, generation="g2"))
    endpoint = router.router.proxy.pools.pools["agents"].endpoints["p"]
    await router.until(lambda: endpoint.draining)
    assert {(await router.post(CHAT, NS)).status_code for _ in range(4)} == {200}
    assert (len(drained.requests), len(other.requests)) == (0, 4)
    report = (await router.http.get(f"{router.admin_url}/v1/report")).json()
    assert report["draining"] == {"p": 0}


async def test_a_watch_of_nonsense_changes_nothing_and_is_begun_anew(stage: Stage) -> None:
    cluster, router, _ = await two_pods(stage)
    await cluster.put("endpointslices", "odd", {"endpoints": "none"}, {"kubernetes.io/service-name": "agents-svc"})
    await router.until(lambda: bool(router.router.tables.problems))
    assert uids(router) == {"p", "q"}
    await cluster.delete("endpointslices", "odd")
    await router.until(lambda: not router.router.tables.problems)


@pytest.mark.parametrize("trusted", [True, False], ids=["its CA", "another CA"])
async def test_the_api_server_is_trusted_by_its_ca_only(stage: Stage, tmp_path: Any, *, trusted: bool) -> None:
    theirs = Authority()
    cluster = await stage.cluster(theirs.server("127.0.0.1"))
    await cluster.table(table_of_services())
    (tmp_path / "ca.crt").write_text((theirs if trusted else Authority()).pem)
    router = await stage.router_of(cluster, kubernetes_ca_file=tmp_path / "ca.crt")
    if trusted:
        await router.until(lambda: router.router.ready)
        return
    await router.until(lambda: len(router.router.tables.problems) == 3)
    assert all("cannot be reached (ConnectError)" in problem for problem in router.router.tables.problems.values())
    assert cluster.asked == []
