"""`/v1/responses`: background requests, and looking stored responses up."""

import asyncio
from time import time

from starlette.types import Receive, Scope, Send

from hlserve_sim import wire
from hlserve_sim.apis.responses import STORE_OFF, ResponsesApi, check_id, not_found
from hlserve_sim.apis.responses_objects import PREFIX, ResponseOrder, response
from hlserve_sim.endpoint import GenerationEndpoint
from hlserve_sim.errors import ApiError, nested
from hlserve_sim.faults import FaultSpec
from hlserve_sim.live import Live
from hlserve_sim.orders import Order
from hlserve_sim.server import Server


class ResponsesEndpoint(GenerationEndpoint):
    """Creates responses."""

    def __init__(self, server: Server, api: ResponsesApi) -> None:
        super().__init__(server, api, PREFIX)
        self._background: set[asyncio.Task[None]] = set()

    async def _watched(
        self, order: Order, live: Live, fault: FaultSpec | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if not (isinstance(order, ResponseOrder) and order.echo.background):
            await super()._watched(order, live, fault, scope, receive, send)
            return
        created = int(time())
        queued = response(order, live, created, "queued", [])
        self._server.store.put(queued, order.history)
        task = asyncio.create_task(self._run(order, live, created))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        await wire.send_json(send, queued)

    async def _run(self, order: Order, live: Live, created: int) -> None:
        await live.changed(0)
        if not live.done and isinstance(order, ResponseOrder):
            self._server.store.put(response(order, live, created, "in_progress", []), order.history)
        await live.completed()
        self._api.finished(order, live, created)


class StoredResponseEndpoint:
    """`GET /v1/responses/{id}` and `POST /v1/responses/{id}/cancel`."""

    def __init__(self, server: Server, *, cancels: bool) -> None:
        self._server = server
        self._cancels = cancels

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await wire.send_json(send, self._find(scope["path_params"]["response_id"]))
        except ApiError as error:
            await wire.send_json(send, nested(error), error.status)

    def _find(self, response_id: str) -> dict[str, object]:
        server = self._server
        if not server.flags.enable_response_store:
            raise ApiError(STORE_OFF, kind="invalid_request_error", param="response_id")
        check_id(response_id)
        found = server.store.cancel(response_id) if self._cancels else server.store.get(response_id)
        if found is None:
            raise not_found(response_id)
        if self._cancels:
            server.abort(response_id, by_prefix=False)
        return found
