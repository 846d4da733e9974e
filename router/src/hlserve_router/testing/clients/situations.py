"""One running router in which every reason of the contract is one call away: each has a key, a class and a pool of its own."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import httpx

from hlserve_api.answers import Reason
from hlserve_api.routing import Budget, ClassLimits, ClassRoute, KeyEntry, KeyLimits, PoolRoute, QueueRule
from hlserve_router.testing.clients.record import Call
from hlserve_router.testing.clients.uplink import slow_uplink
from hlserve_router.testing.documents import a_class, a_key, a_keyring, a_pool, a_table, some_timeouts
from hlserve_router.testing.engine import Session
from hlserve_router.testing.running import Face, RunningRouter
from hlserve_router.testing.scripts import ORDINARY, held, reply
from hlserve_router.testing.stage import Stage


class Api(StrEnum):
    """The API that a client speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


DIALECTS: Final = {Api.OPENAI: "/v1/chat/completions", Api.ANTHROPIC: "/v1/messages"}
"""Each API's main route."""
_TOMORROW: Final = timedelta(days=1)
_PAST_BODIES: Final = 300_000
_PAST_HEADERS: Final = 16_384
ONE_PROBE_SECONDS: Final = 3600.0
"""Each engine is probed once, at the start. On a busy machine a round over so many takes long, and the end of a test would break
into it; and an engine that went away after its probe must stay in the choice."""
_PATIENCE_SECONDS: Final = 60.0
"""Longest wait for a state of a router on a busy machine."""
_CONNECT_TRIES: Final = 12
"""Replicas of the pool that no one can connect to: each request tries three, none of them twice, and litellm over both APIs
sends four."""


def key_of(name: str) -> str:
    """The key of a situation."""
    return f"hls_{name.replace('_', '-')}-0123456789abcdef0123456789"


async def _resets(session: Session) -> None:
    session.reset()


async def _stops_early(session: Session) -> None:
    await session.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
    session.close()


async def _frames_twice(session: Session) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\ncontent-length: 10\r\n\r\n"
    )
    await session.raw(head + b"2\r\n{}\r\n0\r\n\r\n")


@dataclass(slots=True)
class _Documents:
    pools: list[PoolRoute] = field(default_factory=list)
    classes: list[ClassRoute] = field(default_factory=list)
    keys: list[KeyEntry] = field(default_factory=list)

    def add(
        self,
        name: str,
        *urls: str,
        pool: Mapping[str, Any] | None = None,
        route: Mapping[str, Any] | None = None,
        key: Mapping[str, Any] | None = None,
    ) -> None:
        """A pool, a class and a key of this name."""
        slug = name.replace("_", "-")
        self.pools.append(a_pool(slug, *urls, **(pool or {})))
        self.classes.append(a_class(slug, slug, **(route or {})))
        self.keys.append(a_key(key_of(name), slug, **{"class_name": slug, **(key or {})}))


@dataclass(slots=True, eq=False)
class Situations:
    """Routers in their situations: the second one is broken inside, the third one waits for no body."""

    router: RunningRouter
    broken: RunningRouter
    hasty: RunningRouter
    slow_url: str

    def calls(self, api: Api) -> list[Call]:
        """One call for each reason, named after it, and one for a 502 that comes late."""
        # First those whose limits fill up again with time.
        made = [self._call(reason, api) for reason in sorted(Reason, key=lambda reason: reason not in _REFILLED)]
        return [*made, replace(self._call(Reason.ENGINE_RESET, api), id="late", key=key_of("late"))]

    def _call(self, reason: Reason, api: Api) -> Call:
        call = Call(reason.value, "whole", self.router.url, key_of(reason.value))
        changes = _CHANGES.get(reason, {})
        if reason in _API_CHANGES:
            changes = {**changes, **_API_CHANGES[reason][api]}
        if changes.get("operation") == "raw" and "path" not in changes:
            changes = {**changes, "path": DIALECTS[api]}
        if reason is Reason.INTERNAL_ERROR:
            changes = {"url": self.broken.url}
        elif reason is Reason.BODY_TIMEOUT:
            changes = {"url": self.slow_url}
        return replace(call, **changes)

    def answered(self, reason: Reason) -> float:
        """How many requests the routers have answered with this reason."""
        return sum(
            router.count("hlserve_router_requests_total", *labels)
            for router in (self.router, self.broken, self.hasty)
            for labels in router.router.proxy.metrics.series("hlserve_router_requests_total")
            if labels[3] == reason.value
        )


_REFILLED: Final = (Reason.KEY_REQUESTS, Reason.KEY_TOKENS)
_CHANGES: Final[Mapping[Reason, Mapping[str, Any]]] = {
    Reason.INVALID_JSON: {"operation": "raw", "content": "{"},
    Reason.MISSING_MODEL: {"operation": "raw", "content": "{}"},
    Reason.DUPLICATE_FIELD: {"operation": "raw", "content": '{"model": "m1", "model": "m2"}'},
    Reason.RESERVED_FIELD: {"body": {"rid": "0"}},
    Reason.UNKNOWN_CLASS: {"headers": {"x-hlserve-class": "turbo"}},
    Reason.RESPONSE_STORE_OFF: {
        "operation": "raw",
        "path": "/v1/responses",
        "body": {"model": "m1", "input": "hi", "previous_response_id": "resp_1"},
    },
    Reason.MISSING_KEY: {"key": None},
    Reason.INVALID_KEY: {"key": "hls_nobody-has-this-key-0123456789"},
    Reason.CLASS_NOT_ALLOWED: {"headers": {"x-hlserve-class": "batch"}},
    Reason.MODEL_NOT_FOUND: {"model": "no-such-model"},
    Reason.UNKNOWN_PATH: {"operation": "raw", "path": "/v1/v1/chat/completions", "body": {"model": "m1"}},
    Reason.METHOD_NOT_ALLOWED: {"operation": "raw", "method": "GET"},
    Reason.UNSUPPORTED_MEDIA_TYPE: {"operation": "raw", "content": "hi", "headers": {"content-type": "text/plain"}},
    Reason.BODY_TOO_LARGE: {"prompt": "x" * _PAST_BODIES},
    Reason.INPUT_TOO_LARGE: {"prompt": "x" * 4000},
    Reason.HEADERS_TOO_LARGE: {"headers": {"x-notes": "y" * _PAST_HEADERS}},
    Reason.ENGINE_SILENT: {"operation": "stream"},
}
_FILE: Final = "file:///etc/passwd"
_API_CHANGES: Final[Mapping[Reason, Mapping[Api, Mapping[str, Any]]]] = {
    Reason.MEDIA_NOT_ALLOWED: {
        Api.OPENAI: {"prompt": [{"type": "image_url", "image_url": {"url": _FILE}}]},
        Api.ANTHROPIC: {"prompt": [{"type": "image", "source": {"type": "url", "url": _FILE}}]},
    },
    Reason.CONFLICTING_KEYS: {
        Api.OPENAI: {"headers": {"x-api-key": "another"}},
        Api.ANTHROPIC: {"headers": {"authorization": "Bearer another", "x-api-key": "yet-another"}},
    },
}
"""What a client does differently to get a reason; all else follows from its key."""


def needs_raw_request(reason: Reason) -> bool:
    """Whether only a request that a library on top of an SDK never sends brings this reason."""
    return _CHANGES.get(reason, {}).get("operation") == "raw" or reason is Reason.MISSING_KEY


def _documents(fine: str, dead: str, stuck: str, engines: Mapping[Reason, str]) -> _Documents:
    made = _Documents()
    now = datetime.now(UTC)
    patient = {"timeouts": some_timeouts(total_seconds=600, start_seconds=600)}
    plain = (
        Reason.INVALID_JSON, Reason.MISSING_MODEL, Reason.DUPLICATE_FIELD, Reason.RESERVED_FIELD, Reason.UNKNOWN_CLASS,
        Reason.MEDIA_NOT_ALLOWED, Reason.RESPONSE_STORE_OFF, Reason.CONFLICTING_KEYS, Reason.MODEL_NOT_FOUND,
        Reason.UNKNOWN_PATH, Reason.METHOD_NOT_ALLOWED, Reason.UNSUPPORTED_MEDIA_TYPE,
        Reason.BODY_TOO_LARGE, Reason.HEADERS_TOO_LARGE,
    )  # fmt: skip
    for reason in plain:
        made.add(reason, fine)
    made.add(Reason.KEY_EXPIRED, fine, key={"not_after": now - _TOMORROW})
    made.add(Reason.KEY_NOT_YET_VALID, fine, key={"not_before": now + _TOMORROW})
    made.add(Reason.KEY_SUSPENDED, fine, key={"suspended": True})
    made.add(Reason.CLASS_NOT_ALLOWED, fine, key={"allowed_classes": ("class-not-allowed",)})
    made.classes.append(a_class("batch", "class-not-allowed"))
    made.add(Reason.INPUT_TOO_LARGE, fine, route={"limits": ClassLimits(max_input_tokens=500)})
    made.add(Reason.OUTPUT_TOO_LARGE, fine, route={"limits": ClassLimits(max_output_tokens=8)})
    made.add(Reason.KEY_REQUESTS, fine, key={"limits": KeyLimits(requests_per_minute=1)})
    made.add(Reason.KEY_TOKENS, fine, key={"limits": KeyLimits(tokens_per_minute=10)})
    made.add(Reason.KEY_CONCURRENCY, stuck, route=patient, key={"limits": KeyLimits(max_concurrent=1)})
    made.add(Reason.BUDGET_EXHAUSTED, fine, key={"budget": Budget(tokens=0)})
    made.add(Reason.CLASS_MISSING, fine, key={"class_name": "gone"})
    made.add(Reason.NO_ENDPOINT, "http://127.0.0.1:1")
    made.add(Reason.SCALING_FROM_ZERO, route={"queue": QueueRule(ttl_milliseconds=50)})
    made.add(Reason.DRAINING, fine, pool={"draining": ("draining-0",)})
    made.add(Reason.ENGINE_CONNECT, *[dead] * _CONNECT_TRIES)
    one = {"max_in_flight": 1}
    full = QueueRule(max_depth=1, ttl_milliseconds=600_000)
    made.add(Reason.QUEUE_FULL, stuck, pool=one, route={**patient, "queue": full})
    made.add(Reason.QUEUE_EXPIRED, stuck, pool=one, route={**patient, "queue": QueueRule(ttl_milliseconds=50)})
    made.add(Reason.TOTAL_TIMEOUT, stuck, route={"timeouts": some_timeouts(total_seconds=0)})
    made.add(Reason.ENGINE_SILENT, stuck, route={"timeouts": some_timeouts(start_seconds=0)})
    for reason, url in engines.items():
        made.add(reason, url, route={"queue": QueueRule(ttl_milliseconds=150)})
    made.add("late", engines[Reason.ENGINE_RESET], route={"timeouts": some_timeouts(retry_cutoff_seconds=0)})
    return made


async def situations(folder: Path, face: Face, stack: AsyncExitStack) -> Situations:
    """Starts the engines and the routers, and uses up what is to be used up."""
    folders = [folder / name for name in ("main", "broken", "hasty")]
    for made in folders:
        made.mkdir()
    stage = Stage(folders[0], face, stack)
    release = asyncio.Event()
    fine, dead, stuck = (
        await stage.engine(ORDINARY),
        await stage.engine(ORDINARY),
        await stage.engine(held(release, ORDINARY)),
    )
    dead.gauges = {"num_running_reqs": 0}
    plays = {
        Reason.ENGINE_RESET: _resets,
        Reason.ENGINE_TRUNCATED: _stops_early,
        Reason.ENGINE_PROTOCOL: _frames_twice,
        Reason.ENGINE_BUSY: reply(b"{}", 503),
    }
    engines = {reason: (await stage.engine(play)).url for reason, play in plays.items()}
    documents = _documents(fine.url, dead.url, stuck.url, engines)
    router = await stage.router(
        a_table(*documents.pools, *documents.classes), a_keyring(*documents.keys),
        body_max_bytes=_PAST_BODIES, header_max_bytes=_PAST_HEADERS, probe_seconds=ONE_PROBE_SECONDS,
    )  # fmt: skip
    pools = router.router.proxy.pools.pools
    await router.until(lambda: not pools["no-endpoint"].endpoints["no-endpoint-0"].reachable, _PATIENCE_SECONDS)
    # One that goes away in the middle of its probe is out of the choice.
    doomed = pools["engine-connect"].endpoints.values()
    await router.until(lambda: all(endpoint.gauges is not None for endpoint in doomed), _PATIENCE_SECONDS)
    await dead.stop()
    broken = await _router_of(Reason.INTERNAL_ERROR, Stage(folders[1], face, stack), fine.url)
    hasty = await _router_of(Reason.BODY_TIMEOUT, Stage(folders[2], face, stack), fine.url, body_timeout_seconds=0.1)
    broken.router.proxy.budget = None  # type: ignore[assignment]  # a state that cannot be
    await _use_up(router, stack)
    return Situations(router, broken, hasty, await stack.enter_async_context(slow_uplink(hasty.url)))


async def _router_of(reason: Reason, stage: Stage, engine: str, **settings: Any) -> RunningRouter:
    """A router for this reason alone."""
    made = _Documents()
    made.add(reason, engine)
    return await stage.router(a_table(*made.pools, *made.classes), a_keyring(*made.keys), **settings)


async def _use_up(router: RunningRouter, stack: AsyncExitStack) -> None:
    """Spends limits that one request uses up, and fills the places and queues that are to be full."""
    body = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
    for reason in _REFILLED:
        await router.post(DIALECTS[Api.OPENAI], body, key_of(reason))
    waiting: list[asyncio.Task[httpx.Response]] = []
    for reason in (Reason.KEY_CONCURRENCY, Reason.QUEUE_EXPIRED, Reason.QUEUE_FULL, Reason.QUEUE_FULL):
        # These stay for as long as the clients need, so no timeout ends them.
        held_place = router.http.post(
            router.url + DIALECTS[Api.OPENAI], json=body, headers={"x-api-key": key_of(reason)}, timeout=None
        )
        waiting.append(asyncio.create_task(held_place))
        await router.until(lambda: _held(router) == len(waiting), _PATIENCE_SECONDS)
    stack.push_async_callback(_leave, waiting)


def _held(router: RunningRouter) -> int:
    proxy = router.router.proxy
    return proxy.admission.waiting + sum(endpoint.in_flight for endpoint in proxy.pools.endpoints())


async def _leave(waiting: Sequence[asyncio.Task[httpx.Response]]) -> None:
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
