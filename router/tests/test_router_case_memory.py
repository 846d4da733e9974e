"""Memory and the event loop under large messages, measured on a router process of its own."""

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hlserve_router.testing.documents import AGENT_KEY
from hlserve_router.testing.engine import Session, scripted_engine
from hlserve_router.testing.process import plain_client, router_process
from hlserve_router.testing.running import Face
from hlserve_router.testing.scripts import COMPLETION, DONE, delta

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "stream": True}
HEADERS = {"authorization": f"Bearer {AGENT_KEY}", "content-type": "application/json"}
MIB = 1 << 20
LINE_BYTES = 64 * MIB
"""A third of the case's line, and four times what the router may grow by."""
PIECE = b"x" * (256 * 1024)


@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from /proc")
async def test_b13_b26_memory_stays_bounded(tmp_path: Path, face: Face) -> None:
    """One process for all of it, as starting it takes longer than the rest."""
    bodies: list[str] = []
    sent = 0

    async def play(session: Session) -> None:
        nonlocal sent
        if not session.request.json["stream"]:
            bodies.append(hashlib.sha256(session.request.body).hexdigest())
            await session.reply(COMPLETION)
            return
        await session.head()
        if session.request.json.get("seed") == 13:
            await session.write(b"data: ")
            for _ in range(LINE_BYTES // len(PIECE)):
                await session.write(PIECE)
        else:
            event = delta("x" * 32_000)
            for _ in range(2000):
                await session.write(event)
                sent += len(event)
        await session.write(b"\n\n" + DONE)
        await session.end()

    async with (
        scripted_engine(play) as engine,
        router_process(tmp_path, engine.url, "--face", face.value) as router,
        plain_client() as http,
        plain_client() as other,
    ):
        # B13: a line that never ends, at full speed
        before = router.forget_peak()
        total = 0
        async with http.stream("POST", router.url + CHAT, json={**BODY, "seed": 13}, headers=HEADERS) as answer:
            async for chunk in answer.aiter_raw():
                total += len(chunk)
        assert total == 6 + LINE_BYTES + 2 + len(DONE)
        assert router.peak() - before < 16 * MIB

        # a client that stops reading: the engine is stopped, nothing piles up
        before = router.forget_peak()
        async with http.stream("POST", router.url + CHAT, json=BODY, headers=HEADERS) as answer:
            chunks = answer.aiter_raw()
            await anext(chunks)
            seen = -1
            while seen != sent:
                seen = sent
                await asyncio.sleep(1.0)  # the engine's writes end when every buffer on the way is full
            assert sent < 32 * MIB
            assert router.peak() - before < 8 * MIB
            async for _ in chunks:
                pass

        # B26: three pictures, 12 MiB, in pieces of 64 KB, while others are served
        body = picture_body(12 * MIB)
        before = router.forget_peak()
        served = 0
        asking = asyncio.create_task(http.post(router.url + CHAT, content=in_pieces(body), headers=HEADERS))
        while not asking.done():
            await other.get(f"{router.url}/healthz")
            served += 1
        assert (await asking).status_code == 200
        assert bodies == [hashlib.sha256(body).hexdigest()]
        assert router.peak() - before < 3 * len(body)
        assert served >= 10, "others are served between its pieces"


def picture_body(size: int) -> bytes:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * (size // 12)}}
    head = {"model": "m1", "stream": False, "messages": [{"role": "user", "content": [picture] * 3}]}
    return json.dumps(head).encode()


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), 65536):
        yield body[at : at + 65536]
