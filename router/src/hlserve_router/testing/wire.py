"""A client that writes its own bytes, for what a well-kept client would never send or do."""

import asyncio
from collections.abc import AsyncIterator
from typing import Self
from urllib.parse import urlsplit

from hlserve_router.testing.documents import AGENT_KEY


def request_head(target: str = "/v1/chat/completions", *lines: str, key: str | None = AGENT_KEY) -> bytes:
    """A POST's head with these header lines more."""
    first = [f"POST {target} HTTP/1.1", "host: router", "content-type: application/json"]
    keyed = [] if key is None else [f"authorization: Bearer {key}"]
    return "\r\n".join([*first, *keyed, *lines]).encode() + b"\r\n\r\n"


class Wire:
    """One TCP connection to a router."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, url: str) -> Self:
        """Connects."""
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    async def send(self, *pieces: bytes) -> None:
        """Writes each piece, waiting for the peer where it is slow."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, list[str]]]:
        """Reads an answer's head: status, and all values of each header."""
        async with asyncio.timeout(5):
            text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.split("\r\n")[:-2]
        headers: dict[str, list[str]] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers.setdefault(name.lower(), []).append(value.strip())
        return int(first.split(" ")[1]), headers

    async def answer(self) -> tuple[int, dict[str, list[str]], bytes]:
        """Reads a whole answer that has a Content-Length."""
        status, headers = await self.head()
        async with asyncio.timeout(5):
            return status, headers, await self.reader.readexactly(int(headers["content-length"][0]))

    async def message(self) -> tuple[int, dict[str, list[str]], bytes]:
        """Reads a whole answer, whichever way it says that it ends."""
        status, headers = await self.head()
        async with asyncio.timeout(20):
            if headers.get("transfer-encoding") == ["chunked"]:
                body = b"".join([piece async for piece in self._chunks()])
            elif "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"][0]))
            else:
                body = await self.reader.read()
        return status, headers, body

    async def _chunks(self) -> AsyncIterator[bytes]:
        size = -1
        while size:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            yield (await self.reader.readexactly(size + 2))[:-2]

    async def rest(self) -> bytes:
        """Reads until the peer ends the connection."""
        async with asyncio.timeout(5):
            return await self.reader.read()

    def hang_up(self) -> None:
        """Drops the connection at once."""
        self.writer.transport.abort()
