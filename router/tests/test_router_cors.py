"""Web pages of other origins, HEAD and OPTIONS: a browser's preflight shows no key, and errors must be readable too."""

from typing import Any

import pytest

from hlserve_router.cors import Cors
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_pool, a_table
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import ORDINARY
from hlserve_router.testing.stage import Stage

CHAT = "/v1/chat/completions"
NS: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
APP = "https://app.example"
PREFLIGHT = {
    "origin": APP,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-session-id",
}


async def a_router(stage: Stage, *origins: str) -> RunningRouter:
    engine = await stage.engine(ORDINARY)
    return await stage.router(a_table(a_pool("agents", engine.url), a_class("agent", "agents")), cors_origins=origins)


def cors_headers(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("access-control-")}


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/messages", "/v1/nothing"])
@pytest.mark.parametrize("origins", [(APP,), ("https://other.example", APP), ("*",)], ids=["one", "several", "any"])
async def test_b33_a_preflight_of_a_configured_origin_needs_no_key(
    stage: Stage, origins: tuple[str, ...], path: str
) -> None:
    router = await a_router(stage, *origins)
    answer = await router.http.options(router.url + path, headers=PREFLIGHT)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == APP
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type,x-session-id"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["vary"] == "origin"
    assert "access-control-allow-credentials" not in answer.headers
    assert answer.headers.get("content-length") in (None, "0")


@pytest.mark.parametrize(
    ("origins", "sent"),
    [
        pytest.param((), PREFLIGHT, id="not configured"),
        pytest.param(("https://other.example",), PREFLIGHT, id="another origin"),
        pytest.param((APP,), {**PREFLIGHT, "origin": "https://app.example.evil"}, id="an origin that begins alike"),
        pytest.param((APP,), {**PREFLIGHT, "origin": "null"}, id="the null origin"),
        pytest.param((APP,), {}, id="no browser"),
    ],
)
async def test_b33_other_preflights_are_told_nothing(
    stage: Stage, origins: tuple[str, ...], sent: dict[str, str]
) -> None:
    router = await a_router(stage, *origins)
    answer = await router.http.options(router.url + CHAT, headers=sent)
    assert answer.status_code == 405
    assert cors_headers(answer.headers) == {}
    post = await router.post(CHAT, NS, AGENT_KEY, **({"origin": sent["origin"]} if sent else {}))
    assert post.status_code == 200
    assert cors_headers(post.headers) == {}


async def test_b33_every_answer_to_a_configured_origin_can_be_read_by_the_page(stage: Stage) -> None:
    router = await a_router(stage, APP)
    auth = {"authorization": f"Bearer {AGENT_KEY}", "origin": APP}
    answers = [
        await router.post(CHAT, NS, origin=APP),
        await router.post(CHAT, {**NS, "stream": True}, origin=APP),
        await router.post(CHAT, NS, None, origin=APP),
        await router.post(CHAT, b"{", origin=APP),
        await router.post(CHAT, {**NS, "model": "nope"}, origin=APP),
        await router.post("/v1/nothing", NS, origin=APP),
        await router.http.get(router.url + CHAT, headers=auth),
        await router.http.get(f"{router.url}/v1/models", headers=auth),
        await router.http.get(f"{router.url}/v1/models", headers={"origin": APP}),
        await router.http.get(f"{router.url}/healthz", headers={"origin": APP}),
        await router.post(CHAT, NS, origin=APP, x_long="x" * 70_000),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 401, 400, 404, 404, 405, 200, 401, 200, 431]
    for answer in answers:
        assert answer.headers.get_list("access-control-allow-origin") == [APP], answer.status_code
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert "origin" in answer.headers.get_list("vary")
    assert cors_headers((await router.post(CHAT, NS)).headers) == {}


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_b33_health_answers_head_with_an_empty_body(stage: Stage, path: str) -> None:
    router = await a_router(stage)
    answer = await router.http.head(router.url + path)
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS"])
async def test_b33_head_and_options_of_what_takes_post_are_405_without_a_body_for_head(
    stage: Stage, method: str
) -> None:
    router = await a_router(stage)
    answer = await router.http.request(method, router.url + CHAT)
    assert answer.status_code == 405
    assert (answer.content == b"") is (method == "HEAD")
    assert (await router.post(CHAT, NS)).status_code == 200


@pytest.mark.parametrize("wanted", ["x\r\nset-cookie: a=b", "", "x" * 5000, "a;b"])
def test_only_header_names_are_allowed_back(wanted: str) -> None:
    headers = [(b"origin", APP.encode()), (b"access-control-request-method", b"POST"),
               (b"access-control-request-headers", wanted.encode())]  # fmt: skip
    answer = Cors([APP]).preflight("OPTIONS", headers)
    assert answer is not None
    assert b"access-control-allow-headers" not in dict(answer)
