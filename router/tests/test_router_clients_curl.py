"""curl against the router: a body that waits for leave, an old protocol, IPv6, TLS, a stream."""

import asyncio
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hlserve_router.testing.certificates import Authority
from hlserve_router.testing.clients import replies
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_pool, a_table
from hlserve_router.testing.engine import ScriptedEngine
from hlserve_router.testing.running import Face, RunningRouter
from hlserve_router.testing.scripts import either, reply, stream
from hlserve_router.testing.stage import Stage

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]
CHAT = "/v1/chat/completions"
PLAY = either(stream(*replies.CHAT_STREAM), reply(replies.CHAT))
LARGE_BYTES = 2_000_000
KEY = ("--header", f"authorization: Bearer {AGENT_KEY}")
JSON = ("--header", "content-type: application/json")


@dataclass(frozen=True)
class Curled:
    """What curl printed: the body, and with `--verbose` the heads as they went over the wire."""

    status: int
    body: bytes
    trace: str


async def curl(url: str, *options: str, body: bytes | None = None) -> Curled:
    arguments = [
        "curl",
        "--silent",
        "--show-error",
        "--verbose",
        "--globoff",
        "--noproxy",
        "*",
        "--max-time",
        "100",
        *options,
        url,
    ]
    data = [] if body is None else ["--data-binary", "@-"]
    process = await asyncio.create_subprocess_exec(
        *arguments, *data, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, trace = await process.communicate(body)
    return Curled(process.returncode or 0, output, trace.decode())


def a_body(size_bytes: int = 0) -> bytes:
    return json.dumps({"model": "m1", "messages": [{"role": "user", "content": "x" * size_bytes}]}).encode()


async def a_router(stage: Stage, **settings: Any) -> tuple[RunningRouter, ScriptedEngine]:
    engine = await stage.engine(PLAY)
    return await stage.router(a_table(a_pool("agents", engine.url), a_class("agent", "agents")), **settings), engine


async def test_b31_a_large_body_that_waits_for_100_continue(stage: Stage) -> None:
    router, engine = await a_router(stage)
    got = await curl(
        router.url + CHAT,
        *KEY,
        *JSON,
        "--header",
        "Expect: 100-continue",
        "--expect100-timeout",
        "60",
        body=a_body(LARGE_BYTES),
    )
    assert (got.status, got.body) == (0, replies.CHAT)
    assert got.trace.index("< HTTP/1.1 100 Continue") < got.trace.index("< HTTP/1.1 200")
    assert "Done waiting for 100-continue" not in got.trace
    assert engine.requests[0].body == a_body(LARGE_BYTES)
    assert engine.requests[0].header("expect") is None


async def test_b31_a_wrong_key_is_told_before_the_body_is_sent(stage: Stage) -> None:
    router, engine = await a_router(stage)
    got = await curl(
        router.url + CHAT, *JSON, "--header", "authorization: Bearer nobody", "--header", "Expect: 100-continue",
        "--expect100-timeout", "60", "--write-out", "%{size_upload}", body=a_body(LARGE_BYTES),
    )  # fmt: skip
    answer, _, sent = got.body.rpartition(b"}")
    assert json.loads(answer + b"}")["error"]["code"] == "invalid_key"
    assert sent == b"0"
    assert "100 Continue" not in got.trace
    assert not engine.requests


async def test_http_1_0_probes_and_calls(stage: Stage, face: Face) -> None:
    router, engine = await a_router(stage)
    for path in ("/healthz", "/readyz"):
        got = await curl(router.url + path, "--http1.0")
        assert got.status == 0
        assert json.loads(got.body)["status"] == "ok"
    whole = await curl(router.url + CHAT, "--http1.0", *KEY, *JSON, body=a_body())
    assert (whole.status, whole.body) == (0, replies.CHAT)
    streamed = await curl(
        router.url + CHAT, "--http1.0", *KEY, *JSON, body=b'{"model": "m1", "stream": true, "messages": [], "stream_options": \
{"include_usage": true}}'
    )  # fmt: skip
    assert (streamed.status, streamed.body) == (0, b"".join(replies.CHAT_STREAM))
    if face is Face.SPLICE:  # on the portable face framing belongs to its server
        assert "transfer-encoding" not in streamed.trace.lower()
    assert len(engine.requests) == 2


async def test_head_and_options(stage: Stage) -> None:
    router, _ = await a_router(stage)
    head = await curl(f"{router.url}/v1/models", "--head", *KEY)
    assert "< HTTP/1.1 200" in head.trace
    options = await curl(router.url + CHAT, "--request", "OPTIONS")
    assert "< HTTP/1.1 405" in options.trace
    assert "< allow: POST" in options.trace


async def test_https_with_a_private_authority(stage: Stage, tmp_path: Path) -> None:
    authority = Authority()
    certificate, key = authority.write(tmp_path, "127.0.0.1")
    root = tmp_path / "ca.crt"
    root.write_text(authority.pem)
    router, _ = await a_router(stage, tls_cert=certificate, tls_key=key)
    got = await curl(router.url + CHAT, "--cacert", str(root), *KEY, *JSON, body=a_body(LARGE_BYTES))
    assert (got.status, got.body) == (0, replies.CHAT)


async def test_ipv6(stage: Stage) -> None:
    router, _ = await a_router(stage, host="::1")
    assert router.url.startswith("http://[::1]:")
    got = await curl(router.url + CHAT, *KEY, *JSON, body=a_body())
    assert (got.status, got.body) == (0, replies.CHAT)
