"""What goes wrong while a stack runs: clients that leave, engines that die, manifests that change."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

from hlserve_local.engines import EngineState
from hlserve_local.events import EventKind
from hlserve_local.gauges import read_engine_gauges
from hlserve_local.stack import Stack
from hlserve_local.testing.manifests import MODEL, base, changed, write_folder
from hlserve_local.testing.waiting import eventually, is_gone

pytestmark = pytest.mark.asyncio(loop_scope="module")
LONG = {
    "model": MODEL,
    "max_tokens": 4000,
    "ignore_eos": True,
    "stream": True,
    "messages": [{"role": "user", "content": "tell me everything"}],
}

SHORT = {**LONG, "max_tokens": 2, "stream": False}


def _headers(stack: Stack, client: str) -> dict[str, str]:
    return {"authorization": f"Bearer {stack.keys[client]}"}


async def _running(client: httpx.AsyncClient, stack: Stack, pool: str) -> dict[str, int]:
    """Requests that run or wait in each engine of a pool, by URL, as its own gauges tell."""
    found: dict[str, int] = {}
    for url, _ in stack.engines[pool]:
        gauges = await read_engine_gauges(client, url)
        found[url] = -1 if gauges is None else gauges.running + gauges.queued
    return found


async def _busy(client: httpx.AsyncClient, stack: Stack, pool: str) -> bool:
    return sum((await _running(client, stack, pool)).values()) > 0


async def _idle(client: httpx.AsyncClient, stack: Stack, pool: str) -> bool:
    return set((await _running(client, stack, pool)).values()) == {0}


async def _first(lines: AsyncIterator[str], count: int) -> AsyncIterator[str]:
    for _ in range(count):
        yield await anext(lines)


@pytest.mark.parametrize("body", [LONG, {**LONG, "stream": False}], ids=["in a stream", "waiting for a whole reply"])
async def test_client_that_leaves_frees_the_engine_within_a_second(
    stack: Stack, client: httpx.AsyncClient, body: dict[str, object]
) -> None:
    url = f"{stack.base_url}/v1/chat/completions"
    request = asyncio.create_task(client.post(url, headers=_headers(stack, "chat-app"), json=body))
    await eventually(lambda: _busy(client, stack, "chat"), "the request at the engine")
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await eventually(lambda: _idle(client, stack, "chat"), "an idle engine", timeout_seconds=1.0)


async def test_killed_engine_gives_a_marked_error_and_the_other_carries_on(
    stack: Stack, client: httpx.AsyncClient
) -> None:
    sdk = openai.AsyncOpenAI(base_url=f"{stack.base_url}/v1", api_key=stack.keys["coder"], max_retries=0)
    async with sdk:
        stream = await sdk.chat.completions.create(
            model=MODEL,
            max_tokens=4000,
            stream=True,
            messages=[{"role": "user", "content": "tell me everything"}],
            extra_body={"ignore_eos": True},
        )
        chunks = aiter(stream)
        await anext(chunks)
        loads = await _running(client, stack, "agents")
        (busy,) = [url for url, load in loads.items() if load > 0]
        pid = dict(stack.engines["agents"])[busy]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(openai.APIError) as caught:
            async for _ in chunks:
                pass
        assert caught.value.code in ("engine_reset", "engine_truncated")

        replies = await asyncio.gather(
            *(
                sdk.chat.completions.create(model=MODEL, max_tokens=2, messages=[{"role": "user", "content": "hello"}])
                for _ in range(4)
            )
        )
        assert all(reply.choices for reply in replies)
    await eventually(
        lambda: [engine.state for engine in stack.replicas if engine.spec.pool == "agents"] == [EngineState.READY] * 2,
        "the restarted engine",
        timeout_seconds=30,
    )
    kinds = [event.kind for event in stack.events.recent]
    assert EventKind.ENGINE_LOST in kinds
    assert EventKind.ENGINE_READY in kinds
    assert busy not in dict(stack.engines["agents"])


async def test_change_of_the_folder_is_taken_over_without_dropping_a_stream(
    stack: Stack, client: httpx.AsyncClient, manifests: Path
) -> None:
    url = f"{stack.base_url}/v1/chat/completions"
    before = dict(stack.engines["agents"])
    async with client.stream("POST", url, headers=_headers(stack, "coder"), json=LONG) as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        # Another batch size: every engine of the pool is replaced. And a key that did not exist.
        documents = changed(base(), "agents", "spec.engine.maxRunningRequests", 7)
        documents["late"] = {**documents["coder"], "metadata": {"name": "late"}}
        documents = changed(documents, "late", "spec.credentials.0.secretRef", None)
        write_folder(manifests, documents)
        await eventually(lambda: "late" in stack.keys, "the reload", timeout_seconds=30)
        fresh = {engine.url for engine in stack.replicas if engine.state is EngineState.READY}
        assert not set(before) & fresh, "engines with other flags must be other engines"

        async def _late_key_works() -> bool:
            answer = await client.post(url, headers=_headers(stack, "late"), json=SHORT)
            return answer.status_code == 200

        await eventually(_late_key_works, "the new key")
        await eventually(
            lambda: sum(not is_gone(pid) for pid in before.values() if pid) == 1, "the idle old engine's end"
        )
        after_reload = [json.loads(line[6:]) async for line in _first(lines, 50) if line]
        assert all(event["choices"] for event in after_reload), "the stream goes on, on the engine that drains"
    await eventually(lambda: all(is_gone(pid) for pid in before.values() if pid), "the other old engine's end")


async def test_bad_change_is_refused_and_the_last_good_one_stays(
    stack: Stack, client: httpx.AsyncClient, manifests: Path
) -> None:
    engines, keys = stack.engines, stack.keys
    write_folder(manifests, changed(base(), "agent", "spec.targets.0.poolRef.name", "nowhere"))
    await eventually(lambda: stack.events.recent[-1].kind is EventKind.RELOAD_REFUSED, "the refusal")
    assert "no ServingPool is named nowhere" in stack.events.recent[-1].text
    assert (stack.engines, stack.keys) == (engines, keys)
    answer = await client.post(
        f"{stack.base_url}/v1/chat/completions",
        headers=_headers(stack, "coder"),
        json=SHORT,
    )
    assert answer.status_code == 200


async def test_removed_pool_and_more_replicas(stack: Stack, client: httpx.AsyncClient, manifests: Path) -> None:
    documents = base()
    del documents["chat"]
    documents = changed(documents, "interactive", "spec.targets.0.poolRef.name", "agents")
    documents = changed(documents, "agents", "spec.engine.maxRunningRequests", 7)
    old = dict(stack.engines["agents"])
    (chat_pid,) = [pid for _, pid in stack.engines["chat"] if pid is not None]
    write_folder(manifests, changed(documents, "agents", "spec.replicas", 3))
    await eventually(lambda: len(stack.engines["agents"]) == 3, "the third replica", timeout_seconds=30)
    assert old.items() <= dict(stack.engines["agents"]).items(), "unchanged engines stay"
    await eventually(lambda: is_gone(chat_pid), "the removed pool's end")
    answer = await client.post(
        f"{stack.base_url}/v1/chat/completions",
        headers=_headers(stack, "chat-app"),
        json=SHORT,
    )
    assert answer.headers["x-hlserve-pool"] == "agents"


async def test_killed_router_comes_back_at_the_same_address(stack: Stack, client: httpx.AsyncClient) -> None:
    pid, address = stack.router_pid, stack.base_url
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    async def _serves() -> bool:
        try:
            answer = await client.post(f"{address}/v1/chat/completions", headers=_headers(stack, "coder"), json=SHORT)
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    await eventually(lambda: stack.router_pid != pid, "another router", timeout_seconds=30)
    await eventually(_serves, "an answer", timeout_seconds=30)
    assert EventKind.ROUTER_LOST in [event.kind for event in stack.events.recent]


async def test_folder_that_goes_away_and_a_new_warning_are_told(stack: Stack, manifests: Path) -> None:
    away = manifests.with_name("away")
    os.replace(manifests, away)
    try:
        await eventually(lambda: "does not exist" in stack.events.recent[-1].text, "the refusal")
    finally:
        os.replace(away, manifests)
    write_folder(manifests, changed(base(), "interactive", "spec.targets.0.poolRef.name", "agents"))
    await eventually(
        lambda: any("no class reaches this pool" in event.text for event in stack.events.recent), "the warning"
    )
