"""Serves one generation request, from its body to the last byte of its answer."""

import asyncio
from time import time

from starlette.types import Receive, Scope, Send

from hlserve_sim import errors, fields, several, wire
from hlserve_sim.apis.base import Api
from hlserve_sim.apis.choices import ChoicesApi
from hlserve_sim.breakage import CHUNK_FAULTS, CutError, break_connection, reset
from hlserve_sim.errors import ApiError, refusal
from hlserve_sim.faults import GENERATION_FAULTS, FaultKind, FaultSpec
from hlserve_sim.live import Live
from hlserve_sim.orders import MAX_RID_CHARACTERS, Order
from hlserve_sim.server import Server
from hlserve_sim.streaming import Streaming

RID_HEADER = b"x-override-rid"
PRIORITY_HEADER = b"x-override-priority"


class GenerationEndpoint:
    """The ASGI application of one generation route."""

    def __init__(self, server: Server, api: Api, id_prefix: str = "") -> None:
        self._server = server
        self._api = api
        self._id_prefix = id_prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._server
        server.answer_opened()
        try:
            await self._serve(scope, receive, send)
        except ApiError as error:
            await wire.send_json(send, self._api.error(error), error.status, error.headers)
        except (wire.ClientGoneError, CutError):
            return
        finally:
            server.answer_closed()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        media_type = (wire.header(scope, b"content-type") or "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise ApiError("Unsupported Media Type: Only 'application/json' is allowed", kind="Bad Request")
        body = await wire.read_body(receive)
        fault = self._server.faults.strike(scope["path"], GENERATION_FAULTS)
        if fault is not None:
            await self._before(fault, scope, send)
        order = self._override(scope, self._api.read(fields.decode(body), self._server.reader))
        if fault is not None and fault.kind is FaultKind.ERROR_FIRST:
            await self._error_first(order, fault, send)
            return
        try:
            if order.several and isinstance(self._api, ChoicesApi):
                bundle = self._server.bundle(order, self._id_prefix)
                await several.serve(self._server, self._api, order, bundle, fault, scope, receive, send)
                return
            live = self._server.admit(order, self._id_prefix)
        except errors.TooLongError as error:
            if not order.stream:
                raise
            await wire.open_stream(send)
            await wire.stream_bytes(send, self._api.error_stream(error, order.model))
            await wire.close_stream(send)
            return
        await self._watched(order, live, fault, scope, receive, send)

    def _override(self, scope: Scope, order: Order) -> Order:
        """The order with what the headers say, where headers count."""
        if not (self._api.header_overrides and self._server.flags.header_overrides):
            return order
        rid, priority = wire.header(scope, RID_HEADER), wire.header(scope, PRIORITY_HEADER)
        if rid is not None and not 0 < len(rid) <= MAX_RID_CHARACTERS:
            raise ApiError(f"invalid x-override-rid header: must have 1 to {MAX_RID_CHARACTERS} characters", kind="400")
        if priority is None:
            return order if rid is None else order.with_overrides(rid=rid, priority=order.priority)
        try:
            value = int(priority)
        except ValueError as error:
            raise ApiError(f"invalid x-override-priority header {priority!r}: {error}", kind="400") from error
        return order.with_overrides(rid=rid or order.rid, priority=value)

    async def _before(self, fault: FaultSpec, scope: Scope, send: Send) -> None:
        """What a fault does before the engine sees the request."""
        if fault.kind is FaultKind.DELAY:
            await asyncio.sleep(fault.delay_ms / 1000)
        elif fault.kind is FaultKind.STATUS:
            headers = {} if fault.retry_after_seconds is None else {"retry-after": str(fault.retry_after_seconds)}
            raise ApiError(fault.message, fault.status, "InternalServerError", headers=headers)
        elif fault.kind is FaultKind.RESET and fault.after_chunks == 0:
            reset(scope)
            raise CutError

    async def _error_first(self, order: Order, fault: FaultSpec, send: Send) -> None:
        await wire.open_stream(send)
        await asyncio.sleep(fault.delay_ms / 1000)
        error = ApiError(fault.message, fault.status)
        await wire.stream_bytes(send, self._api.error_stream(error, order.model))
        await wire.close_stream(send)

    async def _watched(
        self, order: Order, live: Live, fault: FaultSpec | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer while watching the client: if it goes away, the engine drops the request."""
        watcher = asyncio.create_task(self._abort_when_gone(live, receive))
        try:
            if order.stream:
                await Streaming(self._api, order, live, fault, scope, send).run()
            else:
                await self._whole(order, live, fault, scope, send)
        finally:
            watcher.cancel()
            if not live.done and not live.client_gone:
                self._abort(live)

    async def _abort_when_gone(self, live: Live, receive: Receive) -> None:
        await wire.client_gone(receive)
        if not live.done:
            self._abort(live)
        live.lose_client()

    def _abort(self, live: Live) -> None:
        if self._server.faults.strike("", frozenset({FaultKind.IGNORE_ABORT})) is None:
            self._server.driver.abort(live.rid)

    async def _whole(self, order: Order, live: Live, fault: FaultSpec | None, scope: Scope, send: Send) -> None:
        if fault is not None and fault.kind in CHUNK_FAULTS:
            await live.changed(max(0, fault.after_chunks - 1))
            await break_connection(fault, live, scope)
        await live.completed()
        if live.client_gone:
            return
        if live.refused is not None:
            raise refusal(live.refused)
        created = int(time())
        self._api.finished(order, live, created)
        await wire.send_json(send, self._api.whole(order, live, created))
