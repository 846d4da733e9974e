"""Routers and engines are asked over HTTP: real routers, simulated engines, and pods that do not answer."""

import asyncio
import dataclasses
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_api.routing import EngineCredential, EngineTrust
from hlserve_operator.reported import parse_drain, parse_load, parse_report
from hlserve_operator.reports import EnginePod, Reports, RouterPod, base_url
from hlserve_operator.testing.access import a_key, carried_out, condition, observed, plan, table_of
from hlserve_router.testing.certificates import Authority
from hlserve_router.testing.cluster import pretended_cluster
from hlserve_router.testing.documents import a_table
from hlserve_router.testing.running import running_router
from hlserve_sim.testing import running


@asynccontextmanager
async def asking(token: str | None = None, timeout_seconds: float = 5.0) -> AsyncIterator[Reports]:
    reports = Reports(token=lambda: token, timeout_seconds=timeout_seconds)
    try:
        yield reports
    finally:
        await reports.close()


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def engine_at(url: str, **fields: object) -> EnginePod:
    return EnginePod(uid="pod-1", ip="127.0.0.1", port=port_of(url), **fields)  # type: ignore[arg-type]


@asynccontextmanager
async def answering(reply: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that says the same to everybody; its port. Without a reply it says nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if reply:
            writer.write(reply)
            await writer.drain()
        else:
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]


def http(status: int, body: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (status, len(body), body)


# routers --------------------------------------------------------------------------------------------------------------


async def test_a_key_is_ready_once_a_real_router_has_read_what_was_planned(tmp_path: Path) -> None:
    """The whole way: plan, documents, router, report, and plan again."""
    namespace = observed(a_key())
    planned = plan(namespace)
    namespace = carried_out(namespace, planned)
    async with pretended_cluster() as cluster:
        settings = {**cluster.settings(tmp_path), "keyring_shards": 4}
        async with running_router(tmp_path, None, settings=settings) as router, asking() as reports:
            pod = RouterPod(name="r-0", ip="127.0.0.1", port=port_of(router.admin_url))
            (before,) = await reports.of_routers([pod])
            for manifest in planned.documents:
                resource = "configmaps" if manifest["kind"] == "ConfigMap" else "secrets"
                await cluster.put(resource, manifest["metadata"]["name"], {"data": manifest["data"]})
            proxy = router.router.proxy
            await router.until(lambda: len(proxy.keyrings.generations) == 4 and proxy.pools.table is not None)
            (after,) = await reports.of_routers([pod])
    unknown = dataclasses.replace(namespace, reports=(before,))
    assert condition(carried_out(unknown, plan(unknown)).keys[0], "Ready") == "False/RouterSyncing"
    known = dataclasses.replace(namespace, reports=(after,))
    key = carried_out(known, plan(known)).keys[0]
    assert (condition(key, "Ready"), key.status.synced_routers) == ("True/Ready", "1/1")
    assert after.table == table_of(planned).generation


async def test_reports_need_the_releases_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("opensesame")
    async with running_router(tmp_path, a_table(), settings={"admin_token_file": tmp_path / "token"}) as router:
        pod = RouterPod(name="r-0", ip="127.0.0.1", port=port_of(router.admin_url))
        async with asking("opensesame") as reports:
            assert [report.answered for report in await reports.of_routers([pod])] == [True]
        async with asking() as reports:
            (report,) = await reports.of_routers([pod])
    assert report.problem is not None
    assert "refuses the operator's token" in report.problem


@pytest.mark.parametrize(
    ("reply", "want"),
    [
        pytest.param(b"", "no answer in time", id="silence"),
        pytest.param(b"nonsense", "no answer: RemoteProtocolError", id="no HTTP"),
        pytest.param(http(500), "it answers 500", id="an error"),
        pytest.param(http(200, b"[]"), "its report cannot be read: ValidationError", id="no object"),
        pytest.param(http(200, b'{"draining": 7}'), "its report cannot be read: ValidationError", id="another type"),
        pytest.param(http(200, b"\xff"), "its report cannot be read: ValidationError", id="no text"),
    ],
)
async def test_a_router_that_gives_no_report_is_part_of_the_answer(reply: bytes, want: str) -> None:
    async with answering(reply) as port, answering(http(200, b"{}")) as good, asking(timeout_seconds=0.2) as reports:
        pods = [RouterPod(name=name, ip="127.0.0.1", port=each) for name, each in (("bad", port), ("good", good))]
        bad, well = await reports.of_routers(pods)
    assert (bad.pod, bad.problem) == ("bad", want)
    assert (well.pod, well.answered) == ("good", True)


async def test_pods_that_hang_do_not_add_up() -> None:
    async with answering(b"") as port, asking(timeout_seconds=0.3) as reports:
        began = monotonic()
        answers = await reports.of_routers([RouterPod(name=f"r-{n}", ip="127.0.0.1", port=port) for n in range(30)])
    assert len(answers) == 30
    assert monotonic() - began < 2


async def test_b63_a_proxy_of_the_environment_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with answering(http(200, b"{}")) as port, asking() as reports:
        (report,) = await reports.of_routers([RouterPod(name="r-0", ip="127.0.0.1", port=port)])
    assert report.answered


def test_b40_addresses_of_both_families() -> None:
    assert base_url("http", "10.0.0.7", 30000) == "http://10.0.0.7:30000"
    assert base_url("https", "fd00::17", 30000) == "https://[fd00::17]:30000"


async def test_what_is_no_address_is_told() -> None:
    async with asking() as reports:
        (report,) = await reports.of_routers([RouterPod(name="r-0", ip="")])
        (answer,) = await reports.loads([EnginePod(uid="pod-1", ip="nowhere")])
    assert not report.answered
    assert not answer.idle


# engines --------------------------------------------------------------------------------------------------------------


async def test_an_engine_drains_and_serves_again() -> None:
    async with running() as engine, httpx.AsyncClient(trust_env=False) as client, asking() as reports:
        (answer,) = await reports.drain([engine_at(engine.url)], drain=True)
        assert (answer.draining, answer.idle) == (True, True)
        assert (await client.get(f"{engine.url}/hlserve/ready")).status_code == 503
        assert (await reports.drain([engine_at(engine.url)], drain=True)) == (answer,)
        (answer,) = await reports.drain([engine_at(engine.url)], drain=False)
        assert answer.draining is False
        assert (await client.get(f"{engine.url}/hlserve/ready")).status_code == 200


async def test_an_engine_that_asks_for_a_key_gets_it() -> None:
    async with running("--api-key", "sesame") as engine, asking() as reports:
        (refused,) = await reports.drain([engine_at(engine.url)], drain=True)
        assert refused.problem is not None
        assert not refused.idle
        pod = engine_at(engine.url, credential=EngineCredential(api_key="sesame"))
        assert "sesame" not in repr(pod)
        (answer,) = await reports.drain([pod], drain=True)
        assert answer.draining


async def test_an_engine_without_the_call_is_reported_by_its_load() -> None:
    page = b'sglang:num_running_reqs{tp_rank="0"} 2.0\nsglang:num_queue_reqs{tp_rank="0"} 1.0\n'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(http(200, page) if b" /metrics " in head else http(404))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asking() as reports:
        port = server.sockets[0].getsockname()[1]
        (answer,) = await reports.drain([EnginePod(uid="pod-1", ip="127.0.0.1", port=port)], drain=True)
    assert (answer.draining, answer.running, answer.queued) == (False, 2, 1)


async def test_an_engines_certificate_must_carry_its_services_name() -> None:
    authority = Authority()
    name = "agents.llm.svc"
    trusted = EngineCredential(tls=EngineTrust(ca=authority.pem))
    other = EngineCredential(tls=EngineTrust(ca=Authority().pem))
    broken = EngineCredential(tls=EngineTrust(ca="no certificate"))
    reply = http(200, b"sglang:num_running_reqs 0.0\n")
    async with answering(reply, tls=authority.server(name)) as port, asking() as reports:
        cases = ((trusted, name), (trusted, "chat.llm.svc"), (other, name), (broken, name), (EngineCredential(), name))
        pods = [
            EnginePod(uid=f"pod-{n}", ip="127.0.0.1", port=port, credential=credential, server_name=server_name)
            for n, (credential, server_name) in enumerate(cases)
        ]
        answers = await reports.loads(pods)
    assert [answer.idle for answer in answers] == [True, False, False, False, False]
    assert answers[3].problem == "the CA of its pool holds no certificates in PEM"


@pytest.mark.parametrize(
    ("page", "want"),
    [
        pytest.param("sglang:num_running_reqs 0.0\nsglang:num_queue_reqs 0.0\n", (True, 0, 0), id="idle"),
        pytest.param(
            'sglang:num_running_reqs{a="0"} 1.0\nsglang:num_running_reqs{a="1"} 2.0\n', (False, 3, 0), id="two ranks"
        ),
        pytest.param("# nothing yet\n", (False, 0, 0), id="no gauge is not idle"),
        pytest.param("sglang:num_running_reqs NaN\n", (False, 0, 0), id="not a number is not idle"),
        pytest.param("sglang:num_running_reqs e\n", (False, 0, 0), id="a broken number is not idle"),
    ],
)
def test_a_load_is_read_from_the_metrics(page: str, want: tuple[bool, int, int]) -> None:
    answer = parse_load("pod-1", page)
    assert (answer.idle, answer.running, answer.queued) == want


@given(st.binary(max_size=200), st.text(max_size=200))
def test_no_answer_raises(body: bytes, page: str) -> None:
    assert parse_report("r-0", body).pod == "r-0"
    assert not parse_drain("pod-1", body).draining
    assert not parse_load("pod-1", page).idle


@pytest.mark.parametrize("seconds", ["1e300", "-1e300", "null", "0"])
def test_times_that_no_calendar_has_are_told(seconds: str) -> None:
    report = parse_report("r-0", b'{"keysLastUsed": {"crawler": %s}}' % seconds.encode())
    assert report.answered is (seconds in ("null", "0"))


def test_a_router_names_its_sources_as_people_do() -> None:
    report = parse_report("r-0", b'{"generations": {"keyrings": {"Secret hlserve-keyring-0": "g", "other": null}}}')
    assert report.keyrings == {"hlserve-keyring-0": "g"}
