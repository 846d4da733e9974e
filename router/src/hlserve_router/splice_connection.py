"""One client connection of the splice face: what the parser finds, whose turn it is, what follows an answer.

`ClientConnection` is the parser's and every request's counterpart, and knows nothing of the server that it is in: the
protocol in `splice` tells it of the socket's events, and answers for it what the router answers through FastAPI.

Bounds. Request: head and body as `RequestRules` say; of requests that were sent ahead of their turn at most what two
reads bring (512 KiB) and `MAX_AHEAD` of them. Answer: `WRITE_HIGH_BYTES` plus one read of the engine's socket (256 KiB), after
which the engine is not read until the client has taken most of it.
"""

import asyncio
import logging
import socket
import struct
from collections import deque
from typing import Any, Final, Protocol
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from hlserve_api.answers import Reason
from hlserve_router.answer_head import Headers
from hlserve_router.errors import Refusal
from hlserve_router.intake import Answer, Intake, declared_bytes, expects_continue, is_own
from hlserve_router.splice_request import INVALID, TOO_LARGE, Connection, SplicedRequest
from hlserve_router.state import ROUTES

MAX_AHEAD: Final = 64
"""Requests that a client may send ahead of its answers; after these the connection ends."""
READ_BYTES: Final = 256 * 1024
"""The most that the event loop hands over at once."""
UNPARSED_BYTES: Final = 64 * 1024
"""Where so much of a body of known length is still to come, it does not go through the parser, which would copy it."""
WRITE_HIGH_BYTES: Final = 64 * 1024
WRITE_LOW_BYTES: Final = 16 * 1024
_PLAIN: Final = {path.encode(): path for path in ROUTES}
"""Targets that need no parsing."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_INVALID: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 30\r\nconnection: close\r\n\r\n"
    b"Invalid HTTP request received."
)
"""What uvicorn answers to bytes that are no HTTP."""
_NEVER: Final = float("inf")


class Deadlines:
    """When what begins at this moment is late, for all connections: each copies one of these instead of reading the clock."""

    __slots__ = ("body", "closing", "head", "idle")

    def __init__(self, intake: Intake, now: float) -> None:
        self.head = self.body = self.idle = self.closing = now
        self.set(intake, now)

    def set(self, intake: Intake, now: float) -> None:
        """Counts from `now` on."""
        rules = intake.rules
        self.head = now + rules.header_timeout_seconds
        self.body = now + rules.timeout_seconds
        self.idle = now + rules.keep_alive_seconds
        self.closing = now + rules.linger_seconds


class Host(Protocol):
    """The server's side of a connection."""

    def serve_own(self, request: SplicedRequest, path: str) -> None:
        """Has FastAPI answer a request."""

    def shut_down_own(self) -> None:
        """What FastAPI answers now is the connection's last answer."""


class _TooFarAheadError(Exception):
    """Raised inside the parser, so that it stops."""


class ClientConnection(Connection):
    """Requests are answered one by one, in order."""

    def __init__(self, intake: Intake, deadlines: Deadlines, host: Host, server_state: ServerState) -> None:
        self.intake = intake
        self.deadlines = deadlines
        self.server_state = server_state
        self.cors = intake.cors
        self._host: Host | None = host
        self._parts: list[bytes] = []
        """What the parser has found of the body that it is in."""
        # The parser takes this as it is now; a method of ours would be one more call for each piece.
        self.on_body = self._parts.append
        self._headers: Headers | None = None
        """Where the parser's headers go; None: they are trailers, which are dropped."""
        self.deadline = deadlines.head
        """When `late` must be called, unless something happens before."""
        self._current: SplicedRequest | None = None
        """The request whose turn it is, until it is answered and received."""
        self._reading: SplicedRequest | None = None
        """The request that the parser is in."""
        self._ahead: deque[SplicedRequest] = deque()
        self._ahead_bytes = 0
        """Bytes read since there are requests in `_ahead`."""
        self._rest_bytes = 0
        """What is still to come of a body that does not go through the parser."""
        self._small_bytes = intake.rules.max_header_bytes
        self._large = False
        """True once a read brought so much, or so little, that a head may be larger than it may."""
        self._raw_bytes = 0
        """Bytes read since the last progress of the request that is being read."""
        self._deaf = False
        """True once nothing more is taken from this connection."""
        self._closing = False
        self._upgrade = self._resuming = False
        """True in a request that asks for another protocol, and while the head that stands in for its own is parsed."""
        self._parser: httptools.HttpRequestParser | None = self._new_parser()

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # As uvicorn does: what follows a request that ends the connection is no error.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    # from the server --------------------------------------------------------------------------------------------------

    def opened(self, transport: asyncio.Transport, flow: FlowControl) -> None:
        """The client is there."""
        self.transport = transport
        self.send = transport.write
        self.flow = flow
        transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)

    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        parser = self._parser
        if self._deaf or parser is None:
            return
        if self._rest_bytes:
            data = self._past_parser(data)
        before = self._reading
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._unreadable(error)
        reading = self._reading
        if reading is not None or len(data) > self._small_bytes:
            self._large = True
        if reading is not None:
            self._read_on(reading, len(data), began=reading is not before)
        if self._ahead:
            # Not before: as long as nothing is read, nobody sees that the client has left.
            self._ahead_bytes += len(data)
            if self._ahead_bytes > READ_BYTES:
                self.flow.pause_reading()
        request = self._current
        if request is not None:
            self._advance(request)

    def lost(self) -> None:
        """The client is gone, and with it what it had sent."""
        self._deaf = self._closing = True
        current, self._current, self._reading = self._current, None, None
        self._ahead.clear()
        self._parser = self._host = None  # they hold this connection as it holds them
        if current is not None:
            current.answered = True
            if current.relay is not None:
                current.relay.client_gone()

    def paused(self) -> None:
        """The client reads slowly."""
        if self._current is not None and self._current.relay is not None:
            self._current.relay.pause()

    def resumed(self) -> None:
        """It has taken most of what was written."""
        if self._current is not None and self._current.relay is not None:
            self._current.relay.resume()
        self._go_on()

    def shutdown(self) -> None:
        """The server ends: what is in progress is finished, then the connection closes."""
        if self._current is None or not self._current.head_complete:
            self.close()
            return
        self._current.keep_alive = False
        if self._host is not None:
            self._host.shut_down_own()

    def own_answered(self, *, keep_alive: bool) -> None:
        """FastAPI has answered."""
        request = self._current
        if request is not None:
            request.answered = True
            request.keep_alive = keep_alive
            self.answered(request)

    # httptools --------------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._resuming or self._deaf:
            return
        request = SplicedRequest(self)
        if self._current is None:
            self._current = request
        elif len(self._ahead) == MAX_AHEAD:
            raise _TooFarAheadError
        else:
            self._ahead.append(request)
        self._reading = request
        self._headers = request.headers

    def on_url(self, url: bytes) -> None:
        """Its target, or a piece of it."""
        request = self._reading
        if request is not None and not request.head_complete:
            request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer."""
        headers = self._headers
        if headers is not None:
            headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Its head is complete."""
        request, parser = self._reading, self._parser
        if request is None or parser is None or request.head_complete:
            return
        self._headers = None
        method = parser.get_method()
        request.method = "POST" if method == b"POST" else method.decode("ascii")
        request.keep_alive = parser.should_keep_alive()
        # Asking for the version makes a string; of itself only HTTP/1.1 is kept alive without a word about it.
        if not (request.keep_alive and says_nothing_of_itself(request.headers)) and parser.get_http_version() != "1.1":
            request.http11 = request.keep_alive = False
        request.head_complete = True
        self._upgrade = parser.should_upgrade()

    def on_message_complete(self) -> None:
        """All of it is there."""
        request = self._reading
        if request is None:
            self._parts.clear()
        elif not self._upgrade:
            self._take_parts(request)
            request.complete = True
            self._reading = None
            if not request.keep_alive:
                self._deaf = True

    def _take_parts(self, request: SplicedRequest) -> None:
        """Gives the request what came of its body; one that is answered already, or by FastAPI, needs nothing."""
        parts = self._parts
        if not parts:
            return
        request.body_bytes += len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if not request.answered and request.own_path is None and request.response_id is None:
            request.take(parts)
        parts.clear()

    def _past_parser(self, data: bytes) -> bytes:
        """Takes what of `data` belongs to the body that is being read; returns the rest, for the parser."""
        rest = self._rest_bytes
        if len(data) < rest:
            self._parts.append(data)
            self._rest_bytes = rest - len(data)
            return b""
        self._parts.append(data[:rest])
        self._rest_bytes = 0
        self.on_message_complete()
        return b"" if self._deaf else data[rest:]

    def _read_on(self, request: SplicedRequest, size: int, *, began: bool) -> None:
        """`request` did not end with this read. Bounds what the parser holds of a header that does not end, in a head or in
        the trailer of a body."""
        if began and not self._closing:
            self.deadline = self.deadlines.head
        if began or self._parts:
            self._raw_bytes = 0
        self._take_parts(request)
        if not self._rest_bytes and request.head_complete:
            rest = declared_bytes(request.headers) - request.body_bytes
            if rest >= UNPARSED_BYTES:
                self._rest_bytes = rest
                self._parser = self._new_parser()  # for the next request; the one at hand has its head already
        self._raw_bytes += size
        # Twice, for what stands between names and values. To count that with the headers would be a bound that grows with them.
        rules = self.intake.rules
        if self._raw_bytes > 2 * rules.max_header_bytes + READ_BYTES or (
            not request.head_complete and len(request.headers) > rules.max_headers
        ):
            self._stop_reading(TOO_LARGE)

    def _without_upgrade(self, rest: bytes) -> None:
        """A wish for another protocol is not granted: the request's body is read as if the head had none."""
        request, self._upgrade = self._reading, False
        if request is None or request.method == "CONNECT":
            self._stop_reading(INVALID)
            return
        framing = [header for header in request.headers if header[0] in (b"content-length", b"transfer-encoding")]
        self._parser = parser = httptools.HttpRequestParser(self)
        try:
            self._resuming = True
            parser.feed_data(b"".join((b"POST / HTTP/1.1\r\n", *(b"%b: %b\r\n" % pair for pair in framing), b"\r\n")))
            self._resuming = False
            parser.feed_data(rest)
        except httptools.HttpParserUpgrade as upgrade:
            self._without_upgrade(rest[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._unreadable(error)

    def _unreadable(self, error: httptools.HttpParserError) -> None:
        cause = error.__context__
        if isinstance(cause, _TooFarAheadError):
            self._deaf = True
            self._ahead[-1].keep_alive = False
        else:
            self._stop_reading(INVALID)
            if isinstance(error, httptools.HttpParserCallbackError):
                self._report(error)

    def _stop_reading(self, why: str) -> None:
        """Where the next request begins is not known. This one is refused when its turn comes."""
        self._deaf = True
        request, self._reading = self._reading, None
        if request is not None:
            request.broken = why
            request.keep_alive = False

    # the request whose turn it is -------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        request = self._current
        if request is not None:
            self._advance(request)

    def _advance(self, request: SplicedRequest) -> None:
        """Takes the next step for the request whose turn it is."""
        if request.submitted and not request.answered:
            return
        try:
            self._step(request)
        except Exception as error:  # the boundary of a request: its fault must not take others along
            self._fault(request, error)

    def _step(self, request: SplicedRequest) -> None:
        if request.answered:
            if request.complete:
                self._after(request)
            elif request.broken is not None:
                self.close()
            elif request.body_bytes > self.intake.rules.max_bytes and not self._closing:
                request.keep_alive = False
                self._linger()
            return
        if self.flow.write_paused:  # it begins when the client has taken what it was answered before
            self.deadline = self.deadlines.idle
            return
        if request.broken is not None:
            self._refuse_broken(request)
            return
        if not request.head_complete or (
            request.relay is None and request.own_path is None and not self._open(request)
        ):
            return
        if request.body_bytes > self.intake.rules.max_bytes:
            self._give_up(request, self.intake.body_too_large())
        elif request.complete:
            request.submitted = True
            self.deadline = _NEVER
            if request.own_path is not None:
                if self._host is not None:
                    self._host.serve_own(request, request.own_path)
            elif request.relay is not None and request.response_id is not None:
                request.relay.submit_stored(request.response_id)
            elif request.relay is not None:
                request.relay.submit(request.body())

    def _open(self, request: SplicedRequest) -> bool:
        """Whether the request may come in; if not, it is answered."""
        if self.cors is not None and (allowed := self.cors.preflight(request.method, request.headers)) is not None:
            request.refuse(Answer(204, allowed, b"", False))
            return False
        path = _PLAIN.get(request.target)
        if path is None:
            try:
                path = _path(request.target)
            except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
                self._stop_reading(INVALID)
                request.broken = INVALID
                self._refuse_broken(request)
                return False
            if is_own(path):
                request.own_path = path
        intake = self.intake
        if request.own_path is None:
            try:
                if self._large or len(request.headers) > intake.rules.max_headers:
                    intake.check_head(len(request.target), request.headers)
                exchange, request.response_id = intake.open(request.method, path, request.headers)
            except Refusal as refusal:
                request.refuse(intake.reject(refusal, path, request.headers))
                return False
            request.relay = intake.relay(exchange, request)
        return request.complete or self._await_body(request)

    def _await_body(self, request: SplicedRequest) -> bool:
        """The body, or the rest of it, may come; unless it says that it will be too large, which is answered."""
        intake = self.intake
        if declared_bytes(request.headers) > intake.rules.max_bytes:
            self._give_up(request, intake.body_too_large())
            return False
        if request.response_id is not None:
            request.parts = ()  # an engine is told the id and no more
        self.deadline = self.deadlines.body
        if request.http11 and expects_continue(request.headers):
            self.send(_CONTINUE)
        return True

    # refusals ---------------------------------------------------------------------------------------------------------

    def _refuse_broken(self, request: SplicedRequest) -> None:
        intake = self.intake
        if request.broken == TOO_LARGE:
            self._give_up(request, intake.head_too_large())
            return
        request.answered = True
        if request.relay is not None:
            request.relay.client_gone()
        self.send(_INVALID)
        self._linger()

    def _give_up(self, request: SplicedRequest, refusal: Refusal) -> None:
        """Refuses a request that was not read to its end."""
        intake = self.intake
        if request.relay is not None:
            request.refuse(intake.give_up(refusal, request.relay))
        else:
            request.refuse(intake.reject(refusal, request.target.decode("latin-1"), request.headers))

    def _fault(self, request: SplicedRequest, error: Exception) -> None:
        if request.relay is not None:
            request.relay.fault(error)
            return
        self._report(error)
        self._stop_reading(INVALID)
        try:
            refusal = Refusal(Reason.INTERNAL_ERROR, "The router failed; this is logged. Try again.")
            self._give_up(request, refusal)
        except Exception as second:  # what failed may be what answers
            self._report(second)
        self.close()

    def _report(self, error: Exception) -> None:
        """A fault of our own outside of any relay."""
        logging.getLogger("hlserve_router").error("request failed", exc_info=error)
        self.intake.proxy.metrics.count("hlserve_router_internal_errors_total")

    def late(self) -> None:
        """The deadline is over."""
        request, intake = self._current, self.intake
        if self._closing:
            self.abort()
        elif request is None or (request.submitted and request.answered):
            self.close()
        elif request.submitted:
            self.deadline = _NEVER
        elif request.answered or self.flow.write_paused:
            self.abort()
        else:
            self._deaf = True
            request.broken = INVALID
            self._give_up(request, intake.body_too_slow() if request.head_complete else intake.head_too_slow())

    # what follows an answer -------------------------------------------------------------------------------------------

    def answered(self, request: SplicedRequest) -> None:
        """The answer to `request` is complete."""
        self.server_state.total_requests += 1
        if request is not self._current:
            return
        if request.complete:
            self._after(request)
        elif request.keep_alive:
            self.deadline = self.deadlines.body
        else:
            self._linger()

    def _after(self, request: SplicedRequest) -> None:
        """`request` is over: on to the next one, or none."""
        if not request.keep_alive:
            self.close()
            return
        self.deadline = self.deadlines.idle
        self._current = None
        if self._ahead:
            self.deadline = self.deadlines.head
            self._current = self._ahead.popleft()
            if not self._ahead:
                self._ahead_bytes = 0
                self.flow.resume_reading()
            # Later, as the relay that has just ended still has to give back what it holds.
            asyncio.get_running_loop().call_soon(self._go_on)

    def close(self) -> None:
        """Ends the connection once everything is written; not even that takes for ever."""
        self._deaf = self._closing = True
        self.deadline = self.deadlines.closing
        if not self.transport.is_closing():
            self.transport.close()

    def _linger(self) -> None:
        """Ends our half, and the rest when the client has ended its own: closed on unread bytes, it would lose the answer."""
        self._deaf = self._closing = True
        self.deadline = self.deadlines.closing
        if not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()

    def cut(self, *, reset: bool) -> None:
        """Ends the connection in the middle of an answer; with `reset` it cannot be taken for a proper end."""
        if reset:
            reset_at_end(self.transport)
            self.abort()
        else:
            self.close()

    def abort(self) -> None:
        """Drops the connection and whatever is unsent."""
        self._deaf = self._closing = True
        self.transport.abort()


def reset_at_end(transport: asyncio.BaseTransport) -> None:
    """Makes the connection's end a reset: where it is the end of the body, only that says that something is missing."""
    raw = transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _path(target: bytes) -> str:
    """The decoded path of a request target in origin or absolute form. Raises ValueError, HttpParserInvalidURLError."""
    # Any, as the stub promises a path where there may be none, and compiled code would believe it.
    url: Any = httptools.parse_url(target)
    path: str = (url.path or b"/").decode("ascii")
    return unquote(path) if "%" in path else path


def says_nothing_of_itself(headers: Headers) -> bool:
    """True if no header is about the connection. Names in lower case."""
    for name, _ in headers:  # noqa: SIM110
        if name == b"connection":
            return False
    return True
