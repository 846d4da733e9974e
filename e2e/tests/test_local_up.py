"""`hlserve up` as a user runs it: one process, started and ended from outside."""

import asyncio
import json
import os
import re
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from hlserve_local.testing.manifests import MODEL, base, changed, write_folder
from hlserve_local.testing.waiting import eventually, is_gone

READY = re.compile(r"HlServe listens on (?P<url>http://\S+) \(admin (?P<admin>http://\S+), logs (?P<logs>\S+)\)")
MARK = "HLSERVE_TEST_MARK"
RUN = "from hlserve_local.up_command import up; up(prog_name='hlserve up')"


@dataclass(frozen=True)
class Running:
    """A running `hlserve up`, once it is ready."""

    process: asyncio.subprocess.Process
    url: str
    logs: Path
    lines: asyncio.StreamReader
    mark: str


async def _start(mark: str, *arguments: str) -> asyncio.subprocess.Process:
    """`mark` goes into the environment, which every descendant inherits: that is how they are found again."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        RUN,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, MARK: mark},
    )


def _marked(mark: str) -> frozenset[int]:
    """Process ids of everything that runs with this mark."""
    wanted = f"{MARK}={mark}".encode()
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if wanted in environment.split(b"\0") and not is_gone(int(entry.name)):
                found.add(int(entry.name))
    return frozenset(found)


@asynccontextmanager
async def _up(folder: Path, *more: str) -> AsyncIterator[Running]:
    mark = uuid.uuid4().hex
    process = await _start(mark, "-f", str(folder), "--port", "0", *more)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            while not (match := READY.search((await process.stdout.readline()).decode())):
                assert process.returncode is None
        yield Running(process, match["url"], Path(match["logs"]), process.stdout, mark)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _ended(running: Running) -> None:
    await eventually(lambda: not _marked(running.mark), "the end of all children")
    await eventually(lambda: not running.logs.exists(), "the end of the private folder")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One pool with one engine, so that starting is quick."""
    names = ("chat", "interactive", "chat-app", "chat-secret")
    return write_folder(tmp_path, {name: base()[name] for name in names})


async def test_ctrl_c_ends_everything_with_exit_status_0(folder: Path) -> None:
    async with _up(folder) as running:
        assert len(_marked(running.mark)) >= 4, "the command, an engine, the router and the guard"
        text = b""
        async with asyncio.timeout(15):
            while b"pool chat 1/1 ready" not in text:
                text += await running.lines.readline()
        for words in (
            b"curl -N",
            b"from openai import",
            b"from anthropic import",
            b"maxRunningRequests",
            b"pool chat 1/1 ready",
        ):
            assert words in text
        running.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(15):
            _, errors = await running.process.communicate()
        assert running.process.returncode == 0, errors.decode()
        assert errors.decode().rstrip().endswith("Stopped.")
        await _ended(running)


async def test_ctrl_c_while_it_starts_ends_everything_too(folder: Path) -> None:
    mark = uuid.uuid4().hex
    process = await _start(mark, "-f", str(folder), "--port", "0")
    await eventually(lambda: len(_marked(mark)) >= 3, "the command, the guard and an engine that starts", 30)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(15):
        _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert errors.decode().rstrip().endswith("Stopped before it was ready.")
    await eventually(lambda: not _marked(mark), "the end of all children")


@asynccontextmanager
async def _long_stream(url: str) -> AsyncIterator[httpx.Response]:
    key = base()["chat-secret"]["stringData"]["key"]
    body = {
        "model": MODEL,
        "stream": True,
        "max_tokens": 4000,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "x"}],
    }
    headers = {"authorization": f"Bearer {key}"}
    async with (
        httpx.AsyncClient(timeout=30, trust_env=False) as client,
        client.stream("POST", f"{url}/v1/chat/completions", headers=headers, json=body) as stream,
    ):
        yield stream


async def test_a_stream_that_outlasts_the_stop_is_told_so(folder: Path) -> None:
    async with _up(folder) as running, _long_stream(running.url) as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        running.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(15):
            rest = [line async for line in lines if line]
            await running.process.communicate()
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "draining"
        assert running.process.returncode == 0


async def test_a_second_signal_does_not_wait_for_streams(folder: Path) -> None:
    async with _up(folder) as running:
        async with _long_stream(running.url) as stream:
            await anext(stream.aiter_lines())
            running.process.send_signal(signal.SIGTERM)
            assert running.process.stderr is not None
            while b"Stopping" not in await running.process.stderr.readline():
                assert running.process.returncode is None
            running.process.send_signal(signal.SIGINT)
            async with asyncio.timeout(10):
                _, errors = await running.process.communicate()
        assert b"started again" not in errors
        assert running.process.returncode == 0
        await _ended(running)


async def test_a_killed_stack_leaves_nothing_behind(folder: Path) -> None:
    async with _up(folder) as running:
        running.process.kill()
        await running.process.wait()
        await _ended(running)


async def _refused(*arguments: str) -> tuple[int | None, str]:
    """Exit status and standard error of a command that must not start anything."""
    mark = uuid.uuid4().hex
    process = await _start(mark, *arguments)
    async with asyncio.timeout(30):
        _, errors = await process.communicate()
    assert "Traceback" not in errors.decode()
    assert not _marked(mark), "something was left running"
    return process.returncode, errors.decode()


async def test_port_in_use_is_one_sentence_and_leaves_nothing_running(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, errors = await _refused("-f", str(folder), "--port", str(port))
    assert status == 2
    assert f"Error: Port {port} is in use: stop what listens there, or choose another with --port N" in errors


async def test_bad_manifests_are_refused_with_exit_status_1(folder: Path) -> None:
    write_folder(folder, changed(base(), "chat", "spec.mode", "Fast"))
    status, errors = await _refused("-f", str(folder), "--port", "0")
    assert status == 1
    assert "error: manifests.yaml, document 1 (ServingPool chat): spec.mode: " in errors


USAGE = {
    "a time scale that is no number": (["--time-scale", "nan"], "nan is no finite number."),
    "an --engine for an unknown pool": (["--engine", "chatt=http://127.0.0.1:1"], "did you mean chat?"),
    "an --engine without a URL": (["--engine", "chat"], "write POOL=URL"),
    "a store that there is not": (["--limits-store", "redis"], "write memory, valkey://HOST:PORT/DB"),
    "a store without a name": (["--limits-store", ""], "write memory, valkey://HOST:PORT/DB"),
    "a pool that cannot be simulated": ([], "gives its model's shape by numbers"),
}


@pytest.mark.parametrize(("arguments", "words"), USAGE.values(), ids=USAGE)
async def test_wrong_usage_is_one_sentence_with_exit_status_2(folder: Path, arguments: list[str], words: str) -> None:
    if not arguments:
        shape = {"parameters": 10**9, "layers": 8, "hiddenSize": 1024, "heads": 8, "kvHeads": 8, "headDim": 128}
        write_folder(folder, changed(base(), "chat", "spec.model.shape", shape))
    status, errors = await _refused("-f", str(folder), "--port", "0", *arguments)
    assert status == 2
    assert words in errors
