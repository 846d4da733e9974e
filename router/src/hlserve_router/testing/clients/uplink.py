"""A slow way to the router: passes a request's head on and holds its body back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


@asynccontextmanager
async def slow_uplink(url: str) -> AsyncIterator[str]:
    """An address in front of `url` through which no request's body ever arrives; answers come back at once."""
    parts = urlsplit(url)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            back, forth = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                forth.write(await reader.readuntil(b"\r\n\r\n"))
                while data := await back.read(65536):
                    writer.write(data)
                    await writer.drain()
            finally:
                forth.close()
                writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
