"""A simulated front proxy that holds answers back by default, as nginx does: only `X-Accel-Buffering: no` lets them flow.

It knows nothing of what it carries: one request per connection, bytes in, bytes out.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from hlserve_router.server import bind, url_of


@asynccontextmanager
async def buffering_proxy(router_url: str) -> AsyncIterator[str]:
    """Serves `router_url` through such a proxy; yields the proxy's address. Requests must say `connection: close`."""
    parts = urlsplit(router_url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(parts.hostname, parts.port)
        sending = asyncio.create_task(_copy(reader, up_writer))
        try:
            head = await up_reader.readuntil(b"\r\n\r\n")
            writer.write(head)
            if b"x-accel-buffering: no\r\n" in head.lower():
                await _copy(up_reader, writer)
            else:
                writer.write(await up_reader.read())
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            up_writer.close()
            writer.close()

    listener = bind("127.0.0.1", 0)
    server = await asyncio.start_server(serve, sock=listener)
    try:
        yield url_of(listener)
    finally:
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
