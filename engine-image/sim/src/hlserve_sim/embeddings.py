"""`/v1/embeddings`: each input is a prefill of the engine; the vector follows from the seed and the input."""

import asyncio
import base64
import struct
from collections.abc import Sequence
from random import Random

from starlette.types import Receive, Scope, Send

from hlserve_sim import fields, wire
from hlserve_sim.errors import ApiError, flat, refusal
from hlserve_sim.fields import Fields
from hlserve_sim.live import Live
from hlserve_sim.orders import Order, request_id
from hlserve_sim.server import Server

DEFAULT_DIMENSIONS = 64
MAX_DIMENSIONS = 4096
MAX_INPUTS = 2048


class EmbeddingsEndpoint:
    """The ASGI application of `/v1/embeddings`."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._server
        server.answer_opened()
        lives: list[Live] = []
        watcher: asyncio.Task[None] | None = None
        try:
            body = fields.decode(await wire.read_body(receive))
            orders = self._orders(body)
            for number, order in enumerate(orders):
                lives.append(server.admit(order if number == 0 else order.with_overrides(None, order.priority)))
            watcher = asyncio.create_task(self._abort_when_gone(lives, receive))
            for live in lives:
                await live.completed()
                if live.client_gone:
                    return
                if live.refused is not None:
                    raise refusal(live.refused)
            await wire.send_json(send, self._answer(body, orders, lives))
        except ApiError as error:
            await wire.send_json(send, flat(error), error.status, error.headers)
        except wire.ClientGoneError:
            return
        finally:
            if watcher is not None:
                watcher.cancel()
            for live in lives:
                if not live.done:
                    server.driver.abort(live.rid)
            server.answer_closed()

    async def _abort_when_gone(self, lives: Sequence[Live], receive: Receive) -> None:
        await wire.client_gone(receive)
        for live in lives:
            live.lose_client()

    def _orders(self, body: Fields) -> list[Order]:
        reader, rid = self._server.reader, request_id(body, "rid")
        value = body.raw.get("input")
        many = value if isinstance(value, list) and value and isinstance(value[0], (str, list)) else [value]
        if len(many) > MAX_INPUTS:
            raise ApiError(f"input: at most {MAX_INPUTS} inputs a request, not {len(many)}", param="input")
        prompts = [reader.any_prompt(item, "input") for item in many]
        return [
            Order(
                prompt=prompt,
                digest=digest,
                model=body.need_text("model"),
                stream=False,
                rid=rid,
                priority=body.integer("priority"),
                max_tokens=1,
                ignore_eos=True,
            )
            for prompt, digest in prompts
        ]

    def _answer(self, body: Fields, orders: Sequence[Order], lives: Sequence[Live]) -> dict[str, object]:
        dimensions = body.integer("dimensions")
        if dimensions is not None and not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ApiError(f"dimensions: must be from 1 to {MAX_DIMENSIONS}, not {dimensions}", param="dimensions")
        packed = body.text("encoding_format") == "base64"
        vectors = [_vector(order.digest, dimensions or DEFAULT_DIMENSIONS) for order in orders]
        prompt_tokens = sum(live.prompt_tokens for live in lives)
        return {
            "object": "list",
            "model": body.need_text("model"),
            "data": [
                {"object": "embedding", "index": index, "embedding": _pack(vector) if packed else vector}
                for index, vector in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
        }


def _vector(digest: int, dimensions: int) -> list[float]:
    """A unit vector."""
    rng = Random(digest)
    raw = [rng.gauss(0.0, 1.0) for _ in range(dimensions)]
    length = sum(value * value for value in raw) ** 0.5 or 1.0
    return [value / length for value in raw]


def _pack(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
