"""The production face: client and engine sockets spliced inside uvicorn's HTTP protocol. No task and no queue per request.

`SpliceProtocol` is what uvicorn sees of a connection; all that a connection does is in its `ClientConnection`. What the
router answers from its own state becomes an ASGI request as usual; everything else is handed to a `Relay`, whose bytes go
straight to the client's socket.
"""

import asyncio
from typing import Any, ClassVar, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from hlserve_router.intake import Intake
from hlserve_router.splice_connection import MAX_AHEAD, READ_BYTES, WRITE_HIGH_BYTES, ClientConnection, Deadlines
from hlserve_router.splice_request import SplicedRequest

__all__ = ["MAX_AHEAD", "READ_BYTES", "WRITE_HIGH_BYTES", "SpliceFace", "SpliceProtocol"]

LOOK_SECONDS: Final = 0.5
"""How often all connections are looked at, or a tenth of the shortest time that they are given."""


class SpliceFace:
    """What all spliced connections of a process share. `protocol` is for `uvicorn.Config(http=…)`."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.connections: set[ClientConnection] = set()
        self.protocol: type[SpliceProtocol] = type("BoundSpliceProtocol", (SpliceProtocol,), {"face": self})
        rules = intake.rules
        shortest = min(
            rules.header_timeout_seconds, rules.timeout_seconds, rules.keep_alive_seconds, rules.linger_seconds
        )
        self._look_seconds = min(LOOK_SECONDS, shortest / 10)
        self._look_at = 0.0
        self.deadlines = Deadlines(intake, intake.proxy.now())

    def tick(self, now: float) -> None:
        """Ends what took too long: idle connections, heads and bodies that do not come, closes that are not taken."""
        self.deadlines.set(self.intake, now)
        if now < self._look_at:
            return
        self._look_at = now + self._look_seconds
        for connection in [connection for connection in self.connections if connection.deadline <= now]:
            connection.late()


class SpliceProtocol(HttpToolsProtocol):
    """One client connection as uvicorn sees it: its events go on, and FastAPI is run for it."""

    face: ClassVar[SpliceFace]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.parser = None  # type: ignore[assignment]  # the connection has its own
        face = self.face
        self.connection = ClientConnection(face.intake, face.deadlines, self, server_state)
        # Event loops ask for this once: a method of ours would be one more call for each read.
        self.data_received = self.connection.data_received  # type: ignore[method-assign]

    # asyncio.Protocol -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.connection.opened(transport, self.flow)
        self.face.connections.add(self.connection)

    def eof_received(self) -> None:
        """A client that ends its half has left: nobody can tell it from one that closed, whose place must be freed."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.face.connections.discard(self.connection)
        self.connection.lost()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.connection.paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.connection.resumed()

    def shutdown(self) -> None:
        """The server ends."""
        self.connection.shutdown()

    # for the connection -----------------------------------------------------------------------------------------------

    def shut_down_own(self) -> None:
        """What FastAPI answers now is the connection's last answer."""
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def serve_own(self, request: SplicedRequest, path: str) -> None:
        """Hands a request to FastAPI, as uvicorn does."""
        url = httptools.parse_url(request.target)
        scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1" if request.http11 else "1.0",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": self.root_path,
            "headers": request.headers,
            "state": self.app_state.copy(),
            "method": request.method,
            "path": path,
            "raw_path": url.path,
            "query_string": url.query or b"",
        }
        self.cycle = cycle = RequestResponseCycle(
            scope=cast("Any", scope),
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=request.keep_alive,
            on_response=self.on_response_complete,
        )
        request.parts = ()  # none of these paths takes a body
        cycle.more_body = False
        cycle.message_event.set()
        self._start_asgi_task(cycle, self.app)

    def on_response_complete(self) -> None:
        """FastAPI has answered."""
        self.connection.own_answered(keep_alive=self.cycle.keep_alive)
