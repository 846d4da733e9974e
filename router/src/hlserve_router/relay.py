"""Step 7 as a state machine that any face can drive: an engine's answer in, the client's bytes out. No I/O of its own.

Until the first event of a stream is there (or the class's peek time is over) nothing is sent, so that an error that comes
first becomes a real status and a failed try can go elsewhere. After that, bytes go out as they came; what the router
adds stands only at event boundaries: pings, and one error event if the engine fails.
"""

import logging
from dataclasses import replace
from typing import Final, Protocol

from hlserve_api.answers import Outcome, Reason
from hlserve_api.routing import Timeouts
from hlserve_router.accounting import meter
from hlserve_router.answer_head import STREAM, Headers, for_client, retry_after, unbuffered, with_length, without_secret
from hlserve_router.answer_usage import read_body_usage
from hlserve_router.answers import PING, answer, engine_error_event, error_event
from hlserve_router.deadlines import engine_silent, needs_ping, peek_is_over, too_long, total_deadline
from hlserve_router.dispatch import abort_request
from hlserve_router.errors import Refusal
from hlserve_router.exchange import Exchange
from hlserve_router.outcome import CLIENT_GONE, Ending, passed, refused
from hlserve_router.proxy import Proxy
from hlserve_router.reply import NO_REPLY, Reply
from hlserve_router.retries import failed
from hlserve_router.sse import (
    CLOSING_MARKS,
    TEXT_FORMS,
    UNUSED,
    StreamSplitter,
    TextForm,
    closes,
    event_data,
    events,
    has_error,
    has_usage,
    is_complete,
    is_ordinary,
    is_text_event,
    read_error,
    read_usage,
    without_usage_chunks,
)
from hlserve_router.state import Failure, Finish, RidTravel
from hlserve_router.upstream import Call, UpstreamClient

NEVER: Final = float("inf")
LOOK_SECONDS: Final = 1.0
"""How often a stream that flows is looked at: with thousands of them, looking ten times a second costs as much as relaying."""


class Downstream(Protocol):
    """The client's side, which a face provides. Calls: `answer`; or `start`, `write`…, then `finish` or `cut`.

    To every head a face adds what `answer_head.identity` says of the request.
    """

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Sends a complete answer; its length is among the headers."""

    def start(self, status: int, headers: Headers, data: bytes = b"") -> None:
        """Sends status and headers, and the first body bytes if there are any."""

    def write(self, data: bytes) -> None:
        """Sends body bytes: one write, one frame."""

    def finish(self, data: bytes = b"") -> None:
        """Sends the last body bytes, if there are any, and ends the message properly."""

    def cut(self) -> None:
        """Ends the connection without a proper end, so that the client knows that something is missing."""


class Nobody:
    """The client's side of a request that is over."""

    __slots__ = ()

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Ignored."""

    def start(self, status: int, headers: Headers, data: bytes = b"") -> None:
        """Ignored."""

    def write(self, data: bytes) -> None:
        """Ignored."""

    def finish(self, data: bytes = b"") -> None:
        """Ignored."""

    def cut(self) -> None:
        """Ignored."""


NOBODY: Final = Nobody()


class Relay:
    """One request's step 7. A face makes it, calls `submit` (through `proxy`), `tick`, `client_gone`, `pause`, `resume`.

    It is in `live`, the relays in progress, until it is over.
    """

    __slots__ = (
        "_call", "_client", "_complete", "_down", "_early", "_erred", "_flowing", "_last_write", "_live", "_mark", "_now",
        "_opened", "_paused", "_reply", "_seen_events", "_splitter", "_total_at", "exchange", "look_at", "over", "proxy",
    )  # fmt: skip

    def __init__(
        self, proxy: Proxy, client: UpstreamClient, exchange: Exchange, down: Downstream, live: "set[Relay]"
    ) -> None:
        self.proxy = proxy
        self.exchange = exchange
        self.over = False
        self._live = live
        self._mark = CLOSING_MARKS[exchange.route.finish]
        self._client = client
        self._down: Downstream = down
        self._now = proxy.clocks.monotonic
        self._call: Call | None = None
        self._opened = self._early = self._paused = self._erred = self._complete = False
        self._flowing: TextForm | None = None
        """What most events look like, while a stream is between two of them and nothing is held."""
        self._last_write = exchange.arrived
        self._total_at = NEVER
        self._seen_events = 0
        self.look_at = 0.0
        """When `tick` has something to do at the earliest."""
        self._reply = NO_REPLY
        self._splitter = UNUSED
        live.add(self)

    def _clear(self) -> None:
        """Back to before an engine answered."""
        self._reply = NO_REPLY
        self._splitter = UNUSED
        self._flowing = None

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
        plan = self.exchange.plan
        if plan is not None:
            self._total_at = total_deadline(self.exchange, plan.total_seconds)

    def client_gone(self) -> None:
        """The client closed its connection: whatever it holds, here and at the engine, is freed now."""
        if self.over:
            return
        self._abort()
        self._end(CLIENT_GONE)

    def give_up(self, refusal: Refusal) -> None:
        """The request's body is not as it must be, which the face tells the client."""
        self._end(refused(refusal.reason))

    def shut_down(self) -> None:
        """The process ends before the request does."""
        if not self.over:
            self._abort()
            self._fail(Refusal(Reason.DRAINING, "The router is shutting down. Try again."))

    def fault(self, error: Exception) -> None:
        """The router's own code failed on this request: logged, counted, and answered as far as that still works."""
        self._report(error)
        if self.over:
            return
        try:
            self._abort()
            self._fail(Refusal(Reason.INTERNAL_ERROR, "The router failed; this is logged. Try again."))
        except Exception as second:  # what failed may be what answers
            self._report(second)
            self._down.cut()
            self._end(refused(Reason.INTERNAL_ERROR))

    def _report(self, error: Exception) -> None:
        fields = {"rid": self.exchange.rid}
        logging.getLogger("hlserve_router").error("request failed", exc_info=error, extra={"fields": fields})
        self.proxy.metrics.count("hlserve_router_internal_errors_total")

    def pause(self) -> None:
        """The client reads slowly: stop reading from the engine."""
        self._paused = True
        if self._call is not None:
            self._call.pause()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if self._reply is not NO_REPLY:
            self._reply.last_read = self._now()  # while nobody listened, the engine was not silent
        if self._call is not None:
            self._call.resume()

    def tick(self, now: float) -> None:
        """Checks every deadline; the face calls it a few times a second, from `look_at` on."""
        route = self.exchange.class_route
        if self.over or route is None:
            return
        if self._flowing is not None and self._seen_events != self.exchange.events:
            # What flows is only counted; that it does is noted here instead of with each piece.
            self._seen_events = self.exchange.events
            self._reply.last_read = self._last_write = now
        refusal = too_long() if now >= self._total_at else None
        if refusal is None and self._call is not None and not self._paused:
            refusal = engine_silent(self.exchange, route.timeouts, self._reply.last_read, now)
        if refusal is not None:
            self._abort()
            self._fail(refusal)
            return
        meter(self.exchange)
        if self.exchange.streams:
            self._keep_alive(route.timeouts, now)
        if self._flowing is not None:
            self.look_at = min(self._total_at, now + min(LOOK_SECONDS, route.timeouts.ping_seconds / 10))

    def _keep_alive(self, timeouts: Timeouts, now: float) -> None:
        """Opens a stream that would wait too long for its first event, and pings one that is silent."""
        reply = self._reply
        if not self._opened:
            if reply.is_stream and peek_is_over(timeouts, reply.head_at, now):
                self._open(reply.status, reply.headers)
            elif reply.may_be_stream and needs_ping(timeouts, self.exchange.arrived, now):
                self._open(200, reply.headers if reply.is_stream else [STREAM])
        # A client that does not read what it has got needs no sign of life, and it would only pile up here.
        quiet = self._opened and not self._paused and needs_ping(timeouts, self._last_write, now)
        if quiet and self._splitter.at_boundary and not reply.is_compressed:
            self._write(PING[self.exchange.route.shape])

    # from the queue ---------------------------------------------------------------------------------------------------

    def granted(self) -> None:
        """There is an endpoint: write the request to it."""
        exchange = self.exchange
        if exchange.endpoint is None or self.over:
            return
        try:
            self._call = self._client.send(exchange.endpoint.link, self.proxy.engine_request(exchange), self)
            if self._paused:
                self._call.pause()
        except Exception as error:  # a turn comes while another request ends, which must not bear this one's fault
            self.fault(error)

    def refused(self, refusal: Refusal) -> None:
        """There will be none."""
        if self.over:
            return
        try:
            self._fail(refusal)
        except Exception as error:  # as in `granted`
            self.fault(error)

    # from the engine --------------------------------------------------------------------------------------------------

    def upstream_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The answer's status and headers."""
        now = self._now()
        self._reply = reply = Reply(status, headers, now)
        if reply.has_events:
            self._splitter = StreamSplitter()
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
        form = self._flowing
        if form is not None:
            # Nearly every piece of a stream is one event of text, which goes through with nothing else done to it.
            if is_text_event(data, form):
                self.exchange.events += 1
                self._down.write(data)
                return
            if self._mark and data.endswith(b"\n\n") and is_ordinary(data, self._mark):
                self.exchange.events += data.count(b"\n\n")
                self._down.write(data)
                return
            self._last_write = self._now()
        self._reply.last_read = self._now()
        if not self._reply.has_events:
            self._plain(data)
            return
        ready = self._splitter.feed(data)
        if ready:
            self._events(ready)
        flows = self._splitter.empty and self._opened and self.exchange.first_event > 0
        self._flowing = TEXT_FORMS[self.exchange.route.finish] if flows else None

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
        exchange.events += data.count(b"\n\n") or data.count(b"\n\r\n")
        if not (self._mark and is_ordinary(data, self._mark)):
            data = self._look_into(data)
        if not self._opened:
            self._open(self._reply.status, self._reply.headers, data)
        elif data:
            self._write(data)

    def _look_into(self, data: bytes) -> bytes:
        """Takes what these events say of the reply. Returns those that the client is to get."""
        exchange = self.exchange
        if has_usage(data):
            read_usage(data, exchange.usage)
            if exchange.route.usage_strippable and not exchange.facts.wants_usage:
                data = without_usage_chunks(data)
        self._bind_response(data)
        if is_complete(data, exchange.route.finish):
            self._complete = True
        if has_error(data):
            self._erred = True
        return data

    def _first_events(self, data: bytes) -> bool:
        """Looks at the first event before the status is sent. False: there is nothing to pass on (yet)."""
        form = TEXT_FORMS[self.exchange.route.finish]
        if (form is None or not is_text_event(data, form)) and not self._may_begin(data):
            return False
        self.exchange.first_event = self._now()
        self.exchange.forget_body()  # there can be no other try: a long stream must not hold its prompt
        if self._call is not None:
            self._call.forget_request()
        return True

    def _may_begin(self, data: bytes) -> bool:
        """False for comments alone, and for an error that comes first: it is answered."""
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
        return True

    def _first_error(self, status: int, body: bytes) -> None:
        """The stream began with an error event: its real status, as long as none was sent."""
        if status in (429, 503):
            self._busy(None)
            return
        self._detach()
        body = without_secret(body, self.exchange)
        if not self._opened:
            self._answer(status, [(b"content-type", b"application/json")], body)
        else:
            self._down.finish(engine_error_event(body, self.exchange.route.finish))
        self._end(passed(status))

    def _stream_end(self) -> None:
        held = self._splitter.drop()
        if held and (closes(held, self.exchange.route.finish) or not held.strip()):
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
        if reply.keep(data) and not self._opened:
            return
        data = reply.let_go()
        if self._opened:
            self._write(data)
        else:
            self._open(reply.status, reply.headers, data)

    def _plain_end(self) -> None:
        exchange = self.exchange
        if self._early:
            status = self._reply.status
            refusal = Refusal(Reason.ENGINE_PROTOCOL, f"The engine answered {status} instead of a stream.")
            self._down.finish(error_event(refusal, exchange.route.shape, exchange.head.request_id, status=status))
            self._end(passed(status) if status >= 400 else refused(refusal.reason))
            return
        reply = self._reply
        body, status = reply.body(), reply.status
        if status < 400:
            self._read_usage(body)
            self._bind_response(body)
            if not exchange.first_event:
                exchange.first_event = reply.last_read
        if self._opened:
            self._down.finish()
        else:
            if status >= 400:
                body = without_secret(body, exchange)
            self._opened = True
            self._down.answer(status, with_length(for_client(reply.headers, exchange), len(body)), body)
        self._end(passed(status))

    def _read_usage(self, body: bytes) -> None:
        exchange = self.exchange
        if not body or not read_body_usage(body, exchange.usage):
            read_usage(body or self._reply.tail, exchange.usage)

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
            self._down.answer(made.status, list(made.headers), made.body)
        elif self._reply.may_be_stream and self._splitter.at_boundary and not self._reply.is_compressed:
            self._splitter.drop()
            self._down.finish(error_event(refusal, exchange.route.shape, exchange.head.request_id))
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
        self._flowing = None
        self._call = None
        self._live.discard(self)
        self._down = NOBODY  # else each request would be a ring that only the garbage collector can free
        self.proxy.settle(self.exchange, ending)

    def _detach(self) -> None:
        """Drops the call; its engine is done with it or never began."""
        call, self._call = self._call, None
        if call is None:
            return
        try:
            call.abort()
        except Exception:  # whatever the socket says, what the request holds is given back
            self.proxy.metrics.count("hlserve_router_internal_errors_total")
            self.proxy.log.exception("closing failed", extra={"fields": {"rid": self.exchange.rid}})

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
        self._client.tell(endpoint.link, abort_request(exchange.rid))

    # writing ----------------------------------------------------------------------------------------------------------

    def _answer(self, status: int, headers: Headers, body: bytes) -> None:
        self._opened = True
        self._down.answer(status, with_length(headers, len(body)), body)

    def _open(self, status: int, headers: Headers, data: bytes = b"") -> None:
        self._opened = True
        headers = for_client(headers, self.exchange)
        if self._reply.may_be_stream:
            headers = unbuffered(headers)
        self._last_write = self._now()
        self._down.start(status, headers, data)

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
