"""Step 7 as a state machine that any face can drive: an engine's answer in, the client's bytes out. No I/O of its own.

Until the first event of a stream is there (or the class's peek time is over) nothing is sent, so that an error that comes
first becomes a real status and a failed try can go elsewhere. After that, bytes go out as they came; what the router
adds stands only at event boundaries: pings, and one error event if the engine fails.
"""

from dataclasses import replace
from typing import Protocol

from hlserve_api.answers import Outcome, Reason
from hlserve_api.routing import Timeouts
from hlserve_router.accounting import meter
from hlserve_router.answer_head import (
    STREAM,
    for_client,
    identity,
    retry_after,
    unbuffered,
    with_length,
)
from hlserve_router.answers import PING, answer, engine_error_event, error_event
from hlserve_router.deadlines import engine_silent, needs_ping, peek_is_over, too_long, total_deadline
from hlserve_router.dispatch import abort_request
from hlserve_router.errors import Refusal
from hlserve_router.exchange import Exchange
from hlserve_router.outcome import CLIENT_GONE, Ending, passed, refused
from hlserve_router.proxy import Proxy
from hlserve_router.receiver import Discard
from hlserve_router.reply import Reply
from hlserve_router.retries import failed
from hlserve_router.sse import (
    StreamSplitter,
    event_data,
    events,
    has_error,
    has_usage,
    is_complete,
    read_error,
    read_usage,
    without_usage_chunks,
)
from hlserve_router.state import Failure, Finish, RidTravel
from hlserve_router.upstream import Call, UpstreamClient


class Downstream(Protocol):
    """The client's side, which a face provides. Calls: start, write…, then finish or cut."""

    def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Sends status and headers."""

    def write(self, data: bytes) -> None:
        """Sends body bytes."""

    def finish(self) -> None:
        """Ends the message properly."""

    def cut(self) -> None:
        """Ends the connection without a proper end, so that the client knows that something is missing."""


class Relay:
    """One request's step 7. A face makes it, calls `submit` (through `proxy`), `tick`, `client_gone`, `pause`, `resume`."""

    __slots__ = (
        "_call", "_client", "_complete", "_down", "_early", "_erred", "_last_write", "_now", "_opened", "_paused",
        "_reply", "_splitter", "_total_at", "exchange", "over", "proxy",
    )  # fmt: skip

    def __init__(self, proxy: Proxy, client: UpstreamClient, exchange: Exchange, down: Downstream) -> None:
        self.proxy = proxy
        self.exchange = exchange
        self.over = False
        self._client = client
        self._down = down
        self._now = proxy.clocks.monotonic
        self._call: Call | None = None
        self._opened = self._early = self._paused = self._erred = self._complete = False
        self._last_write = exchange.arrived
        self._total_at = float("inf")
        self._clear()

    def _clear(self) -> None:
        """Back to before an engine answered."""
        self._reply = Reply()
        self._splitter = StreamSplitter()

    # from the face ----------------------------------------------------------------------------------------------------

    def submit(self, body: bytes) -> None:
        """The request's body is complete: steps 2 to 6, then the engine's answer goes to `Downstream`."""
        try:
            self.proxy.submit(self.exchange, body, self)
        except Refusal as refusal:
            self.refused(refusal)
        self._set_total()

    def submit_stored(self, response_id: str) -> None:
        """As `submit`, for GET and cancel of a stored response."""
        try:
            self.proxy.open_stored(self.exchange, response_id, self)
        except Refusal as refusal:
            self.refused(refusal)
        self._set_total()

    def _set_total(self) -> None:
        if self.exchange.class_route is not None:
            self._total_at = total_deadline(self.exchange, self.exchange.class_route)

    def client_gone(self) -> None:
        """The client closed its connection: whatever it holds, here and at the engine, is freed now."""
        if self.over:
            return
        self._abort()
        self._end(CLIENT_GONE)

    def shut_down(self) -> None:
        """The process ends before the request does."""
        if not self.over:
            self._abort()
            self._fail(Refusal(Reason.DRAINING, "The router is shutting down. Try again."))

    def broken(self) -> None:
        """The router's own code failed. The face has logged it."""
        if not self.over:
            self._abort()
            self._fail(Refusal(Reason.INTERNAL_ERROR, "The router failed; this is logged. Try again."))

    def pause(self) -> None:
        """The client reads slowly: stop reading from the engine."""
        self._paused = True
        if self._call is not None:
            self._call.pause()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if self._call is not None:
            self._call.resume()

    def tick(self, now: float) -> None:
        """Checks every deadline; the face calls it a few times a second."""
        route = self.exchange.class_route
        if self.over or route is None:
            return
        refusal = too_long() if now >= self._total_at else None
        if refusal is None and self._call is not None and not self._paused:
            refusal = engine_silent(self.exchange, route.timeouts, self._reply.last_read, now)
        if refusal is not None:
            self._abort()
            self._fail(refusal)
            return
        meter(self.proxy.metrics, self.exchange)
        if self.exchange.streams:
            self._keep_alive(route.timeouts, now)

    def _keep_alive(self, timeouts: Timeouts, now: float) -> None:
        """Opens a stream that would wait too long for its first event, and pings one that is silent."""
        reply = self._reply
        if not self._opened:
            if reply.is_stream and peek_is_over(timeouts, reply.head_at, now):
                self._open(reply.status, reply.headers)
            elif reply.may_be_stream and needs_ping(timeouts, self.exchange.arrived, now):
                self._open(200, reply.headers if reply.is_stream else [STREAM])
        quiet = self._opened and needs_ping(timeouts, self._last_write, now)
        if quiet and self._splitter.at_boundary and not reply.is_compressed:
            self._write(PING[self.exchange.route.shape])

    # from the queue ---------------------------------------------------------------------------------------------------

    def granted(self) -> None:
        """There is an endpoint: write the request to it."""
        exchange = self.exchange
        if exchange.endpoint is None or self.over:
            return
        self._clear()
        self._call = self._client.send(exchange.endpoint.link, self.proxy.engine_request(exchange), self)
        if self._paused:
            self._call.pause()

    def refused(self, refusal: Refusal) -> None:
        """There will be none."""
        if not self.over:
            self._fail(refusal)

    # from the engine --------------------------------------------------------------------------------------------------

    def upstream_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The answer's status and headers."""
        now = self._now()
        self._reply.begin(status, headers, now)
        self._early = self._opened
        endpoint = self.exchange.endpoint
        if endpoint is not None and status < 500:
            endpoint.last_byte_at = now
            if status < 400:  # a client's mistake (4xx) says nothing about the engine's health
                endpoint.answered(now)
        if status in (429, 503):
            self._busy(retry_after(headers, self.proxy.clocks.wall()))
        elif status == 502:
            self._detach()
            self._retry(Failure.RESET)

    def upstream_data(self, data: bytes) -> None:
        """Body bytes."""
        if self._call is None:
            return
        self._reply.last_read = self._now()
        if not self._reply.has_events:
            self._plain(data)
            return
        ready = self._splitter.feed(data)
        if ready:
            self._events(ready)

    def upstream_end(self) -> None:
        """The answer is complete."""
        self._call = None
        if self._reply.has_events:
            self._stream_end()
        else:
            self._plain_end()

    def upstream_failed(self, failure: Failure, detail: str) -> None:
        """The connection broke."""
        self._call = None
        self.proxy.log.info(
            "engine failed", extra={"fields": {"rid": self.exchange.rid, "failure": failure.value, "detail": detail}}
        )
        if self.exchange.first_event or (self._opened and self._reply.size_bytes):
            self._fail(failed(failure))
            return
        self._retry(failure)

    # streams ----------------------------------------------------------------------------------------------------------

    def _events(self, data: bytes) -> None:
        """Complete events (or a piece of one that is too long to hold)."""
        exchange = self.exchange
        if not exchange.first_event:
            if self._reply.comments:
                data, self._reply.comments = self._reply.comments + data, b""
            if not self._first_events(data):
                return
        exchange.events += data.count(b"\n\n")
        if has_usage(data):
            read_usage(data, exchange.usage)
            if exchange.route.usage_strippable and not exchange.facts.wants_usage:
                data = without_usage_chunks(data)
        self._bind_response(data)
        if is_complete(data, exchange.route.finish):
            self._complete = True
        if has_error(data):
            self._erred = True
        if data:
            self._write(data)

    def _first_events(self, data: bytes) -> bool:
        """Looks at the first event before the status is sent. False: there is nothing to pass on (yet)."""
        first = next((event for event in events(data) if event_data(event) is not None), None)
        if first is None and self._splitter.at_boundary:  # comments only: they wait with the status
            if self._opened:
                self._write(data)
            else:
                self._reply.comments = data
            return False
        if first is not None and (error := read_error(first, self.exchange.route.shape)) is not None:
            self._first_error(error.status, error.body)
            return False
        self.exchange.first_event = self._now()
        if not self._opened:
            self._open(self._reply.status, self._reply.headers)
        return True

    def _first_error(self, status: int, body: bytes) -> None:
        """The stream began with an error event: its real status, as long as none was sent."""
        if status in (429, 503):
            self._busy(None)
            return
        self._detach()
        if not self._opened:
            self._open(status, with_length([(b"content-type", b"application/json")], len(body)))
            self._down.write(body)
            self._down.finish()
        else:
            self._write(engine_error_event(body, self.exchange.route.finish))
            self._down.finish()
        self._end(passed(status))

    def _stream_end(self) -> None:
        held = self._splitter.drop()
        if held and (is_complete(held, self.exchange.route.finish) or not held.strip()):
            self._complete = self._complete or bool(held.strip())
            self._events(held)
        elif held:
            self._erred = False
            self._complete = False
        if self.over:
            return
        if self._erred and not held:
            self._down.finish()
            self._end(Ending(Outcome.ENGINE_ERROR, None, 500))
        elif self._complete or self.exchange.route.finish is Finish.NONE:
            if not self._opened:
                self._open(self._reply.status, self._reply.headers)
            self._down.finish()
            self._end(passed(self._reply.status))
        elif self.exchange.first_event or self._opened:
            self._fail(failed(Failure.TRUNCATED))
        else:
            self._retry(Failure.TRUNCATED)

    # answers that are no stream ---------------------------------------------------------------------------------------

    def _plain(self, data: bytes) -> None:
        if self._early:
            return  # a stream was opened while waiting; this answer becomes one error event at its end
        reply = self._reply
        reply.count(data)
        if self._opened:
            self._write(data)
            return
        reply.hold(data)
        if not reply.may_wait:
            self._open(reply.status, reply.headers)
            for piece in reply.let_go():
                self._write(piece)

    def _plain_end(self) -> None:
        exchange = self.exchange
        if self._early:
            status = self._reply.status
            refusal = Refusal(Reason.ENGINE_PROTOCOL, f"The engine answered {status} instead of a stream.")
            self._down.write(error_event(refusal, exchange.route.shape, exchange.head.request_id, status=status))
            self._down.finish()
            self._end(passed(status) if status >= 400 else refused(refusal.reason))
            return
        body = self._reply.held()
        if self._reply.status < 400:
            read_usage(body or self._reply.tail, exchange.usage)
            self._bind_response(body)
            if not exchange.first_event:
                exchange.first_event = self._reply.last_read
        if not self._opened:
            self._open(self._reply.status, with_length(self._reply.headers, len(body)))
            self._down.write(body)
        self._down.finish()
        self._end(passed(self._reply.status))

    # endings ----------------------------------------------------------------------------------------------------------

    def _retry(self, failure: Failure) -> None:
        self._clear()
        try:
            self.proxy.retry(self.exchange, failure, self)
        except Refusal as refusal:
            self._fail(refusal)

    def _busy(self, retry_after_seconds: float | None) -> None:
        self._detach()
        self._clear()
        try:
            self.proxy.busy(self.exchange, retry_after_seconds, self)
        except Refusal as refusal:
            self._fail(refusal)

    def _fail(self, refusal: Refusal) -> None:
        """The router's own answer: a real one if no status was sent, else an error event, else a cut."""
        exchange = self.exchange
        if not self._opened:
            made = answer(refusal, exchange.head.shape, exchange.head.request_id, self.proxy.random)
            self._opened = True
            self._down.start(made.status, [*made.headers, *identity(exchange)])
            self._down.write(made.body)
            self._down.finish()
        elif self._reply.may_be_stream and self._splitter.at_boundary and not self._reply.is_compressed:
            self._splitter.drop()
            self._down.write(error_event(refusal, exchange.route.shape, exchange.head.request_id))
            self._down.finish()
        else:
            self._down.cut()
        ending = refused(refusal.reason)
        if ending.outcome is Outcome.ENGINE_ERROR and (exchange.first_event or self._reply.size_bytes):
            ending = replace(ending, outcome=Outcome.TRUNCATED)  # the client has part of the reply
        self._end(ending)

    def _end(self, ending: Ending) -> None:
        if self.over:
            return
        self.over = True
        self._call = None
        self.proxy.settle(self.exchange, ending)

    def _detach(self) -> None:
        """Drops the call; its engine is done with it or never began."""
        call, self._call = self._call, None
        if call is not None:
            call.abort()

    def _abort(self) -> None:
        """Drops the call while the engine works on it: closes the socket, and says so by our own id."""
        call = self._call
        if call is None:
            return
        self._detach()
        exchange = self.exchange
        endpoint, pool = exchange.endpoint, exchange.pool
        if endpoint is None or pool is None or pool.route.foreign or exchange.route.rid is RidTravel.NONE:
            return
        endpoint.gave_up(exchange.rid, self._now())
        self._client.send(endpoint.link, abort_request(exchange.rid), Discard())

    # writing ----------------------------------------------------------------------------------------------------------

    def _open(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._opened = True
        if self._reply.may_be_stream:
            headers = unbuffered(headers)
        self._last_write = self._now()
        self._down.start(status, for_client(headers, self.exchange))

    def _write(self, data: bytes) -> None:
        self._last_write = self._now()
        self._down.write(data)

    def _bind_response(self, data: bytes) -> None:
        exchange = self.exchange
        endpoint, pool = exchange.endpoint, exchange.pool
        if exchange.route.name != "responses" or endpoint is None or pool is None:
            return
        if pool.route.response_store:
            self.proxy.stored.bind_named(data, exchange.key.client, endpoint)
