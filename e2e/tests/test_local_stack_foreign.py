"""Pools that somebody else's OpenAI-compatible servers serve (`--engine`)."""

from pathlib import Path

import openai
import pytest

from hlserve_local.engine_option import EngineOptionError
from hlserve_local.stack import Stack
from hlserve_local.testing.foreign import FOREIGN_REPLY, foreign_server
from hlserve_local.testing.manifests import MODEL, base, write_folder


async def test_foreign_server_answers_and_gets_nothing_of_ours(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, base())
    async with foreign_server(MODEL) as server, Stack(folder, {"chat": [server.url]}) as stack:
        assert stack.engines["chat"] == [(server.url, None)]
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


async def test_unknown_pool_is_refused_before_anything_starts(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, base())
    with pytest.raises(EngineOptionError, match=r"did you mean chat\?"):
        async with Stack(folder, {"chatt": ["http://127.0.0.1:9"]}):
            pass
