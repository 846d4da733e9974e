"""TLS to clients: official SDKs, renewal without a restart, and pairs that do not fit."""

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from hlserve_router.certificate import Certificate
from hlserve_router.errors import StartError
from hlserve_router.testing.certificates import Authority
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_pool, a_table
from hlserve_router.testing.engine import Play, scripted_engine
from hlserve_router.testing.process import router_process
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import DONE, ORDINARY, begun_until, delta, reply
from hlserve_router.testing.stage import Stage

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
HEADERS = {"authorization": f"Bearer {AGENT_KEY}"}
MESSAGE = (
    b'{"id":"m","type":"message","role":"assistant","model":"m1","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn",\
"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}'
)


async def secured(stage: Stage, folder: Path, authority: Authority, play: Play = ORDINARY) -> RunningRouter:
    certificate, key = authority.write(folder, "127.0.0.1")
    engine = await stage.engine(play)
    table = a_table(a_pool("agents", engine.url), a_class("agent", "agents"))
    return await stage.router(table, tls_cert=certificate, tls_key=key)


def trusting(authority: Authority) -> httpx.AsyncClient:
    return httpx.AsyncClient(verify=authority.client(), trust_env=False, timeout=10)


def trusting_sdk(authority: Authority) -> httpx2.AsyncClient:
    """The SDKs bring an HTTP client of their own."""
    return httpx2.AsyncClient(verify=authority.client(), trust_env=False, timeout=10)


async def test_the_official_sdks_work_over_https(stage: Stage, tmp_path: Path) -> None:
    authority = Authority()
    router = await secured(stage, tmp_path, authority)
    assert router.url.startswith("https://127.0.0.1:")
    async with trusting_sdk(authority) as http:
        client = openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key=AGENT_KEY, http_client=http)
        whole = await client.chat.completions.create(model="m1", messages=[{"role": "user", "content": "hi"}])
        assert whole.choices[0].message.content == "hi"
        stream = await client.chat.completions.create(
            model="m1", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Hello"
        assert [model.id async for model in client.models.list()] == ["m1"]
        large = await client.chat.completions.create(
            model="m1", messages=[{"role": "user", "content": "x" * 2_000_000}]
        )
        assert large.choices[0].message.content == "hi"


async def test_the_anthropic_sdk_works_over_https(stage: Stage, tmp_path: Path) -> None:
    authority = Authority()
    router = await secured(stage, tmp_path, authority, reply(MESSAGE))
    async with trusting_sdk(authority) as http:
        client = anthropic.AsyncAnthropic(base_url=router.url, api_key=AGENT_KEY, http_client=http)
        message = await client.messages.create(model="m1", max_tokens=5, messages=[{"role": "user", "content": "hi"}])
        assert message.stop_reason == "end_turn"


async def test_a_client_that_does_not_trust_it_or_speaks_http_gets_nothing(stage: Stage, tmp_path: Path) -> None:
    router = await secured(stage, tmp_path, Authority())
    async with trusting(Authority()) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(f"{router.url}/healthz")
    with pytest.raises(httpx.HTTPError):
        await router.http.get(router.url.replace("https://", "http://") + "/healthz")


async def test_a_renewed_certificate_is_shown_to_new_connections_and_breaks_no_stream(
    stage: Stage, tmp_path: Path
) -> None:
    old, new = Authority(), Authority()
    release = asyncio.Event()
    router = await secured(stage, tmp_path, old, begun_until(release))
    async with trusting(old) as before, trusting(new) as after:
        async with before.stream("POST", router.url + CHAT, json={**NS, "stream": True}, headers=HEADERS) as answer:
            chunks = answer.aiter_raw()
            assert await anext(chunks) == delta("A")
            new.write(tmp_path, "127.0.0.1")
            async with asyncio.timeout(5):
                while True:
                    try:
                        assert (await after.get(f"{router.url}/healthz")).status_code == 200
                        break
                    except httpx.ConnectError:
                        continue
            release.set()
            assert await anext(chunks) == DONE
        assert (await after.post(router.url + CHAT, json=NS, headers=HEADERS)).status_code == 200


@pytest.mark.parametrize("half", ["tls.crt", "tls.key"])
async def test_a_renewal_that_does_not_fit_changes_nothing_and_says_why(
    stage: Stage, tmp_path: Path, half: str
) -> None:
    authority = Authority()
    router = await secured(stage, tmp_path, authority)
    good = (tmp_path / "tls.crt").read_bytes(), (tmp_path / "tls.key").read_bytes()
    other = tmp_path / "other"
    other.mkdir()
    Authority().write(other, "127.0.0.1")
    (tmp_path / half).write_bytes((other / half).read_bytes())
    await router.until(lambda: bool(router.router.tables.problems))
    problem = next(iter(router.router.tables.problems.values()))
    assert "does not belong to the certificate" in problem
    async with trusting(authority) as http:
        assert (await http.get(f"{router.url}/healthz")).status_code == 200
    assert router.count("hlserve_router_document_errors_total", "certificate") == 1
    for name, content in zip(("tls.crt", "tls.key"), good, strict=True):
        (tmp_path / name).write_bytes(content)
    await router.until(lambda: not router.router.tables.problems)


@pytest.mark.parametrize(
    ("certificate", "key", "sentence"),
    [
        ("tls.crt", "other/tls.key", "does not belong to the certificate"),
        ("tls.key", "tls.key", "cannot be read as PEM"),
        ("nothing", "tls.key", "nothing cannot be read: No such file"),
        ("tls.crt", "empty", "cannot be read as PEM"),
    ],
    ids=["another key", "no certificate", "no file", "no key"],
)
def test_a_pair_that_does_not_fit_is_one_sentence_at_start(
    tmp_path: Path, certificate: str, key: str, sentence: str
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "empty").touch()
    Authority().write(tmp_path, "localhost")
    Authority().write(tmp_path / "other", "localhost")
    with pytest.raises(StartError, match=sentence):
        Certificate(tmp_path / certificate, tmp_path / key, lambda _: None)


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_the_command_serves_https_and_says_so(tmp_path: Path, workers: str) -> None:
    authority = Authority()
    certificate, key = authority.write(tmp_path, "127.0.0.1")
    options = ("--tls-cert", str(certificate), "--tls-key", str(key), "--workers", workers)
    async with scripted_engine(ORDINARY) as engine, router_process(tmp_path, engine.url, *options) as router:
        async with trusting(authority) as http:
            assert (await http.post(router.url + CHAT, json=NS, headers=HEADERS)).status_code == 200
        assert router.admin_url.startswith("http://")
        assert await router.end() == 0
