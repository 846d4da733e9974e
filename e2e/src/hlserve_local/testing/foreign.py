"""An independent OpenAI-compatible server, as somebody might already run one."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

FOREIGN_REPLY = ("I", " am", " somebody", " else's", " server")


@dataclass(slots=True)
class ForeignServer:
    """A running server and what it was asked."""

    url: str
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)


def foreign_app(server: ForeignServer, model: str) -> FastAPI:
    """Chat completions and the model list, and nothing of SGLang's own."""
    app = FastAPI()

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": model, "object": "model", "created": 0, "owned_by": "somebody"}]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await request.json()
        server.headers.append(dict(request.headers))
        server.bodies.append(body)
        if body["model"] != model:
            return JSONResponse({"error": {"message": "no such model", "code": "model_not_found"}}, status_code=404)
        if body.get("stream"):
            wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
            return StreamingResponse(_events(model, wants_usage), media_type="text/event-stream")
        message = {"role": "assistant", "content": "".join(FOREIGN_REPLY)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse(
            {
                "id": "f-1",
                "object": "chat.completion",
                "created": 0,
                "model": model,
                "choices": [choice],
                "usage": _usage(),
            }
        )

    return app


def _usage() -> dict[str, int]:
    return {"prompt_tokens": 3, "completion_tokens": len(FOREIGN_REPLY), "total_tokens": 3 + len(FOREIGN_REPLY)}


def _events(model: str, wants_usage: bool) -> Iterator[str]:
    base = {"id": "f-1", "object": "chat.completion.chunk", "created": 0, "model": model}
    for word in FOREIGN_REPLY:
        choice: dict[str, Any] = {"index": 0, "delta": {"content": word}, "finish_reason": None}
        yield f"data: {json.dumps({**base, 'choices': [choice]})}\n\n"
    yield f"data: {json.dumps({**base, 'choices': [{'index': 0, 'delta': {}, 'finish_reason': 'stop'}]})}\n\n"
    if wants_usage:
        yield f"data: {json.dumps({**base, 'choices': [], 'usage': _usage()})}\n\n"
    yield "data: [DONE]\n\n"


@asynccontextmanager
async def foreign_server(model: str) -> AsyncIterator[ForeignServer]:
    """Serve `foreign_app` on a free port of the loopback address until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    found = ForeignServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
    config = uvicorn.Config(foreign_app(found, model), log_level="warning", lifespan="off")
    runner = uvicorn.Server(config)
    task = asyncio.create_task(runner.serve(sockets=[listener]))
    try:
        yield found
    finally:
        runner.should_exit = True
        await task
        listener.close()
