"""The clients of the chaos run: they behave as the script says, and judge every byte that they get."""

import asyncio
import json
import socket
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from hlserve_router.answers import PING
from hlserve_router.state import Shape
from hlserve_router.testing.chaos_script import Asked, Conduct, Form

ANSWER_SECONDS: Final = 15.0
"""No request of the run may take longer."""
SLOW_SECONDS: Final = 0.01
STALL_SECONDS: Final = 1.6
WAIT_SECONDS: Final = 0.4
_LEAVES_EARLY: Final = frozenset(
    {Conduct.LEAVES_IN_HEAD, Conduct.LEAVES_IN_BODY, Conduct.LEAVES_AT_ONCE, Conduct.LEAVES_UNANSWERED}
)
_SLOW: Final = frozenset({Conduct.SLOW_READER, Conduct.STALLED})


class Fate(StrEnum):
    """What became of a request, as its client sees it."""

    COMPLETE = "complete"
    MARKED = "marked"
    """A part of the right answer, then an error event or a cut: the client knows that something is missing."""
    ANSWERED = "answered"
    """An error answer."""
    LEFT = "left"
    """The client went away, and saw nothing wrong until then."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One request's end."""

    asked: Asked
    fate: Fate
    status: int = 0
    wrong: str = ""
    """What was wrong about it; empty: nothing."""


class _CutError(Exception):
    """The connection ended before the message did."""


async def play_client(url: str, keys: tuple[str, ...], asked: Asked) -> Seen:
    """Sends the request and judges the answer."""
    parts = urlsplit(url)
    reader, writer = await _connect(parts.hostname or "", parts.port or 0, slow=asked.conduct in _SLOW)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await _Client(asked, reader, writer, keys).run()
    except TimeoutError:
        return Seen(asked, Fate.LEFT, wrong=f"no end within {ANSWER_SECONDS} s")
    finally:
        writer.transport.abort()


async def _connect(host: str, port: int, *, slow: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection; that of a slow reader holds little, so that it is the router that has to wait."""
    client = socket.socket()
    if slow:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    client.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(client, (host, port))
        return await asyncio.open_connection(sock=client, limit=4096 if slow else 2**16)
    except OSError:
        client.close()
        raise


class _Client:
    def __init__(
        self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keys: tuple[str, ...]
    ) -> None:
        self.asked, self.reader, self.writer = asked, reader, writer
        self.key = "hls_stranger_0123456789abcdef" if asked.conduct is Conduct.STRANGER else keys[asked.client]
        self.got = b""
        self.status = 0

    async def run(self) -> Seen:
        """The request's life."""
        try:
            if not await self._send():
                return Seen(self.asked, Fate.LEFT)
            proper = await self._receive()
        except (OSError, _CutError):
            proper = False
        if self.asked.conduct is Conduct.LEAVES_IN_REPLY and proper is None:
            return Seen(
                self.asked, Fate.LEFT, self.status, judge_part(self.asked, self.got) if self.status == 200 else ""
            )
        return judge(self.asked, self.status, self.got, proper=bool(proper))

    async def _send(self) -> bool:
        """False: the client left."""
        asked, body = self.asked, self.asked.body
        framing = "transfer-encoding: chunked" if asked.chunked else f"content-length: {len(body)}"
        head = (
            f"POST {asked.path} HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {self.key}\r\nx-request-id: {asked.name}\r\n{framing}\r\n\r\n"
        ).encode()
        if asked.chunked:
            half = len(body) // 2
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:])) + b"0\r\n\r\n"
        part = asked.leaves_after
        match asked.conduct:
            case Conduct.LEAVES_IN_HEAD:
                self.writer.write(head[: int(part * len(head))])
            case Conduct.LEAVES_IN_BODY:
                self.writer.write(head + body[: int(part * len(body))])
            case Conduct.SLOW_SENDER:
                whole, pieces = head + body, asked.sent_in
                size = -(-len(whole) // pieces)
                for start in range(0, len(whole), size):
                    self.writer.write(whole[start : start + size])
                    await asyncio.sleep(SLOW_SECONDS)
                return True
            case _:
                self.writer.write(head + body)
        await self.writer.drain()
        if asked.conduct in _LEAVES_EARLY:
            await asyncio.sleep(part * (WAIT_SECONDS if asked.conduct is Conduct.LEAVES_UNANSWERED else SLOW_SECONDS))
            return False
        return True

    async def _receive(self) -> bool | None:
        """Reads the answer into `got`. True: the message ended properly; None: the client left before. Raises OSError, _CutError."""
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise _CutError from None
        self.status = int(head.split(" ")[1])
        leaves_at = None
        if self.asked.conduct is Conduct.LEAVES_IN_REPLY:
            leaves_at = int(self.asked.leaves_after * len(self.asked.answer))
        if self.asked.conduct is Conduct.STALLED:
            await asyncio.sleep(STALL_SECONDS)
        if "\r\ntransfer-encoding: chunked" in head:
            while size := int(await self._line(), 16):
                if not await self._take(size, leaves_at):
                    return None
                await self._line()
            await self._line()
            return True
        length = next(line for line in head.split("\r\n") if line.startswith("content-length:"))
        return True if await self._take(int(length.partition(":")[2]), leaves_at) else None

    async def _line(self) -> bytes:
        line = await self.reader.readline()
        if not line.endswith(b"\n"):
            raise _CutError
        return line.strip()

    async def _take(self, size: int, leaves_at: int | None) -> bool:
        while size:
            data = await self.reader.read(min(size, 2**16))
            if not data:
                raise _CutError
            self.got += data
            size -= len(data)
            if leaves_at is not None and len(self.got) >= leaves_at:
                return False
            if self.asked.conduct is Conduct.SLOW_READER:
                await asyncio.sleep(SLOW_SECONDS / 10)
        return True


def judge(asked: Asked, status: int, got: bytes, *, proper: bool) -> Seen:
    """What the client must think of an answer that ended (`proper`: as a message should)."""
    if status == 0:
        return Seen(asked, Fate.MARKED, wrong="the connection ended without an answer")
    if status != 200:
        return Seen(
            asked,
            Fate.ANSWERED,
            status,
            "" if proper and is_error(got) else f"{status} is no proper answer: {got[:200]!r}",
        )
    plain = without_pings(asked, got)
    if asked.form is Form.REPLY:
        if plain == asked.answer and proper:
            return Seen(asked, Fate.COMPLETE, status)
        wrong = judge_part(asked, got) or ("a wrong answer that ends properly" if proper else "")
        return Seen(asked, Fate.MARKED, status, wrong)
    if plain == asked.answer:
        return Seen(asked, Fate.COMPLETE if proper else Fate.MARKED, status)
    body, error = without_error_event(plain)
    wrong = judge_part(asked, body)
    if proper and error is None:
        wrong = wrong or f"a stream that is not complete, ends properly and tells of no error: …{plain[-200:]!r}"
    return Seen(asked, Fate.MARKED, status, wrong)


def judge_part(asked: Asked, got: bytes) -> str:
    """Whether what came so far is the beginning of the right answer."""
    plain = without_pings(asked, got)
    answer = asked.answer
    if answer.startswith(plain):
        return ""
    body, _ = without_error_event(plain)
    if answer.startswith(body):
        return ""
    same = next((at for at, (one, other) in enumerate(zip(body, answer, strict=False)) if one != other), len(answer))
    start = max(0, same - 20)
    return f"wrong bytes from {same} on: {body[start : same + 150]!r} instead of {answer[start : same + 80]!r}"


def without_pings(asked: Asked, got: bytes) -> bytes:
    """What came without the router's signs of life. Replies hold no such bytes themselves."""
    if asked.form is Form.REPLY:
        return got
    return got.replace(PING[Shape.ANTHROPIC if asked.form is Form.MESSAGES else Shape.OPENAI], b"")


def without_error_event(data: bytes) -> tuple[bytes, bytes | None]:
    """A stream without the error events at its end, and the data of the first; None: there is none."""
    found = None
    while (cut := _last_error(data)) is not None:
        data, found = cut
    return data, found


def _last_error(data: bytes) -> tuple[bytes, bytes] | None:
    last = data[:-2].rfind(b"\n\n") + 2 if b"\n\n" in data[:-2] else 0
    event = data[last:]
    payload = event.removeprefix(b"event: error\n").removeprefix(b"data: ")
    if event.endswith(b"\n\n") and is_error(payload):
        return data[:last], payload
    return None


def is_error(body: bytes) -> bool:
    """A JSON object that tells of an error, in any shape."""
    try:
        document = json.loads(body)
    except ValueError:
        return body == b"no"  # as an engine said it
    return isinstance(document, dict) and ("error" in document or document.get("object") == "error")
