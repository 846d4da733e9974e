"""The portable face: steps 1 to 8 as a plain ASGI application, on any server. One task per request, none per chunk."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from hlserve_router.answer_head import Headers, identity
from hlserve_router.errors import Refusal
from hlserve_router.exchange import Exchange
from hlserve_router.intake import Answer, Intake, declared_bytes
from hlserve_router.relay import Relay

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

WATCH_SECONDS: Final = 0.05
"""After this time in progress, a request is watched for its client's leaving: most replies of a few tokens are over before."""
HIGH_BYTES: Final = 256 * 1024
LOW_BYTES: Final = 64 * 1024
"""Bytes that may wait for a slow client before the engine's socket is no longer read, and until it is again."""


class ClientGoneError(Exception):
    """The client closed its connection while its body was read."""


class AsgiDownstream:
    """Collects what the relay writes, for the request's task to send. Pauses the relay while the client is slow."""

    __slots__ = ("_messages", "_paused", "_size", "_wake", "cut_short", "done", "relay")

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._size = 0
        self._paused = False
        self._wake: asyncio.Future[None] | None = None
        self.relay: Relay | None = None
        self.done = self.cut_short = False

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Queues a complete answer."""
        self.start(status, headers)
        self.finish(body)

    def start(self, status: int, headers: Headers, data: bytes = b"") -> None:
        """Queues the response's head, and its first body bytes."""
        mine = identity(self.relay.exchange) if self.relay is not None else []
        self._put({"type": "http.response.start", "status": status, "headers": [*headers, *mine]})
        if data:
            self.write(data)

    def write(self, data: bytes) -> None:
        """Queues body bytes."""
        self._size += len(data)
        if self._size > HIGH_BYTES and not self._paused and self.relay is not None:
            self._paused = True
            self.relay.pause()
        self._put({"type": "http.response.body", "body": data, "more_body": True})

    def finish(self, data: bytes = b"") -> None:
        """Queues the last bytes and the proper end."""
        self.done = True
        self._size += len(data)
        self._put({"type": "http.response.body", "body": data, "more_body": False})

    def cut(self) -> None:
        """No proper end: the server closes the connection when the application returns."""
        self.done = self.cut_short = True
        self.wake()

    def _put(self, message: Message) -> None:
        self._messages.append(message)
        self.wake()

    def wake(self) -> None:
        """Lets the sending task look again."""
        wake = self._wake
        if wake is not None:
            self._wake = None
            if not wake.done():
                wake.set_result(None)

    async def pump(self, send: Send) -> None:
        """Sends what comes until the end; returns early when the relay is over without an end (client gone)."""
        loop = asyncio.get_running_loop()
        while True:
            while self._messages:
                messages, self._messages = self._messages, []
                for message in _joined(messages):
                    await send(message)
                    self._sent(message)
            if self.done or (self.relay is not None and self.relay.over):
                return
            self._wake = loop.create_future()
            await self._wake

    def _sent(self, message: Message) -> None:
        self._size -= len(message.get("body", b""))
        if self._paused and self._size <= LOW_BYTES and self.relay is not None:
            self._paused = False
            self.relay.resume()


def _joined(messages: list[Message]) -> list[Message]:
    """Body pieces that wait together go out together: under load, fewer and larger writes."""
    if len(messages) < 3:
        return messages
    bodies = [message for message in messages if message["type"] == "http.response.body"]
    heads = messages[: len(messages) - len(bodies)]
    joined = b"".join(message["body"] for message in bodies)
    return [*heads, {"type": "http.response.body", "body": joined, "more_body": bodies[-1]["more_body"]}]


@dataclass(slots=True, eq=False)
class AsgiFace:
    """The ASGI application for everything that is relayed, and for every path that is not served."""

    intake: Intake

    @property
    def relays(self) -> set[Relay]:
        """Requests in progress."""
        return self.intake.relays

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one HTTP request."""
        if await self.refuse_head(scope, send):
            return
        path = scope["path"]
        headers = list(scope["headers"])
        try:
            exchange, response_id = self.intake.open(scope["method"], path, headers)
        except Refusal as refusal:
            await _send_answer(send, self.intake.reject(refusal, path, headers), None)
            return
        await self._serve(exchange, response_id, headers, receive, send)

    async def refuse_head(self, scope: Scope, send: Send) -> bool:
        """Answers a request whose head is too large. False: it is not, and nothing was sent."""
        path = scope["path"]
        headers = list(scope["headers"])
        try:
            self.intake.check_head(len(scope.get("raw_path") or path) + len(scope["query_string"]), headers)
        except Refusal as refusal:
            await _send_answer(send, self.intake.reject(refusal, path, headers), None)
            return True
        return False

    async def _serve(
        self, exchange: Exchange, response_id: str | None, headers: Headers, receive: Receive, send: Send
    ) -> None:
        down = AsgiDownstream()
        relay = down.relay = self.intake.relay(exchange, down)
        watcher: _Watcher | None = None
        try:
            body = b"" if response_id is not None else await self._read_body(headers, receive)
            watcher = _Watcher(receive, down)
            if response_id is not None:
                relay.submit_stored(response_id)
            else:
                relay.submit(body)
            await down.pump(send)
        except Refusal as refusal:
            answer = self.intake.give_up(refusal, relay)
            await _send_answer(send, answer, receive, self.intake.rules.linger_seconds)
        except (ClientGoneError, asyncio.CancelledError):
            relay.client_gone()
        except Exception as error:  # the boundary of a request: whatever is wrong in here must not take others along
            relay.fault(error)
            if not down.cut_short:
                await down.pump(send)
        finally:
            if watcher is not None:
                watcher.cancel()
            relay.client_gone()

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes:
        self.intake.check_body(declared_bytes(headers))
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.intake.rules.timeout_seconds):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise ClientGoneError
                    piece = message.get("body", b"")
                    size += len(piece)
                    self.intake.check_body(size)
                    pieces.append(piece)
                    if not message.get("more_body", False):
                        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except TimeoutError as error:
            raise self.intake.body_too_slow() from error


class _Watcher:
    """Waits for the client to close its connection, from `WATCH_SECONDS` on: a task costs a tenth of a short request."""

    __slots__ = ("_down", "_receive", "_task", "_timer")

    def __init__(self, receive: Receive, down: AsgiDownstream) -> None:
        self._receive = receive
        self._down = down
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        down = self._down
        if down.relay is not None and not down.done:
            down.relay.client_gone()
            down.wake()

    def cancel(self) -> None:
        """The request is over."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()


async def _send_answer(send: Send, answer: Answer, linger: Receive | None, linger_seconds: float = 0.0) -> None:
    """Sends a complete answer. With `linger`, the connection ends only once the client has stopped sending."""
    closing = [(b"connection", b"close")] if answer.close else []
    await send({"type": "http.response.start", "status": answer.status, "headers": [*answer.headers, *closing]})
    await send({"type": "http.response.body", "body": answer.body, "more_body": linger is not None})
    if linger is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(linger_seconds):
                while (await linger()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})
