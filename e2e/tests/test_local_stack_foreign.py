"""Pools that somebody else's OpenAI-compatible servers serve (`--engine`)."""

from pathlib import Path

import httpx
import openai
import pytest

from hlserve_capacity.derive import derive
from hlserve_local.engine_option import EngineOptionError
from hlserve_local.events import EventKind
from hlserve_local.foreign import foreign_note
from hlserve_local.planning import PoolPlan
from hlserve_local.stack import Stack
from hlserve_local.testing.foreign import FOREIGN_REPLY, foreign_server
from hlserve_local.testing.manifests import MODEL, base, write_folder
from hlserve_local.validation import validate


async def test_foreign_server_answers_and_gets_nothing_of_ours(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, base())
    async with foreign_server(MODEL) as server, Stack(folder, {"chat": [server.url]}) as stack:
        assert stack.engines["chat"] == [(server.url, None)]
        assert EventKind.NOTE not in [event.kind for event in stack.events.recent]
        sdk = openai.AsyncOpenAI(base_url=f"{stack.base_url}/v1", api_key=stack.keys["chat-app"], max_retries=0)
        async with sdk:
            reply = await sdk.chat.completions.create(
                model=MODEL, max_tokens=8, messages=[{"role": "user", "content": "hello"}]
            )
            stream = await sdk.chat.completions.create(
                model=MODEL, max_tokens=8, stream=True, messages=[{"role": "user", "content": "hello"}]
            )
            chunks = [chunk async for chunk in stream]
        assert reply.choices[0].message.content == "".join(FOREIGN_REPLY)
        assert [chunk.choices[0].delta.content for chunk in chunks][:-1] == list(FOREIGN_REPLY)
        # Metering asks for usage, and takes out the chunk that the client did not ask for.
        assert server.bodies[-1]["stream_options"] == {"include_usage": True}
        for headers in server.headers:
            assert not [name for name in headers if name.startswith(("x-override", "x-hlserve", "authorization"))]


@pytest.mark.parametrize(
    ("serve", "words"),
    [
        (True, "serves another-model, but the pool's model is test-model: set spec.model.name"),
        (False, "requests fail until an OpenAI-compatible server is there"),
    ],
    ids=["another model", "nothing there"],
)
async def test_foreign_server_that_is_not_as_it_should_be_is_noted(tmp_path: Path, serve: bool, words: str) -> None:
    (placed,) = [pool for pool in validate(write_folder(tmp_path, base())).objects.pools if pool.value.name == "chat"]
    async with foreign_server("another-model") as server, httpx.AsyncClient(trust_env=False) as client:
        url = server.url if serve else "http://127.0.0.1:9"
        note = await foreign_note(PoolPlan(placed.value, derive(placed.value), (url,), None), client)
    assert note is not None
    assert words in note


async def test_unknown_pool_is_refused_before_anything_starts(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, base())
    with pytest.raises(EngineOptionError, match=r"did you mean chat\?"):
        async with Stack(folder, {"chatt": ["http://127.0.0.1:9"]}):
            pass
