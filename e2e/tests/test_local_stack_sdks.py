"""What clients see of a running stack: official SDKs, curl, and the sentence that each mistake gets."""

import asyncio
import sys

import anthropic
import httpx
import openai
import pytest

from hlserve_local.snippets import anthropic_python, curl, openai_python
from hlserve_local.stack import Stack
from hlserve_local.testing.manifests import MODEL

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROUTES = {"chat-app": ("interactive", "chat"), "coder": ("agent", "agents")}


def _openai(stack: Stack, client: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{stack.base_url}/v1", api_key=stack.keys[client], max_retries=0)


def _anthropic(stack: Stack, client: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=stack.base_url, api_key=stack.keys[client], max_retries=0)


@pytest.mark.parametrize("client", ROUTES)
async def test_openai_sdk_gets_an_answer_from_its_own_pool(stack: Stack, client: str) -> None:
    async with _openai(stack, client) as sdk:
        raw = await sdk.chat.completions.with_raw_response.create(
            model=MODEL, max_tokens=8, messages=[{"role": "user", "content": "one two three"}]
        )
    assert (raw.headers["x-hlserve-class"], raw.headers["x-hlserve-pool"]) == ROUTES[client]
    reply = raw.parse()
    assert reply.choices[0].message.content
    assert reply.usage is not None
    assert 0 < reply.usage.completion_tokens <= 8


@pytest.mark.parametrize("client", ROUTES)
async def test_openai_sdk_streams(stack: Stack, client: str) -> None:
    async with _openai(stack, client) as sdk:
        stream = await sdk.chat.completions.create(
            model=MODEL, max_tokens=8, stream=True, messages=[{"role": "user", "content": "one two three"}]
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert all(chunk.choices for chunk in chunks), "usage was not asked for"


@pytest.mark.parametrize("client", ROUTES)
async def test_anthropic_sdk_gets_an_answer_and_streams(stack: Stack, client: str) -> None:
    async with _anthropic(stack, client) as sdk:
        raw = await sdk.messages.with_raw_response.create(
            model=MODEL, max_tokens=8, messages=[{"role": "user", "content": "one two three"}]
        )
        assert (raw.headers["x-hlserve-class"], raw.headers["x-hlserve-pool"]) == ROUTES[client]
        block = (await raw.parse()).content[0]
        assert block.type == "text"
        assert block.text
        async with sdk.messages.stream(
            model=MODEL, max_tokens=8, messages=[{"role": "user", "content": "one two three"}]
        ) as stream:
            text = "".join([part async for part in stream.text_stream])
            message = await stream.get_final_message()
    assert text
    assert message.stop_reason in ("end_turn", "max_tokens")


async def _run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def test_the_printed_snippets_work_when_pasted(stack: Stack) -> None:
    access = next(access for access in stack.accesses if access.client == "coder")
    streamed, from_openai, from_anthropic = await asyncio.gather(
        _run("bash", "-c", curl(access, stack.base_url)),
        _run(sys.executable, "-c", openai_python(access, stack.base_url)),
        _run(sys.executable, "-c", anthropic_python(access, stack.base_url)),
    )
    assert streamed.rstrip().endswith("data: [DONE]")
    assert from_openai.strip()
    assert from_anthropic.strip()


async def test_the_header_lowers_the_class(stack: Stack, client: httpx.AsyncClient) -> None:
    answer = await client.post(
        f"{stack.base_url}/v1/chat/completions",
        headers={"authorization": f"Bearer {stack.keys['chat-app']}", "x-hlserve-class": "batch"},
        json={"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]},
    )
    assert (answer.headers["x-hlserve-class"], answer.headers["x-hlserve-pool"]) == ("batch", "agents")


GOOD_BODY = b'{"model": "%s", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}' % MODEL.encode()
MISTAKES = {
    "a wrong key": ({"authorization": "Bearer hls_wrong-wrong-wrong-wrong"}, GOOD_BODY, 401, "invalid_key"),
    "no key": ({"authorization": ""}, GOOD_BODY, 401, "missing_key"),
    "an unknown model": ({}, GOOD_BODY.replace(MODEL.encode(), b"gpt-9"), 404, "model_not_found"),
    "a body that is no JSON": ({}, b"hello", 400, "invalid_json"),
    "no model": ({}, b'{"messages": []}', 400, "missing_model"),
    "a class that does not exist": ({"x-hlserve-class": "turbo"}, GOOD_BODY, 400, "unknown_class"),
}


@pytest.mark.parametrize(("headers", "body", "status", "code"), MISTAKES.values(), ids=MISTAKES)
async def test_mistake_gets_its_status_code_and_sentence(
    stack: Stack, client: httpx.AsyncClient, headers: dict[str, str], body: bytes, status: int, code: str
) -> None:
    sent = {"content-type": "application/json", "authorization": f"Bearer {stack.keys['coder']}", **headers}
    if not sent["authorization"]:
        del sent["authorization"]
    answer = await client.post(f"{stack.base_url}/v1/chat/completions", headers=sent, content=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code
    assert error["message"].rstrip().endswith((".", "?"))
    assert len(error["message"]) > 20
    assert answer.headers["x-hlserve-reason"] == code
