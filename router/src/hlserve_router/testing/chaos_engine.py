"""The engines of the chaos run: right answers, wronged as the script says."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from hlserve_router.testing.chaos_script import Fault, Form, answer_parts, fault_of, told
from hlserve_router.testing.engine import EVENT_STREAM, Session
from hlserve_router.testing.scripts import event

_ERROR = {"object": "error", "message": "The engine failed.", "type": "InternalServerError", "code": 500}
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_GARBAGE = (
    b"HELO engine\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 7\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n",
)  # fmt: skip


@dataclass(slots=True)
class ChaosPlay:
    """What every engine of the run does with a request."""

    seed: int
    attempts: Counter[str] = field(default_factory=Counter)
    played: Counter[Fault] = field(default_factory=Counter)
    calm: bool = False
    """True: no faults."""

    async def __call__(self, session: Session) -> None:
        """Plays one try."""
        session.engine.requests.clear()  # the run is long, and nobody asks what an engine was sent
        form, name, pieces, size = told(session.request.path, session.request.body)
        self.attempts[name] += 1
        fault, random = fault_of(self.seed, name, self.attempts[name])
        if self.calm:
            fault = Fault.NONE
        self.played[fault] += 1
        data = [part.data for part in answer_parts(form, name, pieces, size)]
        if not await _before_the_reply(session, fault, random):
            return
        if form is Form.REPLY:
            await _whole(session, data[0], fault, random)
        else:
            await _streamed(session, data, fault, random, named=form is Form.MESSAGES)


async def _before_the_reply(session: Session, fault: Fault, random: Random) -> bool:
    """Faults that come instead of a reply. False: that was all."""
    retry_after = (f"retry-after: {random.choice(('0', '1', 'soon'))}",) if random.random() < 0.5 else ()
    match fault:
        case Fault.SILENT:
            await session.gone.wait()
        case Fault.RESET:
            session.reset()
        case Fault.BUSY:
            await session.reply(json.dumps({**_ERROR, "code": 429}).encode(), 429, retry_after)
        case Fault.UNAVAILABLE:
            await session.reply(b"no", 503, retry_after)
        case Fault.BROKEN:
            await session.reply(json.dumps(_ERROR).encode(), random.choice((500, 502, 507)))
        case Fault.REJECTED:
            await session.reply(json.dumps({**_ERROR, "code": 400}).encode(), 400)
        case Fault.GARBAGE:
            await session.raw(random.choice(_GARBAGE))
            session.close()
        case _:
            return True
    return False


async def _whole(session: Session, body: bytes, fault: Fault, random: Random) -> None:
    """An answer that is no stream."""
    cut = random.randrange(len(body))
    match fault:
        case Fault.NONE | Fault.ERROR_FIRST | Fault.ERROR_LATER:
            await session.reply(body)
        case Fault.SLOW | Fault.DEAF:
            await session.raw(_HEAD + b"content-length: %d\r\n\r\n" % len(body))
            await _dribble(session, body, random)
        case _:
            await session.raw(_HEAD + b"content-length: %d\r\n\r\n" % len(body) + body[:cut])
            await _break(session, fault)


async def _streamed(session: Session, events: list[bytes], fault: Fault, random: Random, *, named: bool) -> None:
    """A stream."""
    error = b"event: error\n" + event({"type": "error", "error": _ERROR}) if named else event({"error": _ERROR})
    await session.head(200, EVENT_STREAM)
    until = random.randrange(len(events))
    match fault:
        case Fault.NONE:
            for piece in events:
                await session.write(piece)
        case Fault.SLOW:
            await _dribble(session, b"".join(events), random)
        case Fault.DEAF:
            for piece in events:
                await session.write(piece)
                await asyncio.sleep(0.05)
        case Fault.ERROR_FIRST:
            await session.write(error)
        case Fault.ERROR_LATER:
            for piece in [*events[:until], error]:
                await session.write(piece)
        case Fault.TRUNCATED:
            last = events[until]
            for piece in [*events[:until], last[: random.randrange(len(last))]]:
                await session.write(piece)
        case _:
            last = events[until]
            for piece in [*events[:until], last[: random.randrange(len(last))]]:
                await session.write(piece)
            await _break(session, fault)
            return
    await session.end()


async def _break(session: Session, fault: Fault) -> None:
    match fault:
        case Fault.SILENT_IN_REPLY:
            await session.gone.wait()
        case Fault.RESET_IN_REPLY:
            session.reset()
        case _:
            session.close()


async def _dribble(session: Session, data: bytes, random: Random) -> None:
    """Pieces that are cut anywhere, also inside an event, a character or a line end."""
    pauses = 0
    while data:
        size = random.randint(1, max(2, len(data) // 6))
        await session.write(data[:size])
        data = data[size:]
        pauses += 1
        await asyncio.sleep(random.random() * 0.02 if pauses < 12 else 0)
