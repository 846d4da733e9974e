"""Stands between one operator and a real API server: sees all that it asks, adds its credentials, and has faults on demand."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from hlserve_operator.testing.api_server import WRITES, Fault

Lines = Callable[[str, dict[str, Any]], list[dict[str, Any]]]
"""What a watch brings in place of an event; given the path and the event."""
_PASSED = ("Content-Type", "Retry-After")
_SENT = ("Accept", "Content-Type", "User-Agent")


@dataclass(frozen=True, slots=True)
class Seen:
    """One request that the API server answered, or one that it was not given."""

    method: str
    path: str
    query: str
    status: int
    at: float
    """Of the event loop, in seconds."""

    @property
    def writes(self) -> bool:
        """Whether it changes something that counts: Leases and Events do not."""
        return self.method in WRITES and "/leases" not in self.path and "/events" not in self.path


@dataclass(slots=True, eq=False)
class Between:
    """The way from one operator to the API server."""

    upstream: str
    trust: ssl.SSLContext
    namespace: str
    token: str
    """Bearer token that requests go on with."""
    session: aiohttp.ClientSession
    address: str = ""
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    lines: Lines = lambda _, event: [event]
    silent: bool = False
    """Watches bring nothing, and their connections stay, as with packets that are dropped."""
    delay_seconds: float = 0.0
    """How much later than it happens a watch tells of an event."""
    dead_after_writes: int | None = None
    """The process at this end dies when so many writes are done: their last answer is lost, and nothing more passes."""
    gone: list[str] = field(default_factory=list)
    """Paths of watches that were told that their version is gone (410)."""
    told: dict[str, int] = field(default_factory=dict)
    """Events that watches brought, by path of the collection."""
    died: asyncio.Event = field(default_factory=asyncio.Event)
    _watches: set[asyncio.Task[Any]] = field(default_factory=set)

    def writes(self) -> list[tuple[str, str]]:
        """Writes that were done, Leases and Events aside."""
        return [(each.method, each.path) for each in self.seen if each.writes and each.status < 300]

    def events_written(self) -> int:
        """Events that were written."""
        return sum(each.method == "POST" and each.path.endswith("/events") for each in self.seen)

    def cut_watches(self) -> None:
        """Closes every watch."""
        for task in self._watches:
            task.cancel()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Passes one request on."""
        if self.died.is_set():
            return _cut(request)
        for fault in list(self.faults):
            answer = fault(request)
            if answer is not None:
                self._note(request, answer.status)
                return answer
        if request.query.get("watch"):
            return await self._watch(request)
        async with self._send(request, await request.read()) as answer:
            body = await answer.read()
            self._note(request, answer.status)
            headers = {name: answer.headers[name] for name in _PASSED if name in answer.headers}
        if self.dead_after_writes is not None and len(self.writes()) >= self.dead_after_writes:
            self.died.set()
            self.cut_watches()
            return _cut(request)
        return web.Response(status=answer.status, body=body, headers=headers)

    def _note(self, request: web.Request, status: int) -> None:
        now = asyncio.get_running_loop().time()
        self.seen.append(Seen(request.method, request.path, request.query_string, status, now))

    def _send(self, request: web.Request, body: bytes | None) -> Any:
        headers = {name: request.headers[name] for name in _SENT if name in request.headers}
        headers["Authorization"] = f"Bearer {self.token}"
        return self.session.request(
            request.method, f"{self.upstream}{request.path_qs}", data=body or None, headers=headers, ssl=self.trust
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        if task is not None:
            self._watches.add(task)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            async with self._send(request, None) as answer:
                self._note(request, answer.status)
                if answer.status != 200:
                    if answer.status == 410:
                        self.gone.append(request.path)
                    return web.Response(status=answer.status, body=await answer.read(), content_type="application/json")
                await response.prepare(request)
                buffer = b""
                async for part in answer.content.iter_any():
                    *lines, buffer = (buffer + part).split(b"\n")
                    for line in lines:
                        await self._pass(request.path, line, response)
        except (asyncio.CancelledError, aiohttp.ClientError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            if task is not None:
                self._watches.discard(task)
        return response

    async def _pass(self, path: str, line: bytes, response: web.StreamResponse) -> None:
        event = json.loads(line)
        if event["type"] == "ERROR" and event["object"].get("code") == 410:
            self.gone.append(path)
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        if self.silent:
            return
        for each in self.lines(path, event):
            if each["type"] != "BOOKMARK":
                self.told[path] = self.told.get(path, 0) + 1
            await response.write(json.dumps(each).encode() + b"\n")


def _cut(request: web.Request) -> web.StreamResponse:
    """No answer, as from a connection that broke."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


@asynccontextmanager
async def between(upstream: str, trust: ssl.SSLContext, namespace: str, token: str) -> AsyncIterator[Between]:
    """A way on a free port of the loopback address, without TLS."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), trust_env=False, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        way = Between(upstream, trust, namespace, token, session)
        application = web.Application(client_max_size=2**24)
        application.router.add_route("*", "/{path:.*}", way.handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        way.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield way
        finally:
            way.cut_watches()
            await runner.cleanup()
