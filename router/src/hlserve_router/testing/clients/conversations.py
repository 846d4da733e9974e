"""Replies as they go well and as they go wrong, one call away each: what engines play, and what a client's user sees."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from hlserve_api.routing import ClassRoute, PoolRoute, QueueRule
from hlserve_router.testing.clients import replies
from hlserve_router.testing.clients.expected import LANGCHAIN, SDKS, Client
from hlserve_router.testing.clients.record import Call, Report
from hlserve_router.testing.clients.situations import ONE_PROBE_SECONDS, Api, key_of
from hlserve_router.testing.documents import a_class, a_key, a_keyring, a_pool, a_table, some_timeouts
from hlserve_router.testing.engine import Play, Session
from hlserve_router.testing.running import Face, RunningRouter
from hlserve_router.testing.scripts import either, event, in_turn, reply, stream
from hlserve_router.testing.stage import Stage

_GAP_SECONDS: Final = 0.03
"""How long a slow engine says nothing: several ticks of the router under test."""


_TOO_LONG: Final = b'{"error": {"message": "too long", "type": "BadRequestError", "code": 400}}'


def slow(*pieces: bytes, before_head: bool = False) -> Play:
    """Plays each piece after a pause; `before_head`: the first pause comes before the status."""

    async def play(session: Session) -> None:
        if before_head:
            await asyncio.sleep(_GAP_SECONDS)
        await session.head()
        for piece in pieces:
            await asyncio.sleep(_GAP_SECONDS)
            await session.write(piece)
        await session.end()

    return play


def breaks(how: Callable[[Session], None], *pieces: bytes) -> Play:
    """Plays the pieces, then breaks the connection."""

    async def play(session: Session) -> None:
        await session.head()
        for piece in pieces:
            await session.write(piece)
        await asyncio.sleep(_GAP_SECONDS)  # lets the bytes leave before the connection breaks
        how(session)

    return play


async def refuses_late(session: Session) -> None:
    """Answers a stream's request with a status when the router has begun the stream by itself."""
    await asyncio.sleep(_GAP_SECONDS)
    await session.reply(_TOO_LONG, 400)


async def never(session: Session) -> None:
    """Says nothing until the router gives up."""
    await session.gone.wait()


async def stops_in_a_long_reply(session: Session) -> None:
    """More of a reply than a router holds back, then nothing."""
    await session.raw(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900000\r\n\r\n" + b" " * 400_000
    )
    await asyncio.sleep(_GAP_SECONDS)
    session.close()


PINGED: Final = {"timeouts": some_timeouts(ping_seconds=0, peek_milliseconds=0)}
"""A class whose streams are opened and pinged at every tick."""
_EXPIRING: Final = {**PINGED, "queue": QueueRule(ttl_milliseconds=150)}
_BUSY: Final = reply(b"{}", 503, "retry-after-ms: 40")


@dataclass(frozen=True, slots=True)
class Conversation:
    """One call and its engine. What is expected follows: `text` of the reply, `facts` beside it, or how it fails.

    `raises`: the exception's class, or the status from which it follows, None for no exception; `code` as its user reads
    it; `tries` of the client.
    """

    id: str
    api: Api
    operation: str
    play: Play
    route: Mapping[str, Any] = field(default_factory=dict)
    text: str = replies.TEXT
    facts: Mapping[str, Any] = field(default_factory=dict)
    raises: str | int | None = None
    code: str | None = None
    tries: int = 1
    timeout_seconds: float | None = None
    prompt: str = "hi"


_CHAT: Final = either(stream(*replies.CHAT_STREAM), reply(replies.CHAT))
_MESSAGES: Final = either(stream(*replies.MESSAGE_STREAM), reply(replies.MESSAGE))
_RESPONSES: Final = either(stream(*replies.RESPONSE_STREAM), reply(replies.RESPONSE))
_CALL: Final = {"calls": [["weather", '{"city": "Oslo"}']]}
_USE: Final = {"calls": [["weather", {"city": "Oslo"}]], "finish": "tool_use"}
_O: Final = Api.OPENAI
_A: Final = Api.ANTHROPIC
C = Conversation

GOOD: Final = (
    C("chat", _O, "whole", _CHAT, facts={"finish": "stop", "pool": "c0"}),
    C("chat stream", _O, "stream", _CHAT),
    C("chat stream with usage", _O, "usage stream", _CHAT, facts={"usages": [7]}),
    C("chat stream through the helper", _O, "helper", _CHAT, facts={"final": replies.TEXT}),
    C("chat with a tool call", _O, "tools", reply(replies.CHAT_TOOLS), text="", facts={**_CALL, "finish": "tool_calls"}),
    C("chat stream with a tool call", _O, "tools stream", stream(*replies.CHAT_TOOLS_STREAM), text="",
      facts={**_CALL, "finish": "tool_calls"}),
    C("completions stream", _O, "completions", stream(*replies.COMPLETIONS_STREAM)),
    C("embeddings", _O, "embeddings", reply(replies.EMBEDDINGS), text="", facts={"numbers": [0.5, -1.0]}),
    C("response", _O, "responses", _RESPONSES, facts={"status": "completed"}),
    C("response stream", _O, "responses stream", _RESPONSES, facts={"last": "response.completed"}),
    C("response stream through the helper", _O, "responses helper", _RESPONSES, facts={"final": replies.TEXT}),
    C("response stream with a tool call", _O, "responses tools", stream(*replies.RESPONSE_TOOLS_STREAM), text="", facts=_CALL),
    C("list of models", _O, "models", _CHAT, text="", facts={"ids": ["m1"]}),
    C("one model", _O, "model", _CHAT, text="m1", facts={"object": "model", "owner": "hlserve"}),
    C("message", _A, "whole", _MESSAGES, facts={"finish": "end_turn", "pool": "c0"}),
    C("message stream", _A, "stream", _MESSAGES),
    C("message stream through the helper", _A, "helper", _MESSAGES, facts={"final": replies.TEXT, "finish": "end_turn"}),
    C("message stream of the beta API", _A, "beta", _MESSAGES),
    C("message with a tool call", _A, "tools", reply(replies.MESSAGE_TOOLS), text="", facts=_USE),
    C("message stream with a tool call", _A, "tools stream", stream(*replies.MESSAGE_TOOLS_STREAM), text="", facts=_USE),
    C("count of tokens", _A, "count", reply(replies.TOKENS), text="", facts={"tokens": 5}),
    C("list of models, Anthropic", _A, "models", _CHAT, text="", facts={"ids": ["m1"]}),
    C("one model, Anthropic", _A, "model", _CHAT, text="m1", facts={"object": "model", "name": "m1"}),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Stream:
    """One way of reading a stream: its events, and how many of them hold the whole text but not the end."""

    name: str
    api: Api
    operation: str
    pieces: tuple[bytes, ...]
    texts: int
    error: bytes
    """An engine's error event in this stream's shape, passed on as it came."""
    raises: str
    engine_raises: str | None
    engine_code: str | None = None
    engine_text: str = replies.TEXT
    """What becomes of that event."""


_ENGINE_ERROR: Final = event({"error": {"message": "CUDA error", "type": "InternalServerError", "code": 500}})
_RESPONSE_ERROR: Final = replies.named(
    {"type": "error", "code": "server_error", "message": "CUDA error", "param": None, "sequence_number": 6}
)
_MESSAGE_ERROR: Final = replies.named({"type": "error", "error": {"type": "api_error", "message": "CUDA error"}})
STREAMS: Final = (
    _Stream("chat stream", _O, "stream", replies.CHAT_STREAM, 3, _ENGINE_ERROR, "APIError", "APIError", "500"),
    _Stream("chat helper", _O, "helper", replies.CHAT_STREAM, 3, _ENGINE_ERROR, "APIError", "APIError", "500"),
    _Stream(
        "completions", _O, "completions", replies.COMPLETIONS_STREAM, 2, _ENGINE_ERROR, "APIError", "APIError", "500"
    ),
    _Stream(
        "response stream",
        _O,
        "responses stream",
        replies.RESPONSE_STREAM,
        6,
        _RESPONSE_ERROR,
        "APIError",
        None,
        None,
        f"{replies.TEXT}<error event server_error>",
    ),
    _Stream(
        "response helper",
        _O,
        "responses helper",
        replies.RESPONSE_STREAM,
        6,
        _RESPONSE_ERROR,
        "APIError",
        "RuntimeError",
        None,
        "",
    ),
    _Stream(
        "message stream", _A, "stream", replies.MESSAGE_STREAM, 4, _MESSAGE_ERROR, "APIStatusError", "APIStatusError"
    ),
    _Stream(
        "message helper", _A, "helper", replies.MESSAGE_STREAM, 4, _MESSAGE_ERROR, "APIStatusError", "APIStatusError"
    ),
    _Stream("beta stream", _A, "beta", replies.MESSAGE_STREAM, 4, _MESSAGE_ERROR, "APIStatusError", "APIStatusError"),
)


def _slow_ways(way: _Stream) -> tuple[Conversation, ...]:
    """The stream comes whole, with pings before it and within it."""
    numbered = [b"id: 7\n" + piece for piece in way.pieces]
    played = {
        "pinged before its first event": slow(b"".join(way.pieces)),
        "begun before its engine answered": slow(b"".join(way.pieces), before_head=True),
        "begun while it was queued": in_turn(_BUSY, stream(*way.pieces)),
        "pinged between its events": slow(*way.pieces),
        "pinged between events that have ids": slow(*numbered),
    }
    return tuple(
        Conversation(f"{way.name} {name}", way.api, way.operation, play, PINGED) for name, play in played.items()
    )


def _broken_ways(way: _Stream) -> tuple[Conversation, ...]:
    """The stream fails after its text, or before it but after its beginning."""
    begun = way.pieces[: way.texts]
    after = {
        "reset by its engine": (breaks(Session.reset, *begun), "engine_reset"),
        "ended by its engine without its last event": (stream(*begun), "engine_truncated"),
    }
    before = {
        "refused by its engine after it was begun": (refuses_late, "engine_protocol"),
        "expired in the queue after it was begun": (_BUSY, "engine_busy"),
    }
    return (
        *(
            Conversation(f"{way.name} {name}", way.api, way.operation, play, raises=way.raises, code=code)
            for name, (play, code) in after.items()
        ),
        Conversation(
            f"{way.name} with an error event of its engine", way.api, way.operation, stream(*begun, way.error),
            text=way.engine_text, raises=way.engine_raises, code=way.engine_code,
        ),
        *(
            Conversation(
                f"{way.name} {name}", way.api, way.operation, play, _EXPIRING, "", raises=way.raises, code=code
            )
            for name, (play, code) in before.items()
        ),
    )  # fmt: skip


def _answers(api: Api, name: str) -> tuple[Conversation, ...]:
    """Failures that still are answers with a status."""
    late = {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}}
    first = b"data: " + _TOO_LONG + b"\n\n" if api is _O else replies.named(late)
    code = "400" if api is _O else None
    return (
        C(f"{name} whose first event is an error", api, "stream", stream(first), text="", raises=400, code=code),
        C(f"{name} that its engine rejects", api, "whole", reply(_TOO_LONG, 400), text="", raises=400, code=code),
        C(f"{name} above the client's own timeout", api, "whole", never, text="", raises=504, code="total_timeout",
          timeout_seconds=6.0),
        C(f"{name} cut in a long reply", api, "whole", stops_in_a_long_reply, text="", raises="APIConnectionError", tries=3),
    )  # fmt: skip


SLOW: Final = tuple(conversation for way in STREAMS for conversation in _slow_ways(way))
BROKEN: Final = tuple(conversation for way in STREAMS for conversation in _broken_ways(way))
FAILED: Final = (*_answers(_O, "chat"), *_answers(_A, "message"))
CONVERSATIONS: Final = (*GOOD, *SLOW, *BROKEN, *FAILED)


_DIFFERENT: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    (LANGCHAIN.name, "response stream with an error event of its engine"): {
        "text": replies.TEXT,
        "raises": "ValueError",
    },
    ("litellm", "message"): {"facts": {"finish": "stop"}},
    ("litellm", "message with a tool call"): {"facts": {**_CALL, "finish": "tool_calls"}},
    ("litellm", "message stream with a tool call"): {"facts": {**_CALL, "finish": "tool_calls"}},
}
"""Where a client does otherwise, by client and conversation."""


async def talk(folder: Path, face: Face, stack: AsyncExitStack, api: Api) -> tuple[RunningRouter, list[Call]]:
    """A router with an engine, a class and a key for each conversation, and the calls that begin them: the longest first."""
    stage = Stage(folder, face, stack)
    chosen = [conversation for conversation in CONVERSATIONS if conversation.api is api]
    parts: list[PoolRoute | ClassRoute] = []
    keys = []
    for number, conversation in enumerate(chosen):
        name = f"c{number}"
        engine = await stage.engine(conversation.play)
        parts += [a_pool(name, engine.url), a_class(name, name, **conversation.route)]
        keys.append(a_key(key_of(name), name, name))
    router = await stage.router(
        a_table(*parts), a_keyring(*keys), probe_seconds=ONE_PROBE_SECONDS, connect_timeout_seconds=60
    )
    calls = [
        Call(
            conversation.id, conversation.operation, router.url, key_of(f"c{number}"), prompt=conversation.prompt,
            timeout_seconds=conversation.timeout_seconds,
        )
        for number, conversation in enumerate(chosen)
    ]  # fmt: skip
    return router, sorted(calls, key=lambda call: call.timeout_seconds is None)


def difference(conversation: Conversation, client: Client, report: Report) -> dict[str, tuple[object, object]]:
    """What is not as expected: for each aspect what was seen and what was wanted. The SDKs must show every fact."""
    conversation = replace(conversation, **_DIFFERENT.get((client.name, conversation.id), {}))
    seen, raised = report.seen, report.raised
    facts = {} if seen is None else seen.facts
    raises = conversation.raises
    wanted_error = client.exception(raises) if isinstance(raises, int) else client.other(raises)
    aspects: dict[str, tuple[object, object]] = {
        "text": ("" if seen is None else seen.text, conversation.text),
        "raises": (None if raised is None else raised.name, wanted_error),
        "code": (None if raised is None else raised.code, conversation.code if client.tells_reason else None),
        "tries": (report.tries, min(conversation.tries, client.tries)),
        **{
            name: (facts.get(name), value)
            for name, value in conversation.facts.items()
            if raised is None and (client in SDKS or name in facts)
        },
    }
    found = {name: pair for name, pair in aspects.items() if pair[0] != pair[1]}
    if found and raised is not None:
        found["message"] = (raised.message[:300], raised.status)
    return found
