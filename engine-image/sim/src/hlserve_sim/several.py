"""Answers to a request for several choices: streamed with the choices interleaved, or whole."""

import asyncio
from collections.abc import Coroutine, Sequence
from time import time

from starlette.types import Receive, Scope, Send

from hlserve_sim import wire
from hlserve_sim.apis.choices import ChoicesApi, ChoiceStream
from hlserve_sim.breakage import CHUNK_FAULTS, CutError, break_connection
from hlserve_sim.bundle import Bundle
from hlserve_sim.errors import ApiError, refusal
from hlserve_sim.faults import FaultKind, FaultSpec
from hlserve_sim.live import Live
from hlserve_sim.orders import Order
from hlserve_sim.server import Server


async def serve(
    server: Server,
    api: ChoicesApi,
    order: Order,
    bundle: Bundle,
    fault: FaultSpec | None,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Answer while watching the client: if it goes away, the engine drops all choices. Raises ApiError and CutError."""

    def abort() -> None:
        if not bundle.done and server.faults.strike("", frozenset({FaultKind.IGNORE_ABORT})) is None:
            bundle.abort()

    async def abort_when_gone() -> None:
        await wire.client_gone(receive)
        abort()
        bundle.lose_client()

    watcher = asyncio.create_task(abort_when_gone())
    try:
        if order.stream:
            await SeveralStreams(api, order, bundle, fault, scope, send).run()
        else:
            await _whole(api, order, bundle, fault, scope, send)
    finally:
        watcher.cancel()
        if not bundle.client_gone:
            abort()
        server.release(bundle)


async def _whole(
    api: ChoicesApi, order: Order, bundle: Bundle, fault: FaultSpec | None, scope: Scope, send: Send
) -> None:
    await bundle.start()
    first = bundle.choices[0]
    if fault is not None and fault.kind in CHUNK_FAULTS:
        await first.changed(max(0, fault.after_chunks - 1))
        await break_connection(fault, first, scope)
    await _together([_completed(live) for live in bundle.choices])
    if not bundle.client_gone:
        await wire.send_json(send, api.whole_of(order, bundle.choices, int(time())))


async def _completed(live: Live) -> None:
    await live.completed()
    if live.refused is not None:
        raise refusal(live.refused)


async def _together(works: Sequence[Coroutine[None, None, None]]) -> None:
    """Run all to their end; the first error ends the others and is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class SeveralStreams:
    """One stream of several choices. Each choice has a task of its own, so that its events come as its tokens do."""

    def __init__(
        self, api: ChoicesApi, order: Order, bundle: Bundle, fault: FaultSpec | None, scope: Scope, send: Send
    ) -> None:
        self._api, self._order, self._bundle, self._fault = api, order, bundle, fault
        self._scope, self._send = scope, send
        self._created = int(time())
        self._breaking = fault if fault is not None and fault.kind in CHUNK_FAULTS else None
        self._late_seconds = (
            fault.delay_ms / 1000 if fault is not None and fault.kind is FaultKind.SLOW_FIRST_BYTE else 0.0
        )
        self._sent = 0
        """Tokens written, of all choices."""
        self._broken = False
        self._status_sent = False
        self._begun = asyncio.Lock()
        self._late = self._late_seconds > 0

    async def run(self) -> None:
        """Write the stream to its end, or until the client is gone. Raises CutError where a fault cuts it."""
        if self._late or not self._api.holds_status:
            await self._send_status()
        try:
            await self._bundle.start()
            await _together(
                [
                    self._choice(live, self._api.choice_stream(self._order, live, self._created, index))
                    for index, live in enumerate(self._bundle.choices)
                ]
            )
            end = self._api.trailer(self._order, self._bundle.choices, self._created)
        except ApiError as error:
            if not self._status_sent:
                raise
            end = self._api.error_stream(error, self._order.model)
        if not self._bundle.client_gone:
            await self._send_status()
            await wire.stream_bytes(self._send, end)
            await wire.close_stream(self._send)

    async def _send_status(self) -> None:
        if not self._status_sent:
            self._status_sent = True
            await wire.open_stream(self._send)

    async def _choice(self, live: Live, words: ChoiceStream) -> None:
        await live.changed(0)
        if live.client_gone:
            return
        if live.refused is not None:
            raise refusal(live.refused)
        async with self._begun:
            await self._send_status()
            if self._late:
                await asyncio.sleep(self._late_seconds)
                self._late = False
        await self._write(words.opening())
        sent = 0
        while not live.client_gone and not self._broken:
            made = live.made
            if self._breaking is not None and self._sent + made - sent >= self._breaking.after_chunks:
                self._broken = True
                await self._write(words.tokens(sent, sent + self._breaking.after_chunks - self._sent))
                await self._break(self._breaking, live)
            self._sent += made - sent
            await self._write(words.tokens(sent, made))
            sent = made
            if live.done and live.made == sent:
                await self._write(words.ending())
                return
            await live.changed(sent)

    async def _break(self, fault: FaultSpec, live: Live) -> None:
        if fault.kind is FaultKind.TRUNCATE:
            await wire.close_stream(self._send)
            raise CutError
        await break_connection(fault, live, self._scope)

    async def _write(self, data: bytes) -> None:
        if data:
            await wire.stream_bytes(self._send, data)
