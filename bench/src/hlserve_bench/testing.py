"""A server with latencies that a test sets: it streams chat completions as an OpenAI-compatible engine does, and nothing else."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self


@dataclass(slots=True)
class ScriptedServer:
    """An async context manager. `refusals`: the first so many requests get a 503; `stall_after`: streams stop there for good."""

    ttft_seconds: float = 0.0
    itl_seconds: float = 0.0
    refusals: int = 0
    stall_after: int | None = None
    error_after: int | None = None
    """Streams end in an error event after so many tokens."""
    headers: Mapping[str, str] = field(default_factory=dict)
    requests: list[dict[str, object]] = field(default_factory=list)
    """Bodies as they came, with the header `x-hlserve-session` under `session`."""
    _server: asyncio.Server | None = None
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def base_url(self) -> str:
        """With the `/v1`."""
        if self._server is None:
            raise RuntimeError("the server is not started")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 24)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        # Handlers of ours, not of start_server: those would report their own cancellation as an error.
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await _head(reader):
                body = json.loads(await reader.readexactly(int(head["content-length"])))
                self.requests.append({**body, "session": head.get("x-hlserve-session")})
                await self._answer(body, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, body: dict[str, object], writer: asyncio.StreamWriter) -> None:
        if len(self.requests) <= self.refusals:
            error = json.dumps({"error": {"message": "full", "code": "queue_full", "type": "server_error"}}).encode()
            writer.write(_response_head("503 Busy", {"retry-after": "1", "content-length": str(len(error))}) + error)
            await writer.drain()
            return
        shown = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **self.headers}
        writer.write(_response_head("200 OK", shown))
        tokens = int(str(body["max_tokens"]))
        loop = asyncio.get_running_loop()
        due = loop.time() + self.ttft_seconds
        for index in range(tokens):
            if index == self.stall_after:
                await asyncio.get_running_loop().create_future()
            if index == self.error_after:
                await _event(writer, {"error": {"message": "the engine is gone", "code": "engine_reset"}})
                await _end(writer)
                return
            # Absolute deadlines, so that a late wake-up does not add up over a reply.
            await asyncio.sleep(max(0.0, due + index * self.itl_seconds - loop.time()))
            finish = "length" if index == tokens - 1 else None
            await _event(writer, _chunk([{"index": 0, "delta": {"content": " w"}, "finish_reason": finish}]))
        words = len(str(body["messages"]).split())
        usage = {"prompt_tokens": words, "completion_tokens": tokens, "total_tokens": words + tokens,
                 "prompt_tokens_details": {"cached_tokens": words // 2}}  # fmt: skip
        await _event(writer, {**_chunk([]), "usage": usage})
        await _end(writer)


def _chunk(choices: list[dict[str, object]]) -> dict[str, object]:
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": choices}


async def _head(reader: asyncio.StreamReader) -> dict[str, str]:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return {}
    lines = raw.decode().split("\r\n")[1:-2]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _response_head(status: str, headers: Mapping[str, str]) -> bytes:
    return "\r\n".join(
        [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    ).encode()


async def _event(writer: asyncio.StreamWriter, event: Mapping[str, object]) -> None:
    await _write(writer, f"data: {json.dumps(event)}\n\n".encode())


async def _end(writer: asyncio.StreamWriter) -> None:
    await _write(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()
