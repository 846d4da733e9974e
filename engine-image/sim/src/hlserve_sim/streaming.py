"""One streamed answer: waits for tokens, writes their events, and breaks where a fault says so."""

import asyncio
from time import time

from starlette.types import Scope, Send

from hlserve_sim import wire
from hlserve_sim.apis.base import Api, Stream
from hlserve_sim.breakage import CHUNK_FAULTS, break_connection
from hlserve_sim.errors import refusal
from hlserve_sim.faults import FaultKind, FaultSpec
from hlserve_sim.live import Live
from hlserve_sim.orders import Order


class Streaming:
    """The stream of one request."""

    def __init__(self, api: Api, order: Order, live: Live, fault: FaultSpec | None, scope: Scope, send: Send) -> None:
        self._api, self._order, self._live, self._fault = api, order, live, fault
        self._scope, self._send = scope, send
        self._created = int(time())
        self._breaking = fault if fault is not None and fault.kind in CHUNK_FAULTS else None
        self._words: Stream = api.stream(order, live, self._created)

    async def run(self) -> None:
        """Write the stream to its end, or until the client is gone. Raises CutError where a fault cuts it."""
        await self._open()
        if self._live.client_gone:
            return
        if self._live.refused is not None:
            await self._write(self._words.failed(refusal(self._live.refused)))
        elif not await self._tokens():
            return
        else:
            await self._write(self._words.closing())
            self._api.finished(self._order, self._live, self._created)
        await wire.close_stream(self._send)

    async def _open(self) -> None:
        """Send the status and what comes before the first token."""
        live, fault = self._live, self._fault
        late_seconds = fault.delay_ms / 1000 if fault is not None and fault.kind is FaultKind.SLOW_FIRST_BYTE else None
        if self._api.holds_status and late_seconds is None:
            await live.changed(0)
            if live.client_gone:
                return
        await wire.open_stream(self._send)
        if late_seconds is None:
            await self._write(self._words.opening())
            await live.changed(0)
            return
        await live.changed(0)
        await asyncio.sleep(late_seconds)
        await self._write(self._words.opening())

    async def _tokens(self) -> bool:
        """Write all tokens. False: the client is gone or a fault has ended the stream."""
        live, sent = self._live, 0
        while not live.client_gone:
            made = live.made
            if self._breaking is not None and made >= self._breaking.after_chunks:
                await self._write(self._words.tokens(sent, self._breaking.after_chunks))
                await self._break(self._breaking)
                return False
            await self._write(self._words.tokens(sent, made))
            sent = made
            if live.done and live.made == sent:
                return True
            await live.changed(sent)
        return False

    async def _break(self, fault: FaultSpec) -> None:
        if fault.kind is FaultKind.TRUNCATE:
            await wire.close_stream(self._send)
        else:
            await break_connection(fault, self._live, self._scope)

    async def _write(self, data: bytes) -> None:
        if data:
            await wire.stream_bytes(self._send, data)
