"""uvicorn's HTTP protocol with the bounds of the client port, for the portable face."""

import asyncio
from typing import Any, ClassVar, cast

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from hlserve_router.intake import Intake
from hlserve_router.splice_connection import READ_BYTES, reset_at_end


class PortableProtocol(HttpToolsProtocol):
    """uvicorn's HTTP for the portable face. On its own it takes the trailer fields of a body in chunks for headers.

    So a key or a class could come in behind a body, past whatever looks at headers on the way. It has no bound either for a head
    that does not end or for a body that still comes when its request is answered, takes the body of a request that asks for another
    protocol for the next request, sends chunks and 100 Continue to clients of HTTP/1.0, and of several requests that were sent ahead
    tells only the last one that the client has left.
    """

    intake: ClassVar[Intake]
    _in_head = True
    _in_message = False
    """True from the beginning of a request to the last byte of its body."""
    _head_bytes = 0
    """Read since the head began, or since the last one was complete."""
    _unread_bytes = 0
    """Read of a body whose request is answered."""
    _end: asyncio.TimerHandle | None = None
    """Ends the connection unless such a body ends before."""
    _deaf = False
    """True once nothing more is taken from this connection."""
    _answering: RequestResponseCycle | None = None

    def data_received(self, data: bytes) -> None:
        if self._deaf or self.transport.is_closing():
            return
        super().data_received(data)
        rules = self.intake.rules
        if self._in_head:
            self._head_bytes += len(data)
            # Twice, for what stands between names and values; and this much may have come before the head began.
            if self._head_bytes > 2 * rules.max_header_bytes + READ_BYTES or len(self.headers) > rules.max_headers:
                if self.cycle is None or self.cycle.response_complete:
                    self._refuse_head()
                else:
                    self.transport.close()  # an answer is on its way, and nothing may be written into it
        elif self._end is not None:
            self._unread_bytes += len(data)
            if self._unread_bytes > rules.max_bytes:
                self._linger()

    def _refuse_head(self) -> None:
        made = self.intake.reject(self.intake.head_too_large(), self.url.decode("latin-1"), [])
        lines = [b"%b: %b\r\n" % header for header in (*made.headers, (b"connection", b"close"))]
        self.transport.write(b"".join((STATUS_LINE[made.status], *lines, b"\r\n", made.body)))
        self._linger()

    def close(self) -> None:
        """Ends the connection once everything is written."""
        if self._in_message:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Ends our half, and the rest when the client has ended its own: closed on unread bytes, it would lose the answer."""
        self._deaf = True
        self._unset_keepalive_if_required()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._end_within(self.intake.rules.linger_seconds)

    def _end_within(self, seconds: float) -> None:
        self._go_on()
        self._end = self.loop.call_later(seconds, self.transport.abort)

    def _go_on(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._go_on()
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_message and self.cycle.response_complete and not self._deaf and not self.transport.is_closing():
            self._unread_bytes = 0
            self._end_within(self.intake.rules.timeout_seconds)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        cycle.transport = cast("asyncio.Transport", _LingeringTransport(self))
        super()._start_asgi_task(cycle, app if cycle.scope["http_version"] != "1.0" else without_chunks(cycle, app))

    def _unsupported_upgrade_warning(self) -> None:
        # Its body is dropped, as far as it has come: where the next request begins is not known.
        self._deaf = True
        self.cycle.keep_alive = False

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._in_message = True
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self.parser.get_http_version() == "1.0":
            self.expect_100_continue = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_message = False
        self._go_on()
        super().on_message_complete()


class _LingeringTransport:
    """What an answer is written to: closes as its protocol does."""

    def __init__(self, protocol: PortableProtocol) -> None:
        self._transport = protocol.transport
        self.write = protocol.transport.write
        self.close = protocol.close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def without_chunks(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """`app` for a client of HTTP/1.0, which knows no chunks: an answer without a length ends with the connection."""

    async def answering(scope: Any, receive: Any, send: Any) -> None:
        bare = False

        async def sending(message: Any) -> None:
            nonlocal bare
            if message["type"] == "http.response.start":
                bare = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
                if bare:
                    cycle.chunked_encoding = False
            elif bare:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, sending)
        if bare and not cycle.response_complete and not cycle.disconnected:
            reset_at_end(cycle.transport)
            cycle.transport.abort()

    return answering


def portable_protocol(intake: Intake) -> type[PortableProtocol]:
    """`PortableProtocol` with the bounds and refusals of `intake`."""
    return type("BoundPortableProtocol", (PortableProtocol,), {"intake": intake})
