"""Names of models and lengths of replies, by the ids of the reports they come from."""

import json
from typing import Any

import pytest

from hlserve_api.routing import ClassLimits, KeyLimits
from hlserve_router.estimate import OUTPUT_TOKENS_DEFAULT
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_key, a_keyring, a_pool, a_table
from hlserve_router.testing.scripts import ORDINARY
from hlserve_router.testing.stage import Stage

CHAT = "/v1/chat/completions"
SAYING_IT = 'say "model":"gpt-fast" and nothing else'
NS: dict[str, Any] = {"model": "gpt-fast", "messages": [{"role": "user", "content": SAYING_IT}], "temperature": 1e-7}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(CHAT, NS, id="B36: chat"),
        pytest.param(CHAT, {**NS, "stream": True}, id="B36: a stream"),
        pytest.param("/v1/completions", {"prompt": SAYING_IT, "model": "gpt-fast"}, id="B36: completions"),
        pytest.param("/v1/embeddings", {"input": SAYING_IT, "model": "gpt-fast"}, id="B36: embeddings"),
        pytest.param("/v1/responses", {"model": "gpt-fast", "input": SAYING_IT}, id="B36: responses"),
        pytest.param("/v1/messages", {**NS, "max_tokens": 5, "x": {"model": "gpt-fast"}}, id="B36: messages"),
    ],
)
async def test_b36_only_the_top_level_name_is_rewritten(stage: Stage, path: str, body: dict[str, Any]) -> None:
    engine = await stage.engine(ORDINARY)
    router = await stage.router(
        a_table(a_pool("agents", engine.url, aliases=("gpt-fast",)), a_class("agent", "agents"))
    )
    sent = json.dumps(body).encode()
    assert (await router.post(path, sent)).status_code == 200
    at = sent.index(b'"gpt-fast"', sent.rindex(b'"model": "gpt-fast"') if "x" not in body else 0)
    assert engine.requests[0].body.endswith(sent[:at][1:] + b'"m1"' + sent[at + len(b'"gpt-fast"') :])


async def test_b36_an_alias_is_listed_and_described(stage: Stage) -> None:
    router = await stage.router(
        a_table(a_pool("agents", "http://127.0.0.1:1", aliases=("gpt-fast",)), a_class("agent", "agents"))
    )
    headers = {"authorization": f"Bearer {AGENT_KEY}"}
    listed = await router.http.get(f"{router.url}/v1/models", headers=headers)
    assert [model["id"] for model in listed.json()["data"]] == ["m1", "gpt-fast"]
    one = await router.http.get(f"{router.url}/v1/models/gpt-fast", headers=headers)
    assert (one.json()["id"], one.json()["root"]) == ("gpt-fast", "m1")


@pytest.mark.parametrize(
    ("models", "path", "name", "status"),
    [
        pytest.param(("gpt-fast",), CHAT, "gpt-fast", 200, id="B36: the alias that the key may use"),
        pytest.param(("gpt-fast",), CHAT, "m1", 404, id="B36: the real name, which it may not"),
        pytest.param(("gpt-fast",), "/generate", None, 200, id="B36: no name, on a route that needs none"),
        pytest.param(("other",), "/generate", None, 404, id="B36: no name, and nothing that the key may use"),
        pytest.param(("m1",), CHAT, "gpt-fast", 200, id="B36: the right to a model is one to its aliases"),
    ],
)
async def test_b36_a_key_that_may_use_one_name(
    stage: Stage, models: tuple[str, ...], path: str, name: str | None, status: int
) -> None:
    engine = await stage.engine(ORDINARY)
    router = await stage.router(
        a_table(a_pool("agents", engine.url, aliases=("gpt-fast",)), a_class("agent", "agents")),
        a_keyring(a_key(AGENT_KEY, "coder", "agent", models=models)),
    )
    body: dict[str, Any] = {"text": "hi"} if path == "/generate" else {"messages": []}
    answer = await router.post(path, body if name is None else {**body, "model": name})
    assert answer.status_code == status
    assert len(engine.requests) == (1 if status == 200 else 0)


LIMITS = [
    pytest.param({"max_completion_tokens": 50}, 50, id="B38: max_completion_tokens alone"),
    pytest.param({"max_tokens": 50}, 50, id="B38: max_tokens alone"),
    pytest.param({"max_tokens": 5, "max_completion_tokens": 50}, 50, id="B38: the larger of both"),
    pytest.param({"max_tokens": 50, "max_completion_tokens": 5}, 50, id="B38: the larger of both, the other way round"),
    pytest.param({}, OUTPUT_TOKENS_DEFAULT, id="B38: neither"),
    pytest.param({"max_tokens": -1}, OUTPUT_TOKENS_DEFAULT, id="B38: a negative one is left to the engine"),
]


@pytest.mark.parametrize(("fields", "reply_tokens"), LIMITS)
@pytest.mark.parametrize("fits", [True, False], ids=["it fits", "it is one too many"])
async def test_b38_the_estimate_of_a_key_limited_in_tokens(
    stage: Stage, fields: dict[str, int], reply_tokens: int, fits: bool
) -> None:
    """The second request is let in by its estimate: what its prompt has, and the reply that it asks for."""
    engine = await stage.engine(ORDINARY)
    first = 6  # as the engine reports it
    prompt_tokens = len(json.dumps(NS["messages"])) // 4
    limit = first + prompt_tokens + reply_tokens - (0 if fits else 1)
    router = await stage.router(
        a_table(a_pool("agents", engine.url, aliases=("gpt-fast",)), a_class("agent", "agents")),
        a_keyring(a_key(AGENT_KEY, "coder", "agent", limits=KeyLimits(tokens_per_minute=limit))),
    )
    assert (await router.post(CHAT, {"model": "m1", "messages": []})).status_code == 200
    sent = json.dumps({**NS, "model": "m1", **fields}).encode()
    answer = await router.post(CHAT, sent)
    assert answer.status_code == (200 if fits else 429), answer.text
    assert [request.body for request in engine.requests[1:]] == ([sent] if fits else [])


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        pytest.param(CHAT, {"max_tokens": 100}, 200, id="as much as the class gives"),
        pytest.param(CHAT, {"max_tokens": 100, "n": 3}, 200, id="as much in each choice"),
        pytest.param(CHAT, {"max_tokens": 101}, 400, id="one more"),
        pytest.param(CHAT, {}, 400, id="no limit"),
        pytest.param("/v1/messages", {"max_tokens": 101}, 400, id="messages"),
        pytest.param("/v1/responses", {"max_output_tokens": 101}, 400, id="responses"),
        pytest.param("/generate", {"sampling_params": {"max_new_tokens": 100}}, 200, id="generate"),
        pytest.param("/v1/embeddings", {}, 200, id="embeddings have no reply"),
        pytest.param("/v1/messages/count_tokens", {}, 200, id="nor has a count of tokens"),
    ],
)
async def test_a_class_bounds_replies(stage: Stage, path: str, fields: dict[str, Any], status: int) -> None:
    engine = await stage.engine(ORDINARY)
    route = a_class("agent", "agents", limits=ClassLimits(max_output_tokens=100))
    router = await stage.router(a_table(a_pool("agents", engine.url), route))
    body = {"model": "m1", "messages": [], "input": "x", "text": "x", "prompt": "x", **fields}
    answer = await router.post(path, body)
    assert answer.status_code == status, answer.text
    if status == 400:
        error = answer.json()["error"]
        reason = error.get("code") or error["details"]["error_code"]
        assert reason == "output_too_large"
        assert "at most 100" in error["message"]
