"""Scripts for the scripted engine, and the events they play."""

import asyncio
import json
from typing import Any

from hlserve_router.testing.engine import Play, Session

DONE = b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    """One OpenAI-style event."""
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"


def delta(text: str, finish: str | None = None) -> bytes:
    """One chat chunk."""
    return event(
        {
            "id": "c1",
            "object": "chat.completion.chunk",
            "model": "m1",
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}],
        }
    )


STOP = delta("", "stop")


def usage_event(prompt: int = 5, completion: int = 2) -> bytes:
    """The chunk that only carries usage."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return event({"id": "c1", "object": "chat.completion.chunk", "model": "m1", "choices": [], "usage": usage})


COMPLETION = json.dumps(
    {
        "id": "c1",
        "object": "chat.completion",
        "model": "m1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
    }
).encode()


def stream(*pieces: bytes) -> Play:
    """Plays each piece as one chunk, then a proper end."""

    async def play(session: Session) -> None:
        await session.head()
        for piece in pieces:
            await session.write(piece)
        await session.end()

    return play


def paced(*pieces: bytes, ends: bool = True) -> Play:
    """As `stream`, but the router reads each piece before the next one is written. Without `ends` it stops there, and closes."""

    async def play(session: Session) -> None:
        await session.head()
        for piece in pieces:
            await session.write(piece)
            await passed_on()
        if ends:
            await session.end()
        else:
            session.close()

    return play


async def passed_on() -> None:
    """Lets a router on the same event loop read what was just written: it comes as a segment of its own."""
    for _ in range(4):
        await asyncio.sleep(0)


def reply(body: bytes = COMPLETION, status: int = 200, *headers: str) -> Play:
    """One complete answer."""

    async def play(session: Session) -> None:
        await session.reply(body, status, headers)

    return play


def either(streamed: Play, whole: Play) -> Play:
    """By the request's own `stream`."""

    async def play(session: Session) -> None:
        await (streamed if session.request.body and session.request.json.get("stream") else whole)(session)

    return play


def held(release: asyncio.Event, after: Play) -> Play:
    """Says nothing until `release` is set, then plays `after` unless the router went away."""

    async def play(session: Session) -> None:
        await session.until(release)
        if not session.gone.is_set():
            await after(session)

    return play


async def silent(session: Session) -> None:
    """Says nothing until the router goes away."""
    await session.gone.wait()


def in_turn(*plays: Play) -> Play:
    """The first request gets the first play, and so on; the last one repeats."""
    left = list(plays)

    async def play(session: Session) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(session)

    return play


ORDINARY = either(stream(delta("Hel"), delta("lo"), STOP, usage_event(), DONE), reply())
"""An engine that just works."""


def begun_until(release: asyncio.Event) -> Play:
    """A stream gives one token and then waits for the event; what is not streamed is ordinary."""

    async def play(session: Session) -> None:
        await session.head()
        await session.write(delta("A"))
        await session.until(release)
        await session.write(DONE)
        await session.end()

    return either(play, ORDINARY)
