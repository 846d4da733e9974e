"""The store of one pod whose limits live in memory: the supervisor keeps it, and its workers ask over socket pairs."""

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Final

import msgspec

from hlserve_router.limit_book import Ask, Document, settle_ask
from hlserve_router.limit_store import FORGET_BUDGET_SECONDS, FORGET_SECONDS, Reply, StoreError

VARIABLE: Final = "HLSERVE_ROUTER_LIMITS_SOCKET"
"""Names the worker's end of the pair in its environment."""
_LENGTH_BYTES: Final = 4
_SWEEP_SECONDS: Final = 60.0
Message = tuple[int, str, list[Ask]]
"""Number, holder, asks; the answer has the same number."""


@dataclass(slots=True, eq=False)
class PodBook:
    """The supervisor's side: all documents, and who is there."""

    wall: Callable[[], float] = time.time
    documents: dict[str, Document] = field(default_factory=dict)
    members: set[str] = field(default_factory=set)
    _epoch: str = field(default_factory=lambda: token_hex(8))
    _forget_at: dict[str, float] = field(default_factory=dict)
    _swept: float = 0.0

    def exchange(self, holder: str, asks: list[Ask]) -> Reply:
        """See `LimitStore`."""
        now = self.wall()
        self.members.add(holder)
        answers = []
        for ask in asks:
            answers.append(settle_ask(self.documents.setdefault(ask.client, {}), ask, now))
            keep = FORGET_BUDGET_SECONDS if ask.caps.budget is not None else FORGET_SECONDS
            self._forget_at[ask.client] = now + keep
        if now - self._swept > _SWEEP_SECONDS:
            self._swept = now
            for name in [name for name, at in self._forget_at.items() if at < now]:
                del self.documents[name], self._forget_at[name]
        return Reply(answers, len(self.members), self._epoch)

    def gone(self, holder: str) -> None:
        """A worker ended: what it held is free."""
        self.members.discard(holder)
        for document in self.documents.values():
            document.get("h", {}).pop(holder, None)

    async def serve(self, end: socket.socket) -> None:
        """Answers one worker until it ends."""
        decoder = msgspec.json.Decoder(Message)
        reader, writer = await asyncio.open_connection(sock=end)
        holder = ""
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
                number, holder, asks = decoder.decode(await reader.readexactly(length))
                _write(writer, msgspec.json.encode((number, self.exchange(holder, asks))))
        except (EOFError, OSError, msgspec.MsgspecError):
            return  # the worker is gone, or not to be understood: then its store is away, and it says so
        finally:
            self.gone(holder)
            writer.close()


@dataclass(eq=False)
class PodStore:
    """A worker's side."""

    end: socket.socket
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    _number: int = 0
    _length: int | None = None
    """Of the answer that was being read when its reader lost patience."""

    async def exchange(self, holder: str, asks: list[Ask]) -> Reply:
        """See `LimitStore`."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(sock=self.end)
            reader, writer = self._streams
            self._number += 1
            _write(writer, msgspec.json.encode((self._number, holder, asks)))
            while True:  # an answer to a message that was given up may come first
                number, reply = msgspec.json.decode(await self._read(reader), type=tuple[int, Reply])
                if number == self._number:
                    return reply
        except (
            EOFError,
            OSError,
            RuntimeError,
            msgspec.MsgspecError,
        ) as error:  # uvloop: RuntimeError for a closed pair
            raise StoreError("the supervisor does not answer") from error

    async def close(self) -> None:
        """See `LimitStore`."""
        if self._streams is not None:
            self._streams[1].close()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        if self._length is None:
            self._length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
        data = await reader.readexactly(self._length)
        self._length = None
        return data


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(len(data).to_bytes(_LENGTH_BYTES) + data)
