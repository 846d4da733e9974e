import json
from collections.abc import Mapping

import httpx
import pytest

from hlserve_sim.testing import MODEL, running

LONG = " ".join(f"w{number}" for number in range(80))
CHAT: Mapping[str, object] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
LONG_CHAT: Mapping[str, object] = {"model": MODEL, "messages": [{"role": "user", "content": LONG}], "max_tokens": 4}
TOO_LONG = "The input (80 tokens) is longer than the model's context length (64 tokens)."
TOO_LONG_CHAT = "The input (83 tokens) is longer than the model's context length (64 tokens)."


def flat(message: str, kind: str = "BadRequestError", param: str | None = None, code: int = 400) -> dict[str, object]:
    return {"object": "error", "message": message, "type": kind, "param": param, "code": code}


WHOLE: list[tuple[str, str, Mapping[str, object], int, Mapping[str, object]]] = [
    ("an over-long chat", "/v1/chat/completions", LONG_CHAT, 400, flat(TOO_LONG_CHAT)),
    ("an over-long completion", "/v1/completions", {"model": MODEL, "prompt": LONG}, 400, flat(TOO_LONG)),
    ("an over-long native call", "/generate", {"text": LONG}, 400, {"error": {"message": TOO_LONG}}),
    (
        "an over-long response",
        "/v1/responses",
        {"model": MODEL, "input": LONG},
        400,
        {"error": {"message": TOO_LONG_CHAT, "type": "invalid_request_error", "param": None, "code": 400}},
    ),
    (
        "more reply than context",
        "/v1/completions",
        {"model": MODEL, "prompt": "one two", "max_tokens": 63},
        400,
        flat(
            "Requested token count exceeds the model's maximum context length of 64 tokens. You requested a total of 65 tokens: "
            "2 tokens from the input messages and 63 tokens for the completion. Please reduce the number of tokens in the input "
            "messages or the completion to fit within the limit."
        ),
    ),
    (
        "an unknown model of the responses API",
        "/v1/responses",
        {"model": "other", "input": "hi"},
        404,
        {
            "error": {
                "message": "The model 'other' does not exist",
                "type": "invalid_request_error",
                "param": "model",
                "code": 404,
            }
        },
    ),
    (
        "an empty prompt",
        "/v1/completions",
        {"model": MODEL, "prompt": ""},
        400,
        flat("Prompt cannot be empty", param="prompt"),
    ),
    (
        "no messages",
        "/v1/chat/completions",
        {"model": MODEL, "messages": []},
        400,
        flat("Messages cannot be empty.", param="messages"),
    ),
    (
        "a number that is none",
        "/v1/chat/completions",
        {**CHAT, "max_tokens": "many"},
        400,
        flat("max_tokens: must be an integer", "Bad Request", "max_tokens"),
    ),
    (
        "no choice",
        "/v1/chat/completions",
        {**CHAT, "n": 0},
        400,
        flat("n must be at least 1, got 0.", param="n"),
    ),
    (
        "more choices than anyone wants",
        "/v1/completions",
        {"model": MODEL, "prompt": ["a", "b"], "n": 600},
        400,
        flat("n: at most 1024 choices a request, not 1200", param="n"),
    ),
    (
        "a batch of texts and token ids",
        "/v1/completions",
        {"model": MODEL, "prompt": ["a", [1]]},
        400,
        flat("prompt: must hold either texts or lists of token ids", "Bad Request", "prompt"),
    ),
    (
        "an empty prompt in a batch",
        "/v1/completions",
        {"model": MODEL, "prompt": ["a", ""]},
        400,
        flat("Prompt cannot be empty", param="prompt"),
    ),
    (
        "too many alternatives",
        "/v1/chat/completions",
        {**CHAT, "logprobs": True, "top_logprobs": 21},
        400,
        flat("top_logprobs: must be from 0 to 20, not 21", param="top_logprobs"),
    ),
    (
        "fewer than no alternatives",
        "/v1/completions",
        {"model": MODEL, "prompt": "a", "logprobs": -1},
        400,
        flat("logprobs: must be from 0 to 20, not -1", param="logprobs"),
    ),
    (
        "a required tool without tools",
        "/v1/chat/completions",
        {**CHAT, "tool_choice": "required"},
        400,
        flat("Tools cannot be empty if tool choice is set to required.", param="tool_choice"),
    ),
    (
        "a token id that is none",
        "/v1/completions",
        {"model": MODEL, "prompt": [1, -2]},
        400,
        flat("prompt: token ids must be at least 0", "Bad Request", "prompt"),
    ),
    (
        "a message without max_tokens",
        "/v1/messages",
        CHAT,
        400,
        {"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: Field required"}},
    ),
    (
        "both kinds of native prompt",
        "/generate",
        {"text": "a", "input_ids": [1]},
        400,
        {"error": {"message": "Exactly one of text and input_ids must be given."}},
    ),
]
STREAMED: list[tuple[str, str, Mapping[str, object], list[Mapping[str, object]]]] = [
    ("chat", "/v1/chat/completions", LONG_CHAT, [{"error": flat(TOO_LONG_CHAT)}]),
    ("completions", "/v1/completions", {"model": MODEL, "prompt": LONG}, [{"error": flat(TOO_LONG)}]),
    (
        "the native API",
        "/generate",
        {"text": LONG},
        [{"error": {"message": TOO_LONG, "type": "invalid_request_error", "code": 400, "retryable": False}}],
    ),
]


@pytest.mark.parametrize(
    ("path", "body", "status", "expected"), [row[1:] for row in WHOLE], ids=[row[0] for row in WHOLE]
)
async def test_a_bad_request_is_answered_in_the_apis_own_shape(
    http: httpx.AsyncClient, path: str, body: Mapping[str, object], status: int, expected: Mapping[str, object]
) -> None:
    async with running("--context-length", "64") as engine:
        answer = await http.post(engine.url + path, json=body)
    assert answer.status_code == status
    assert answer.json() == expected


@pytest.mark.parametrize(("path", "body", "expected"), [row[1:] for row in STREAMED], ids=[row[0] for row in STREAMED])
async def test_an_over_long_prompt_on_a_stream_is_200_with_an_error_event_first(
    http: httpx.AsyncClient, path: str, body: Mapping[str, object], expected: list[Mapping[str, object]]
) -> None:
    async with running("--context-length", "64") as engine:
        answer = await http.post(engine.url + path, json={**body, "stream": True})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done = answer.text.strip().split("\n\n")
    assert [json.loads(event.removeprefix("data: ")) for event in events] == expected
    assert done == "data: [DONE]"


async def test_an_over_long_message_stream_carries_an_error_event_and_ends_in_order(http: httpx.AsyncClient) -> None:
    async with running("--context-length", "64") as engine:
        answer = await http.post(engine.url + "/v1/messages", json={**LONG_CHAT, "stream": True})
    assert answer.status_code == 200
    names = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    assert names == ["message_start", "error", "message_stop"]
    assert TOO_LONG_CHAT in answer.text


async def test_an_over_long_response_stream_fails(http: httpx.AsyncClient) -> None:
    async with running("--context-length", "64") as engine:
        answer = await http.post(engine.url + "/v1/responses", json={"model": MODEL, "input": LONG, "stream": True})
    assert answer.status_code == 200
    names = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    assert names == ["response.created", "response.in_progress", "response.failed"]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"{", {"content-type": "application/json"}),
        (b"[1]", {"content-type": "application/json"}),
        (b"{}", {"content-type": "text/plain"}),
        (b"\xff{}", {"content-type": "application/json"}),
    ],
    ids=["broken JSON", "JSON that is no object", "another content type", "bytes that are no text"],
)
async def test_a_body_that_is_no_json_object_is_400(
    http: httpx.AsyncClient, body: bytes, headers: dict[str, str]
) -> None:
    async with running() as engine:
        answer = await http.post(engine.url + "/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["type"] == "Bad Request"


async def test_chat_answers_under_whatever_model_name_it_is_asked_for(http: httpx.AsyncClient) -> None:
    async with running("--time-scale", "20") as engine:
        answer = await http.post(engine.url + "/v1/chat/completions", json={**CHAT, "model": "alias", "max_tokens": 1})
    assert answer.status_code == 200
    assert answer.json()["model"] == "alias"


async def test_an_unknown_model_is_not_found(http: httpx.AsyncClient) -> None:
    async with running() as engine:
        answer = await http.get(engine.url + "/v1/models/other")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


async def test_a_full_queue_is_503_whole_and_an_error_event_on_a_stream(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 2000, "ignore_eos": True}
    waits = {"model": MODEL, "input": "x", "stream": True}
    async with (
        running("--max-running-requests", "1", "--max-queued-requests", "1") as engine,
        http.stream("POST", engine.url + "/v1/completions", json={**body, "stream": True}) as first,
    ):
        first_lines = first.aiter_lines()
        await anext(first_lines)
        async with http.stream("POST", engine.url + "/v1/responses", json=waits) as second:
            second_lines = second.aiter_lines()
            await anext(second_lines)
            whole = await http.post(engine.url + "/v1/completions", json=body)
            streamed = await http.post(engine.url + "/v1/completions", json={**body, "stream": True})
    assert whole.status_code == 503
    assert whole.json() == flat("The request queue is full.", "SERVICE_UNAVAILABLE", code=503)
    assert int(whole.headers["retry-after"]) >= 1
    assert streamed.status_code == 200
    assert json.loads(streamed.text.split("\n\n")[0].removeprefix("data: ")) == {"error": whole.json()}


async def test_a_request_id_in_use_is_refused(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": [1], "max_tokens": 2000, "ignore_eos": True, "rid": "same"}
    async with (
        running() as engine,
        http.stream("POST", engine.url + "/v1/completions", json={**body, "stream": True}) as first,
    ):
        lines = first.aiter_lines()
        await anext(lines)
        again = await http.post(engine.url + "/v1/completions", json=body)
    assert again.status_code == 400
    assert "Duplicate request ID" in again.json()["message"]


async def test_a_key_guards_everything_but_health_and_metrics(http: httpx.AsyncClient) -> None:
    async with running("--api-key", "secret", "--admin-api-key", "root", "--time-scale", "20") as engine:
        refused = await http.post(engine.url + "/v1/chat/completions", json=CHAT)
        client = {"authorization": "Bearer secret"}
        served = await http.post(engine.url + "/v1/chat/completions", json={**CHAT, "max_tokens": 1}, headers=client)
        no_admin = await http.post(engine.url + "/hlserve/drain", json={"drain": True}, headers=client)
        admin = await http.post(
            engine.url + "/hlserve/drain", json={"drain": True}, headers={"authorization": "Bearer root"}
        )
        health = await http.get(engine.url + "/health")
        metrics = await http.get(engine.url + "/metrics")
    assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
    assert served.status_code == 200
    assert no_admin.status_code == 401
    assert admin.json()["draining"] is True
    assert (health.status_code, metrics.status_code) == (200, 200)


ADMINISTRATION = [
    ("POST", "/hlserve/drain"),
    ("POST", "/abort_request"),
    ("POST", "/flush_cache"),
    ("GET", "/sim/faults"),
    ("POST", "/sim/faults"),
    ("DELETE", "/sim/faults"),
    ("GET", "/sim/state"),
]


async def test_an_administration_key_alone_guards_administration_and_nothing_else(http: httpx.AsyncClient) -> None:
    async with running("--admin-api-key", "root", "--time-scale", "20") as engine:
        served = await http.post(engine.url + "/v1/chat/completions", json={**CHAT, "max_tokens": 1})
        refused = [
            (method, path)
            for method, path in ADMINISTRATION
            if (await http.request(method, engine.url + path)).status_code == 401
        ]
    assert served.status_code == 200
    assert refused == ADMINISTRATION
