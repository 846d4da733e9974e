"""Operator and router one version apart, both ways; and the command on a cluster, with several workers."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from hlserve_router.settings import flag
from hlserve_router.testing.cluster import pretended_cluster
from hlserve_router.testing.documents import AGENT_KEY, a_key, a_keyring
from hlserve_router.testing.engine import scripted_engine
from hlserve_router.testing.on_cluster import a_pod, table_of_services, two_pods, uids
from hlserve_router.testing.process import a_router_process, plain_client
from hlserve_router.testing.scripts import ORDINARY
from hlserve_router.testing.stage import Stage

CHAT = "/v1/chat/completions"
HEADERS = {"authorization": f"Bearer {AGENT_KEY}"}
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
NEWER = {"schemaVersion": 1, "generation": "n1", "future": {"a": [1]}}


async def test_documents_of_a_newer_operator_are_read_without_what_is_unknown(stage: Stage) -> None:
    cluster = await stage.cluster()
    engine = await stage.engine(ORDINARY)
    table = json.loads(table_of_services().model_dump_json(by_alias=True))
    for part in (
        table,
        *table["pools"],
        *table["classes"],
        table["classes"][0]["queue"],
        table["classes"][0]["timeouts"],
    ):
        part["future"] = {"x": [1, None]}
    keyring = json.loads(a_keyring().model_dump_json(by_alias=True))
    keyring["keys"][0]["future"] = keyring["future"] = "y"
    await cluster.table(json.dumps(table))
    await a_pod(cluster, "p", engine)
    router = await stage.router_of(cluster)
    await cluster.keyring(json.dumps(keyring))
    await cluster.credentials(json.dumps({**NEWER, "pools": {"agents": {"apiKey": "k", "future": 1}}}))
    await router.until(lambda: router.router.ready and not router.router.tables.problems)
    await router.until(lambda: bool(router.router.proxy.pools.pools["agents"].endpoints["p"].link.authorization))
    assert (await router.post(CHAT, NS)).status_code == 200


async def test_documents_of_a_newer_schema_are_refused_in_one_sentence_and_the_old_ones_stay(stage: Stage) -> None:
    cluster, router, _ = await two_pods(stage)
    newer = json.dumps({"schemaVersion": 2, "generation": "n2"})
    await cluster.table(newer)
    await cluster.keyring(newer)
    await cluster.credentials(newer)
    await router.until(lambda: len(router.router.tables.problems) == 3)
    for source, problem in router.router.tables.problems.items():
        assert problem.startswith(f"{source} is not in force: ")
        assert problem.endswith(
            "has schemaVersion 2, but this program reads up to 1: upgrade it, or roll the writer back."
        )
    assert (await router.post(CHAT, NS)).status_code == 200
    assert router.count("hlserve_router_document_errors_total") == 3


async def test_documents_of_an_older_operator_are_enough(stage: Stage) -> None:
    """Only what the first version wrote: no shards, no names, no credentials."""
    cluster = await stage.cluster()
    engine = await stage.engine(ORDINARY)
    target, timeouts = {"pool": "agents"}, {"totalSeconds": 60, "silenceSeconds": 60, "peekMilliseconds": 500, "pingSeconds": 60,
                                            "retryCutoffSeconds": 5, "startSeconds": 60}  # fmt: skip
    await cluster.table(
        json.dumps(
            {
                "generation": "o1",
                "pools": [{"name": "agents", "mode": "HumanLess", "model": "m1", "service": "agents-svc"}],
                "classes": [
                    {"name": "agent", "intent": "Agent", "targets": [target], "queue": {}, "timeouts": timeouts}
                ],
            }
        )
    )
    await a_pod(cluster, "p", engine)
    router = await stage.router_of(cluster)
    await router.until(lambda: router.router.ready and uids(router) == {"p"})
    assert (await router.post(CHAT, NS)).status_code == 200


async def test_every_worker_of_the_command_reads_the_cluster_and_forgets_a_revoked_key(tmp_path: Path) -> None:
    async with scripted_engine(ORDINARY) as engine, pretended_cluster() as cluster, plain_client() as admin:
        await cluster.table(table_of_services())
        await cluster.keyring(a_keyring())
        await a_pod(cluster, "p", engine)
        settings = cluster.settings(tmp_path)
        options = [
            option
            for name, value in settings.items()
            for option in (flag(name), "" if value is True else str(value))
            if option
        ]
        async with a_router_process(*options, "--workers", "2", "--port", "0") as router:

            async def ask() -> int:
                async with plain_client() as http:  # a new connection each time, so that both workers get some
                    return (await http.post(router.url + CHAT, json=NS, headers=HEADERS)).status_code

            async with asyncio.timeout(10):
                while (await admin.get(f"{router.admin_url}/readyz")).status_code != 200:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.05)
            assert {await ask() for _ in range(10)} == {200}
            await cluster.keyring(
                a_keyring(a_key("hls_other_0123456789abcdef0123456789abcdef", "x", "agent"), generation="k2")
            )
            began = time.monotonic()
            while {await ask() for _ in range(10)} != {401}:
                assert time.monotonic() - began < 5
            report = (await admin.get(f"{router.admin_url}/v1/report")).json()
            assert report["generations"]["keyrings"] == {"Secret hlserve-keyring-0": "k2"}
            assert await router.end() == 0
