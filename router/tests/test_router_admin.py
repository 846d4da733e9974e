"""The admin port, model lists and health."""

import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hlserve_api.metrics import CLIENT, ROUTER
from hlserve_router.metrics import Metrics
from hlserve_router.probes import read_gauges
from hlserve_router.testing.documents import (
    AGENT_KEY,
    BATCH_KEY,
    INTERACTIVE_KEY,
    a_class,
    a_key,
    a_keyring,
    a_pool,
    a_table,
)
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import ORDINARY
from hlserve_router.testing.stage import Stage

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "a secret prompt"}]}


async def two_pools(stage: Stage, **settings: Any) -> RunningRouter:
    chat, agents = await stage.engine(ORDINARY), await stage.engine(ORDINARY)
    agents.gauges = {"num_running_reqs": 3, "num_queue_reqs": 2, "token_usage": 0.25}
    table = a_table(
        a_pool("chat", chat.url, aliases=("fast",)), a_pool("agents", agents.url, model="m2"), a_pool("down", "http://127.0.0.1:1"),
        a_class("interactive", "chat", "down"), a_class("agent", "agents", "chat"), a_class("batch", "agents"),
    )  # fmt: skip
    return await stage.router(table, **settings)


async def test_metrics_are_the_declared_ones_with_bounded_labels(stage: Stage) -> None:
    router = await two_pools(stage)
    await router.post(CHAT, {**NS, "stream": True}, INTERACTIVE_KEY)
    await router.post(CHAT, {**NS, "model": "nope"}, AGENT_KEY)
    text = await router.metrics()
    declared = {metric.name.removesuffix("_total"): metric for metric in ROUTER}
    for family in text_string_to_metric_families(text):
        metric = declared.pop(family.name)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.label_names), sample
            for label in metric.labels:
                assert not label.values or sample.labels[label.name] in label.values
    assert not declared
    for secret in ("a secret prompt", INTERACTIVE_KEY, "nope"):
        assert secret not in text
    assert 'hlserve_router_ttft_seconds_count{class="interactive",pool="chat"} 1.0' in text
    assert 'hlserve_router_in_flight_requests{class="interactive",pool="chat"} 0.0' in text


def test_clients_beyond_the_cap_are_other() -> None:
    metrics = Metrics()
    labels = {metrics.client_label(f"client-{index}") for index in range(CLIENT.cap + 50)}
    assert len(labels) == CLIENT.cap + 1
    assert "other" in labels
    assert metrics.client_label("client-0") == "client-0"


def test_a_name_that_is_not_declared_cannot_be_counted() -> None:
    with pytest.raises(KeyError):
        Metrics().count("hlserve_router_invented_total")
    with pytest.raises(KeyError):
        Metrics().count("hlserve_router_keys")


async def test_reports_tell_what_runs(stage: Stage) -> None:
    router = await two_pools(stage)
    await router.post(CHAT, NS, INTERACTIVE_KEY)
    states = router.router.proxy.pools.pools["agents"].endpoints["agents-0"]
    await router.until(lambda: states.gauges is not None)
    pools = {pool["name"]: pool for pool in (await router.http.get(f"{router.admin_url}/v1/pools")).json()["pools"]}
    assert pools["agents"]["endpoints"][0]["running"] == 3
    assert pools["agents"]["endpoints"][0]["tokenUsage"] == 0.25
    await router.until(lambda: not router.router.proxy.pools.pools["down"].endpoints["down-0"].reachable)
    classes = (await router.http.get(f"{router.admin_url}/v1/classes")).json()["classes"]
    assert [row["name"] for row in classes] == ["interactive", "agent", "batch"]
    report = (await router.http.get(f"{router.admin_url}/v1/report")).json()
    assert report["generations"]["table"] == "g1"
    assert report["lastUsed"]["agents"] is None
    assert report["lastUsed"]["chat"] is not None
    assert report["keysLastUsed"] == {"web": pytest.approx(time.time(), abs=30)}


async def test_the_token_guards_all_but_metrics_and_health(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("opensesame\n")
    router = await two_pools(stage, admin_token_file=tmp_path / "token")
    for path in ("/v1/report", "/v1/pools", "/v1/classes"):
        assert (await router.http.get(router.admin_url + path)).status_code == 401
        wrong = await router.http.get(router.admin_url + path, headers={"authorization": "Bearer x"})
        assert wrong.status_code == 401
        right = await router.http.get(router.admin_url + path, headers={"authorization": "Bearer opensesame"})
        assert right.status_code == 200
    for path in ("/metrics", "/healthz", "/readyz"):
        assert (await router.http.get(router.admin_url + path)).status_code == 200


async def test_readiness_on_the_client_port_names_nothing(stage: Stage) -> None:
    router = await two_pools(stage)

    async def ready() -> tuple[int, object]:
        answer = await router.http.get(f"{router.url}/readyz")
        return answer.status_code, answer.json()

    assert await ready() == (200, {"status": "ok"})
    router.router.drain_asked = True
    assert await ready() == (503, {"status": "draining"})
    router.router.drain_asked = False
    router.router.proxy.pools.table = None
    assert await ready() == (503, {"status": "waiting_for_documents"})
    detail = (await router.http.get(f"{router.admin_url}/readyz")).json()
    assert {"problems", "waitingFor", "limits", "sourceAgeSeconds", "pools"} < detail.keys()


@pytest.mark.parametrize("path", ["/metrics", "/v1/report", "/v1/pools", "/v1/classes", "/docs"])
async def test_the_client_port_has_none_of_it(stage: Stage, path: str) -> None:
    router = await two_pools(stage)
    assert (await router.http.get(router.url + path)).status_code == 404


@pytest.mark.parametrize(
    ("key", "names"),
    [(INTERACTIVE_KEY, ["m1", "fast"]), (AGENT_KEY, ["m2", "m1", "fast"]), (BATCH_KEY, ["m2"])],
)
async def test_models_are_those_of_the_key_whatever_is_down(stage: Stage, key: str, names: list[str]) -> None:
    router = await two_pools(stage)
    headers = {"authorization": f"Bearer {key}"}
    listed = await router.http.get(f"{router.url}/v1/models", headers=headers)
    assert [model["id"] for model in listed.json()["data"]] == names
    one = await router.http.get(f"{router.url}/v1/models/{names[0]}", headers=headers)
    assert one.json()["id"] == names[0]
    missing = await router.http.get(f"{router.url}/v1/models/nope", headers=headers)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    anthropic = await router.http.get(
        f"{router.url}/v1/models/", headers={**headers, "anthropic-version": "2023-06-01"}
    )
    assert [model["type"] for model in anthropic.json()["data"]] == ["model"] * len(names)


async def test_models_need_a_key_and_keep_to_its_list(stage: Stage) -> None:
    router = await two_pools(stage)
    refused = await router.http.get(f"{router.url}/v1/models")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert (await router.http.post(f"{router.url}/v1/models")).status_code == 405
    router.write("keyring.json", a_keyring(a_key(AGENT_KEY, "coder", "agent", models=("m2",)), generation="k2"))
    await router.until(lambda: len(router.router.proxy.keyrings) == 1)
    listed = await router.http.get(f"{router.url}/v1/models", headers={"authorization": f"Bearer {AGENT_KEY}"})
    assert [model["id"] for model in listed.json()["data"]] == ["m2"]


async def test_health_answers_head(stage: Stage) -> None:
    router = await two_pools(stage)
    for url in (router.url, router.admin_url):
        answer = await router.http.head(f"{url}/healthz")
        assert (answer.status_code, answer.content) == (200, b"")


def test_sglangs_gauges_are_read_and_summed_over_ranks() -> None:
    page = (
        "# TYPE sglang:num_running_reqs gauge\n"
        'sglang:num_running_reqs{dp_rank="0",model_name="m"} 3.0\nsglang:num_running_reqs{dp_rank="1",model_name="m"} 4.0\n'
        'sglang:num_queue_reqs{model_name="m"} 2.0\nsglang:token_usage{dp_rank="0"} 0.5\nsglang:token_usage{dp_rank="1"} 0.75\n'
        "sglang:num_running_reqs_other 9\n"
    )
    gauges = read_gauges(page, 7.0)
    assert gauges is not None
    assert (gauges.running, gauges.queued, gauges.token_usage, gauges.at) == (7, 2, 0.75, 7.0)
    assert read_gauges("something_else 1\n", 0.0) is None
