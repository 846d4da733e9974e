"""What the tests of the fault cases share: the cases' inputs, engines behind a router, and what is asked of it afterwards."""

import json
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx

from hlserve_api.routing import Keyring
from hlserve_router.endpoint import EndpointState
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_key, a_keyring, a_pool, a_table
from hlserve_router.testing.engine import Play, ScriptedEngine
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.stage import Stage
from hlserve_router.testing.wire import Wire, request_head

CHAT: Final = "/v1/chat/completions"
NS: Final[dict[str, Any]] = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "stream": False}
BODY: Final[dict[str, Any]] = {**NS, "stream": True}
AS_CODER: Final = {"authorization": f"Bearer {AGENT_KEY}"}
"""The header of the key that `behind` knows."""


async def behind(
    stage: Stage,
    *plays: Play,
    pool: dict[str, Any] | None = None,
    key: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    **route: Any,
) -> tuple[RunningRouter, list[ScriptedEngine]]:
    """A router whose one class `agent` has one pool `agents` of these engines, and one client `coder`.

    `pool`, `key` and `route` change the fields of the three; `settings` are the router's.
    """
    engines = [await stage.engine(play) for play in plays]
    table = a_table(
        a_pool("agents", *(engine.url for engine in engines), **(pool or {})), a_class("agent", "agents", **route)
    )
    keyring: Keyring = a_keyring(a_key(AGENT_KEY, "coder", "agent", **(key or {})))
    return await stage.router(table, keyring, **(settings or {})), engines


async def ask(stage: Stage, router: RunningRouter, body: Any = None, path: str = CHAT, *lines: str) -> Wire:
    """A client on its own connection that has sent a whole request and can hang up."""
    content = body if isinstance(body, bytes) else json.dumps(body or BODY).encode()
    wire = await stage.wire(router)
    await wire.send(request_head(path, f"content-length: {len(content)}", *lines) + content)
    return wire


@asynccontextmanager
async def reading(router: RunningRouter, body: Any = None, path: str = CHAT) -> AsyncIterator[httpx.Response]:
    """An answer that is read while it comes."""
    async with router.http.stream("POST", router.url + path, json=body or BODY, headers=AS_CODER) as answer:
        yield answer


def endpoints(router: RunningRouter) -> list[EndpointState]:
    """What the router knows of each engine, in the table's order."""
    return list(router.router.proxy.pools.endpoints())


def error_code(answer: httpx.Response) -> str:
    """The reason in an OpenAI-shaped error."""
    return str(answer.json()["error"]["code"])


def endings(router: RunningRouter) -> list[tuple[str, str]]:
    """Outcome and reason of each kind of end that was counted."""
    return [(labels[2], labels[3]) for labels in router.router.proxy.metrics.series("hlserve_router_requests_total")]


def tokens(router: RunningRouter) -> tuple[float, float]:
    """Prompt and reply tokens counted for class `agent` in pool `agents`."""
    labels = ("agent", "agents")
    return (
        router.count("hlserve_router_input_tokens_total", *labels),
        router.count("hlserve_router_output_tokens_total", *labels),
    )


def still_held(router: RunningRouter) -> dict[str, Any]:
    """All that requests hold of the router, by what it is; empty when every place was given back."""
    proxy = router.router.proxy
    held: dict[str, Any] = {
        "relays": len(router.router.face.relays),
        "waiting": proxy.admission.waiting,
        "waiting bytes": proxy.admission.depth("agent").size_bytes,
        "permits": proxy.limits.concurrent("coder"),
        "in flight": sum(state.in_flight for state in endpoints(router)),
        "tokens in flight": sum(state.in_flight_tokens for state in endpoints(router)),
        "of classes": sum(sum(pool.in_flight_by_class.values()) for pool in proxy.pools.pools.values()),
        "tokens of classes": sum(sum(pool.tokens_by_class.values()) for pool in proxy.pools.pools.values()),
    }
    return {name: value for name, value in held.items() if value}


def request_lines(records: Iterable[logging.LogRecord]) -> list[dict[str, Any]]:
    """The fields of each line that was logged of a request."""
    return [record.__dict__["fields"] for record in records if record.getMessage() == "request"]


def complaints(records: Iterable[logging.LogRecord]) -> list[str]:
    """What the router or its server logged as a warning or worse, or with a trace."""
    return [
        record.getMessage()
        for record in records
        if record.name.startswith(("hlserve", "uvicorn", "asyncio"))
        and (record.levelno > logging.INFO or record.exc_info)
    ]
