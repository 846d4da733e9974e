"""The command `hlserve-router` as a process."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hlserve_router.__main__ import main
from hlserve_router.merging import merge, merge_pages, samples
from hlserve_router.testing.documents import AGENT_KEY
from hlserve_router.testing.engine import Session, scripted_engine
from hlserve_router.testing.process import plain_client, router_process, start
from hlserve_router.testing.scripts import DONE, ORDINARY, begun_until, delta, event

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
HEADERS = {"authorization": f"Bearer {AGENT_KEY}"}


async def accepts(url: str) -> bool:
    """True while the port takes connections."""
    host, _, port = url.removeprefix("http://").partition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True


async def test_b66_sigterm_fails_readiness_lets_streams_finish_and_exits_with_0(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def play(session: Session) -> None:
        await session.head()
        await session.write(delta("A"))
        await session.until(release)
        await session.write(DONE)
        await session.end()

    async with (
        scripted_engine(play) as engine,
        router_process(tmp_path, engine.url) as router,
        plain_client() as http,
    ):
        async with http.stream("POST", router.url + CHAT, json={**NS, "stream": True}, headers=HEADERS) as answer:
            chunks = answer.aiter_raw()
            assert await anext(chunks) == delta("A")
            router.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(5):
                while (await http.get(f"{router.admin_url}/readyz")).status_code != 503:
                    pass
                while await accepts(router.url):
                    pass
            release.set()
            assert await anext(chunks) == DONE
        async with asyncio.timeout(10):
            assert await router.process.wait() == 0


async def test_a_port_in_use_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    async with scripted_engine(ORDINARY) as engine:
        process = await start(tmp_path, "--port", "0", "--admin-port", str(engine.port))
        out, err = await process.communicate()
    assert process.returncode == 2
    assert out == b""
    assert err.decode() == (
        f"hlserve-router: Cannot listen on 127.0.0.1:{engine.port} (Address already in use): "
        "choose another port, or end what uses it.\n"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(("--workers", "0"), "--workers (or HLSERVE_ROUTER_WORKERS)", id="no workers"),
        pytest.param(("--host", "[::1]"), "give --host an address of this machine", id="an address that is none"),
        pytest.param(
            ("--admin-token-file", "/nowhere/token"),
            "/nowhere/token cannot be read",
            id="a token file that is not there",
        ),
        pytest.param(("--admin-token-file", "/dev/null"), "/dev/null is empty", id="a token file without a token"),
        pytest.param(("--admin-token-file", sys.executable), "is no text", id="a token file that is none"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_exit_code_2(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    given = ["--table", str(tmp_path / "table.json"), "--keyring", str(tmp_path / "keyring.json"), "--port", "0"]
    result = CliRunner().invoke(main, [*given, *options])
    assert result.exit_code == 2
    assert words in result.output
    assert result.output.count("\n") == 1


PROMPT = "the merger of Alpha and Beta"
SECRETS = (PROMPT, AGENT_KEY, "wrong-key-wrong-key", "made-up-model", "made-up-class")


async def echoing(session: Session) -> None:
    """An engine whose errors repeat what it was sent, as engines do."""
    error = {"error": {"message": f"cannot serve: {session.request.body.decode()}", "code": 500}}
    seed = session.request.json.get("seed")
    if seed == 1:
        await session.reply(json.dumps(error).encode(), 500)
    elif seed == 2:
        await session.head()
        await session.write(delta(PROMPT) + event(error))
        await session.end()
    elif seed == 3:
        await session.raw(f"HTTP/1.1 200 {PROMPT}\r\nbad header {PROMPT}\r\n\r\n".encode())
        session.close()
    else:
        await ORDINARY(session)


async def test_b63_no_prompt_and_no_key_in_logs_or_metrics_and_no_proxy_of_the_environment(tmp_path: Path) -> None:
    body = {**NS, "messages": [{"role": "user", "content": PROMPT}]}
    asked: list[tuple[Any, dict[str, str]]] = [
        (body, HEADERS),
        (body, {"authorization": "Bearer wrong-key-wrong-key"}),
        ({**body, "seed": 1}, HEADERS),
        ({**body, "seed": 2, "stream": True}, HEADERS),
        ({**body, "seed": 3}, HEADERS),
        ({**body, "model": "made-up-model"}, HEADERS),
        (body, {**HEADERS, "x-hlserve-class": "made-up-class"}),
        ({**body, "rid": PROMPT}, HEADERS),
    ]
    proxy = {"HTTP_PROXY": "http://127.0.0.1:1", "ALL_PROXY": "http://127.0.0.1:1", "NO_PROXY": "10.0.0.0/8"}
    async with (
        scripted_engine(echoing) as engine,
        router_process(tmp_path, engine.url, "--log-level", "debug", environment=proxy) as router,
        plain_client() as http,
    ):
        statuses = [
            (await http.post(router.url + CHAT, json=sent, headers=headers)).status_code for sent, headers in asked
        ]
        cut = body | {"cut": PROMPT}
        await http.post(router.url + CHAT, content=json.dumps(cut)[:-1], headers=HEADERS)
        metrics = (await http.get(f"{router.admin_url}/metrics")).text
        assert await router.end() == 0
        log = await router.log()
    assert statuses == [200, 401, 500, 200, 502, 404, 400, 400]
    lines = [json.loads(line) for line in log.splitlines()]
    ended = [(line["outcome"], line["reason"]) for line in lines if line["message"] == "request"]
    assert ended[:2] == [("ok", ""), ("rejected", "invalid_key")]
    assert len(ended) == 9
    assert next(line for line in lines if line["message"] == "limits")["store"] == "memory"
    for secret in SECRETS:
        assert secret not in log
        assert secret not in metrics


async def test_b76_workers_share_one_port_and_counters_survive_one_that_is_killed(tmp_path: Path) -> None:
    name = 'hlserve_router_requests_total{class="agent",outcome="ok",pool="agents",reason=""}'
    release = asyncio.Event()

    play = begun_until(release)

    async def ask(body: Any) -> int:
        async with plain_client() as http:  # a new connection each time, so that both workers get some
            return (await http.post(router.url + CHAT, json=body, headers=HEADERS)).status_code

    async def page() -> dict[str, float]:
        return samples((await admin.get(f"{router.admin_url}/metrics")).text)

    async def workers_up() -> int:
        up: int = (await admin.get(f"{router.admin_url}/healthz")).json()["workersUp"]
        return up

    async with (
        scripted_engine(play) as engine,
        router_process(tmp_path, engine.url, "--workers", "2") as router,
        plain_client() as admin,
    ):
        assert {await ask(NS) for _ in range(40)} == {200}
        counts = [(await page())[name] for _ in range(3)]
        assert counts == [40.0] * 3
        pools = (await admin.get(f"{router.admin_url}/v1/pools")).json()["pools"]
        assert pools[0]["inFlight"] == 0
        former = router.children()
        assert len(former) == 2
        streams = [asyncio.create_task(ask({**NS, "stream": True})) for _ in range(8)]
        await engine.wait_for(lambda: engine.open_sessions == 8)
        os.kill(former[0], signal.SIGKILL)
        async with asyncio.timeout(20):
            while router.children()[:1] == former[:1] or await workers_up() < 2:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.05)
        counts.append((await page())[name])
        release.set()
        await asyncio.gather(*streams, return_exceptions=True)
        assert {await ask(NS) for _ in range(20)} == {200}
        last = await page()
        assert counts[-1] == 40.0
        assert last[name] >= 60.0
        assert last['hlserve_router_in_flight_requests{class="agent",pool="agents"}'] == 0
        assert (await admin.get(f"{router.admin_url}/readyz")).status_code == 200
        assert await router.end() == 0


def test_pages_are_summed_but_for_what_all_see_alike() -> None:
    page = (
        "# HELP hlserve_router_requests_total Requests.\n# TYPE hlserve_router_requests_total counter\n"
        'hlserve_router_requests_total{class="a"} 2.0\n'
        "# HELP hlserve_router_keys Keys.\n# TYPE hlserve_router_keys gauge\nhlserve_router_keys 3.0\n"
    )
    merged = samples(merge_pages([page, page], [{'hlserve_router_requests_total{class="b"}': 5.0}]))
    assert merged == {
        'hlserve_router_requests_total{class="a"}': 4.0, 'hlserve_router_requests_total{class="b"}': 5.0, "hlserve_router_keys": 3.0,
    }  # fmt: skip


def test_documents_of_workers_are_merged() -> None:
    one = {"pools": [{"name": "a", "inFlight": 2, "inFlightByClass": {"x": 2}, "bytesPerToken": 4.0, "running": None}]}
    two = {
        "pools": [{"name": "a", "inFlight": 3, "inFlightByClass": {"x": 1, "y": 2}, "bytesPerToken": 3.9, "running": 7}]
    }
    assert merge(one, two) == {
        "pools": [{"name": "a", "inFlight": 5, "inFlightByClass": {"x": 3, "y": 2}, "bytesPerToken": 4.0, "running": 7}]
    }


def test_workers_have_a_document_only_if_all_of_them_have_it() -> None:
    """A revoked key is gone, and an engine drains, once the last worker knows; a third one that lags must not be outvoted."""
    new = {"generations": {"table": "g2", "keyrings": {"a": "k2", "b": "k1"}}, "draining": {"pod-1": 2, "pod-2": 0}}
    old = {"generations": {"table": "g1", "keyrings": {"a": "k2"}}, "draining": {"pod-1": 1}}
    for workers in ([new, old, new], [old, new, new], [new, new, old]):
        first, second, third = workers
        merged = merge(merge(first, second), third)
        assert merged["generations"] == {"table": None, "keyrings": {"a": "k2", "b": None}}
        assert merged["draining"] == {"pod-1": 5}
    assert merge(new, new)["generations"] == new["generations"]
