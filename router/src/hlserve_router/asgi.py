"""The portable face: steps 1 to 8 as a plain ASGI application, on any server. One task per request, none per chunk."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from hlserve_api.answers import Reason
from hlserve_router.answers import AnswerBytes, answer
from hlserve_router.errors import Refusal
from hlserve_router.exchange import Exchange
from hlserve_router.head import read_head
from hlserve_router.outcome import refused
from hlserve_router.proxy import Proxy
from hlserve_router.relay import Relay
from hlserve_router.state import ROUTES, STORED_RESPONSE, Route
from hlserve_router.upstream import UpstreamClient

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LINGER_SECONDS: Final = 5.0
"""How long a client that is refused may go on sending: a connection closed on unread bytes is reset, answer and all."""
HIGH_BYTES: Final = 256 * 1024
LOW_BYTES: Final = 64 * 1024
"""Bytes that may wait for a slow client before the engine's socket is no longer read, and until it is again."""


@dataclass(frozen=True, slots=True)
class RequestRules:
    """Bounds of requests."""

    max_bytes: int = 64 * 1024 * 1024
    max_header_bytes: int = 64 * 1024
    timeout_seconds: float = 60.0


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

    def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Queues the response's head."""
        self._put({"type": "http.response.start", "status": status, "headers": headers})

    def write(self, data: bytes) -> None:
        """Queues body bytes."""
        self._size += len(data)
        if self._size > HIGH_BYTES and not self._paused and self.relay is not None:
            self._paused = True
            self.relay.pause()
        self._put({"type": "http.response.body", "body": data, "more_body": True})

    def finish(self) -> None:
        """Queues the proper end."""
        self.done = True
        self._put({"type": "http.response.body", "body": b"", "more_body": False})

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

    proxy: Proxy
    client: UpstreamClient
    rules: RequestRules = RequestRules()
    relays: set[Relay] = field(default_factory=set)
    """Requests in progress."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one HTTP request."""
        method, path = scope["method"], scope["path"]
        headers = list(scope["headers"])
        try:
            self._check_headers(headers)
            route, response_id, method = match(method, path)
            exchange = self.proxy.open(route, headers)
            if response_id is None:
                _check_content_type(headers)
        except Refusal as refusal:
            await self._reject(refusal, path, headers, send)
            return
        exchange.method = method
        if response_id is not None:
            exchange.path = path.rstrip("/")
        await self._serve(exchange, response_id, headers, receive, send)

    def tick(self, now: float) -> None:
        """Checks the deadlines of all requests in progress."""
        for relay in tuple(self.relays):
            try:
                relay.tick(now)
            except Exception as error:  # the boundary of a request, as below
                self._fault(relay, error)

    def _fault(self, relay: Relay, error: Exception) -> None:
        fields = {"rid": relay.exchange.rid}
        logging.getLogger("hlserve_router").error("request failed", exc_info=error, extra={"fields": fields})
        self.proxy.metrics.count("hlserve_router_internal_errors_total")
        relay.broken()

    def _check_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        limit = self.rules.max_header_bytes
        size = 0
        for name, value in headers:
            size += len(name) + len(value)
        if size > limit:
            raise Refusal(Reason.HEADERS_TOO_LARGE, f"The headers are larger than the {limit} bytes that are served.")

    async def _serve(
        self,
        exchange: Exchange,
        response_id: str | None,
        headers: list[tuple[bytes, bytes]],
        receive: Receive,
        send: Send,
    ) -> None:
        down = AsgiDownstream()
        relay = down.relay = Relay(self.proxy, self.client, exchange, down)
        self.relays.add(relay)
        watcher: asyncio.Task[None] | None = None
        try:
            body = b"" if response_id is not None else await self._read_body(headers, receive)
            watcher = asyncio.get_running_loop().create_task(_watch(receive, down))
            if response_id is not None:
                relay.submit_stored(response_id)
            else:
                relay.submit(body)
            await down.pump(send)
        except Refusal as refusal:
            self.proxy.settle(exchange, refused(refusal.reason))
            made = answer(refusal, exchange.head.shape, exchange.head.request_id, self.proxy.random)
            await _send_answer(send, made, exchange.head.request_id, linger=receive)
        except (ClientGoneError, asyncio.CancelledError):
            relay.client_gone()
        except Exception as error:  # the boundary of a request: whatever is wrong in here must not take others along
            self._fault(relay, error)
            if not down.cut_short:
                await down.pump(send)
        finally:
            self.relays.discard(relay)
            if watcher is not None:
                watcher.cancel()
            relay.client_gone()

    async def _read_body(self, headers: list[tuple[bytes, bytes]], receive: Receive) -> bytes:
        limit = self.rules.max_bytes
        too_large = Refusal(Reason.BODY_TOO_LARGE, f"The body is larger than the {limit} bytes that are served.")
        declared = next((value for name, value in headers if name == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > limit:
            raise too_large
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.rules.timeout_seconds):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise ClientGoneError
                    piece = message.get("body", b"")
                    size += len(piece)
                    if size > limit:
                        raise too_large
                    pieces.append(piece)
                    if not message.get("more_body", False):
                        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except TimeoutError as error:
            raise Refusal(
                Reason.BODY_TIMEOUT, f"The body did not arrive within {self.rules.timeout_seconds:g} s: send it again."
            ) from error

    async def _reject(self, refusal: Refusal, path: str, headers: list[tuple[bytes, bytes]], send: Send) -> None:
        route = ROUTES.get(path.rstrip("/"))
        head, _ = read_head(route, headers, self.proxy.request_id())
        self.proxy.reject(route.name if route is not None else "unknown", refusal)
        made = answer(refusal, head.shape, head.request_id, self.proxy.random)
        # Told 401 instead of 100, a client need not send its body: then nobody knows where the next request begins.
        expects = any(name == b"expect" for name, _ in headers)
        await _send_answer(send, made, head.request_id, close=expects)


def match(method: str, path: str) -> tuple[Route, str | None, str]:
    """The route, the stored response's id if the path names one, and the method. Raises Refusal (404, 405)."""
    plain = path.rstrip("/")
    route = ROUTES.get(plain)
    if route is not None:
        if method == "POST":
            return route, None, method
        raise Refusal(Reason.METHOD_NOT_ALLOWED, f"{route.path} takes POST, not {method[:16]}.")
    if plain.startswith("/v1/responses/"):
        response_id, _, action = plain.removeprefix("/v1/responses/").partition("/")
        if action in ("", "cancel"):
            wanted = "POST" if action else "GET"
            if method == wanted:
                return STORED_RESPONSE, response_id, method
            raise Refusal(Reason.METHOD_NOT_ALLOWED, f"This path takes {wanted}, not {method[:16]}.")
    served = (*ROUTES, "/v1/models")
    hint = next((known for known in served if plain.endswith(known) or (plain and known == "/v1" + plain)), None)
    advice = f"did you mean {hint}?" if hint else "the API is under /v1, see GET /v1/models."
    raise Refusal(Reason.UNKNOWN_PATH, f"There is no {path[:128]!r} here: {advice}")


def _check_content_type(headers: list[tuple[bytes, bytes]]) -> None:
    for name, value in headers:
        if name == b"content-type":
            kind = value.partition(b";")[0].strip().lower()
            if kind != b"application/json" and not kind.endswith(b"+json"):
                raise Refusal(
                    Reason.UNSUPPORTED_MEDIA_TYPE,
                    "Send the body as `content-type: application/json`.",
                    param="content-type",
                )


async def _watch(receive: Receive, down: AsgiDownstream) -> None:
    """Waits for the client to close its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if down.relay is not None and not down.done:
        down.relay.client_gone()
        down.wake()


async def _send_answer(
    send: Send, made: AnswerBytes, request_id: str, *, close: bool = False, linger: Receive | None = None
) -> None:
    """Sends a complete answer. `close` ends the connection; so does `linger`, once the client has stopped sending."""
    identity = [(b"x-request-id", request_id.encode()), (b"request-id", request_id.encode())]
    closing = [(b"connection", b"close")] if close or linger is not None else []
    await send({"type": "http.response.start", "status": made.status, "headers": [*made.headers, *identity, *closing]})
    await send({"type": "http.response.body", "body": made.body, "more_body": linger is not None})
    if linger is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while (await linger()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})
