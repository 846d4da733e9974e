"""The command `hlserve-router` as a process."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from hlserve_router.__main__ import main
from hlserve_router.supervisor import merge, merge_pages, samples
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_keyring, a_pool, a_table
from hlserve_router.testing.engine import Session, scripted_engine
from hlserve_router.testing.scripts import DONE, ORDINARY, delta

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
HEADERS = {"authorization": f"Bearer {AGENT_KEY}"}


@dataclass(eq=False)
class Process:
    process: asyncio.subprocess.Process
    url: str
    admin_url: str

    async def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(15):
            return await self.process.wait()


async def accepts(url: str) -> bool:
    """True while the port takes connections."""
    host, _, port = url.removeprefix("http://").partition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True


async def start(folder: Path, *options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hlserve_router", "--table", str(folder / "table.json"), "--keyring", str(folder / "keyring.json"),
        *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


@asynccontextmanager
async def running(folder: Path, engine_url: str, *options: str) -> AsyncIterator[Process]:
    (folder / "table.json").write_text(
        a_table(a_pool("agents", engine_url), a_class("agent", "agents")).model_dump_json(by_alias=True)
    )
    (folder / "keyring.json").write_text(a_keyring().model_dump_json(by_alias=True))
    process = await start(folder, "--port", "0", *options)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            line = (await process.stdout.readline()).decode()
        found = re.fullmatch(r"hlserve-router listening on (http://\S+) admin (http://\S+)\n", line)
        assert found is not None, line
        yield Process(process, found.group(1), found.group(2))
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def test_sigterm_fails_readiness_lets_streams_finish_and_exits_with_0(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def play(session: Session) -> None:
        await session.head()
        await session.write(delta("A"))
        await session.until(release)
        await session.write(DONE)
        await session.end()

    async with (
        scripted_engine(play) as engine,
        running(tmp_path, engine.url) as router,
        httpx.AsyncClient(timeout=10) as http,
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
        pytest.param(
            ("--admin-token-file", "/nowhere/token"),
            "/nowhere/token cannot be read",
            id="a token file that is not there",
        ),
        pytest.param((), "--table (or HLSERVE_ROUTER_TABLE): Field required", id="no table"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_exit_code_2(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    table = ("--table", str(tmp_path / "table.json")) if options else ()
    result = CliRunner().invoke(main, [*table, "--port", "0", *options])
    assert result.exit_code == 2
    assert words in result.output
    assert result.output.count("\n") == 1


async def test_logs_are_json_lines_without_prompts_or_keys(tmp_path: Path) -> None:
    async with (
        scripted_engine(ORDINARY) as engine,
        running(tmp_path, engine.url) as router,
        httpx.AsyncClient(timeout=10) as http,
    ):
        body = {**NS, "messages": [{"role": "user", "content": "a secret prompt"}]}
        assert (await http.post(router.url + CHAT, json=body, headers=HEADERS)).status_code == 200
        assert (
            await http.post(router.url + CHAT, json=body, headers={"authorization": "Bearer wrong"})
        ).status_code == 401
        assert await router.end() == 0
        assert router.process.stderr is not None
        log = (await router.process.stderr.read()).decode()
    lines = [httpx.Response(200, text=line).json() for line in log.splitlines()]
    ended = [line for line in lines if line["message"] == "request"]
    assert [(line["outcome"], line["reason"]) for line in ended] == [("ok", ""), ("rejected", "invalid_key")]
    assert ended[0]["client"] == "coder"
    for secret in ("a secret prompt", AGENT_KEY, "wrong"):
        assert secret not in log


async def test_workers_share_the_port_and_one_metrics_page_that_never_goes_down(tmp_path: Path) -> None:
    async with scripted_engine(ORDINARY) as engine, running(tmp_path, engine.url, "--workers", "2") as router:
        for _ in range(40):
            async with httpx.AsyncClient(
                timeout=10
            ) as http:  # a new connection each time, so that both workers get some
                assert (await http.post(router.url + CHAT, json=NS, headers=HEADERS)).status_code == 200
        async with httpx.AsyncClient(timeout=10) as http:
            counted = 'hlserve_router_requests_total{class="agent",outcome="ok",pool="agents",reason=""} 40.0'
            for _ in range(3):
                assert counted in (await http.get(f"{router.admin_url}/metrics")).text
            pools = (await http.get(f"{router.admin_url}/v1/pools")).json()["pools"]
            assert pools[0]["inFlight"] == 0
            assert (await http.get(f"{router.admin_url}/readyz")).status_code == 200
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
