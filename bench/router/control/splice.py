"""The bare control (see README.md): POSTs under /v1 are relayed from socket to socket, everything else is FastAPI."""

import asyncio
import sys
from typing import Any

import core
import httptools
import uvicorn
from fastapi import FastAPI, Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

api = FastAPI()


@api.get("/health")
async def health() -> dict[str, bool]:
    """It is up."""
    return {"ok": True}


@api.get("/metrics")
async def metrics() -> Response:
    """The metrics page."""
    return Response(core.metrics_text(), media_type="text/plain")


class Upstream(asyncio.Protocol):
    """The engine's side: parses the head of the reply, then passes the body on and looks for its end."""

    __slots__ = (
        "chunked", "done", "down", "engine", "head_sent", "headers", "keep", "lost", "parser", "payload", "status",
        "transport",
    )  # fmt: skip

    def __init__(self, engine: core.Engine) -> None:
        self.engine, self.down, self.parser, self.lost = engine, None, None, False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def start(self, down: "Splice", data: tuple[bytes, bytes]) -> None:
        """Sends a request."""
        self.down, self.parser = down, httptools.HttpResponseParser(self)
        self.headers, self.done, self.head_sent, self.payload = [], False, False, []
        self.chunked = False
        if len(data[1]) > 16384:
            self.transport.writelines(data)  # a large body is not copied
        else:
            self.transport.write(b"".join(data))

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"transfer-encoding":
            self.chunked = True
        elif name not in core.NOT_FORWARDED:
            self.headers.append(b"%b: %b\r\n" % (name, value))

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.payload.append(body)

    def on_message_complete(self) -> None:
        self.done = True
        self.keep = self.parser.should_keep_alive()  # only valid inside this callback

    def data_received(self, data: bytes) -> None:
        down = self.down
        if down is None:
            self.transport.close()
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            down.upstream_failed(self)
            return
        parts = self.payload
        if parts:
            self.payload = []
            out = parts[0] if len(parts) == 1 else b"".join(parts)
            size = len(out)
            down.call.data(size)
            if self.chunked:
                out = b"%x\r\n%b\r\n" % (size, out) if not self.done else b"%x\r\n%b\r\n0\r\n\r\n" % (size, out)
        elif self.done:
            out = b"0\r\n\r\n" if self.chunked else b""
        elif self.head_sent or self.status is None:
            return
        else:
            out = b""
        if not self.head_sent:
            self.head_sent = True
            end = b"transfer-encoding: chunked\r\n\r\n" if self.chunked else b"\r\n"
            out = b"".join((STATUS_LINE[self.status], *down.server_headers(), *self.headers, end, out))
        down.transport.write(out)
        if self.done:
            self.down = self.parser = None
            if self.keep and not self.lost:
                self.engine.free.append(self)
            else:
                self.transport.close()
            down.relay_done(self.status)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self.down is not None:
            self.down.upstream_failed(self)
        elif self in self.engine.free:
            self.engine.free.remove(self)


class _NoEvent:
    def set(self) -> None:
        pass


class Done:
    """Stands where uvicorn keeps its cycle while a request is relayed."""

    __slots__ = ("body", "disconnected", "keep_alive", "message_event", "more_body", "response_complete")

    def __init__(self) -> None:
        self.response_complete = False
        self.keep_alive = True
        self.disconnected = False
        self.message_event = _NoEvent()


class Splice(HttpToolsProtocol):
    """The client's side."""

    fast = False
    up = None
    call: Any = None

    def server_headers(self) -> list[bytes]:
        """Date and server."""
        return [b"%b: %b\r\n" % header for header in self.server_state.default_headers]

    def on_message_begin(self) -> None:
        self.url, self.headers, self.fast, self.expect_100_continue = b"", [], False, False

    def on_url(self, url: bytes) -> None:
        self.url = url = self.url + url
        idle = self.cycle is None or self.cycle.response_complete
        self.fast = url.startswith(b"/v1/") and self.parser.get_method() == b"POST" and idle
        if self.fast:
            self.authorization, self.lines, self.parts = None, [], []

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if not self.fast:
            if lower == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((lower, value))
        elif lower == b"authorization":
            self.authorization = value
        elif lower not in core.HOP_BY_HOP:
            self.lines.append(b"%b: %b\r\n" % (name, value))
        elif lower == b"expect":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_headers_complete(self) -> None:
        if self.fast:
            self.cycle = Done()
            return
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.fast:
            self.parts.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.fast:
            super().on_message_complete()
            return
        self.cycle.keep_alive = self.parser.should_keep_alive()
        tenant = core.tenant_of(self.authorization)
        if tenant is None:
            self.reply(401, b'{"error":{"message":"bad key"}}')
            return
        body = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        self.parts = None
        try:
            peeked = core.peek(body)
        except core.msgspec.DecodeError:
            self.reply(400, b'{"error":{"message":"bad body"}}')
            return
        engine = core.pick()
        self.call = core.Call(engine, peeked.model, tenant)
        lines = self.lines
        lines.append(b"x-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (core.request_id(), len(body)))
        data = (b"POST %b HTTP/1.1\r\n%b%b" % (self.url, engine.host_line, b"".join(lines)), body)
        if engine.free:
            self.up = up = engine.free.pop()
            up.start(self, data)
        else:
            task = self.loop.create_task(self.connect(engine, data))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def connect(self, engine: core.Engine, data: tuple[bytes, bytes]) -> None:
        """Opens a connection to the engine and sends the request."""
        try:
            _, up = await self.loop.create_connection(lambda: Upstream(engine), engine.host, engine.port)
        except OSError:
            self.call.end("502")
            self.reply(502, b'{"error":{"message":"upstream"}}')
            return
        if self.transport.is_closing():
            self.call.end("499")
            up.transport.close()
            return
        self.up = up
        up.start(self, data)

    def reply(self, code: int, body: bytes) -> None:
        """Answers without an engine."""
        head = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(b"".join((STATUS_LINE[code], *self.server_headers(), head, body)))
        self.finish()

    def relay_done(self, status: int) -> None:
        """The engine's reply has gone out."""
        self.up = None
        self.call.end("200" if status == 200 else str(status))
        self.finish()

    def finish(self) -> None:
        """The next request may come."""
        cycle = self.cycle
        cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def upstream_failed(self, up: Upstream) -> None:
        """The engine's connection broke."""
        self.up = up.down = None
        self.call.end("502")
        up.transport.close()
        if up.head_sent:
            self.cycle.response_complete = True
            self.transport.close()
        else:
            self.reply(502, b'{"error":{"message":"upstream failed"}}')

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.up is not None:
            self.up.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.up is not None:
            self.up.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        up = self.up
        if up is not None:
            self.up = up.down = None
            up.transport.close()
            self.call.end("499")
        super().connection_lost(exc)


if __name__ == "__main__":
    uvicorn.run(
        api, host="127.0.0.1", port=int(sys.argv[1]), http=Splice, loop="uvloop", access_log=False, log_level="warning",
        lifespan="off", backlog=4096,
    )  # fmt: skip
