"""The chaos run's script: from a seed and a request's name follows what is asked, what must be answered, and what the engine does wrong."""

import json
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final, TypeVar

from hlserve_router.testing.scripts import DONE, STOP, delta, event, usage_event

ALPHABET: Final = 'abcdefghijklmnopqrstuvwxyz äöü€𝄞\\"\n'


class Form(StrEnum):
    """What is asked for."""

    STREAM = "stream"
    REPLY = "reply"
    MESSAGES = "messages"
    """A stream in Anthropic's shape."""


class Fault(StrEnum):
    """What an engine does to one try."""

    NONE = "none"
    SLOW = "slow"
    """Answers well, in pieces cut anywhere, with pauses."""
    SILENT = "silent"
    SILENT_IN_REPLY = "silent in the reply"
    RESET = "reset"
    RESET_IN_REPLY = "reset in the reply"
    CUT = "cut"
    """Ends the connection in the reply without ending the message."""
    TRUNCATED = "truncated"
    """Ends the message properly, in the middle of the stream."""
    ERROR_FIRST = "error first"
    ERROR_LATER = "error later"
    BUSY = "busy"
    UNAVAILABLE = "unavailable"
    BROKEN = "broken"
    REJECTED = "rejected"
    GARBAGE = "garbage"
    DEAF = "deaf"
    """Does not notice that nobody listens any more."""


class Conduct(StrEnum):
    """What a client does."""

    PATIENT = "patient"
    SLOW_READER = "slow reader"
    STALLED = "stalled"
    """Reads nothing for longer than the router's deadlines, then goes on."""
    SLOW_SENDER = "slow sender"
    LEAVES_IN_HEAD = "leaves in the head"
    LEAVES_IN_BODY = "leaves in the body"
    LEAVES_AT_ONCE = "leaves at once"
    LEAVES_UNANSWERED = "leaves unanswered"
    """Waits a while, in the queue or in the engine's silence, and is gone."""
    LEAVES_IN_REPLY = "leaves in the reply"
    STRANGER = "stranger"
    """Has no valid key."""
    MUMBLES = "mumbles"
    """Sends a body that is no JSON."""


_Choice = TypeVar("_Choice")
_FAULTS: Final = {
    Fault.NONE: 40, Fault.SLOW: 12, Fault.SILENT: 2, Fault.SILENT_IN_REPLY: 3, Fault.RESET: 5, Fault.RESET_IN_REPLY: 5, Fault.CUT: 4,
    Fault.TRUNCATED: 4, Fault.ERROR_FIRST: 4, Fault.ERROR_LATER: 3, Fault.BUSY: 4, Fault.UNAVAILABLE: 3, Fault.BROKEN: 3, Fault.REJECTED: 3,
    Fault.GARBAGE: 3, Fault.DEAF: 2,
}  # fmt: skip
_CONDUCTS: Final = {
    Conduct.PATIENT: 50, Conduct.SLOW_READER: 8, Conduct.STALLED: 2, Conduct.SLOW_SENDER: 8, Conduct.LEAVES_IN_HEAD: 2,
    Conduct.LEAVES_IN_BODY: 4, Conduct.LEAVES_AT_ONCE: 4, Conduct.LEAVES_UNANSWERED: 8, Conduct.LEAVES_IN_REPLY: 8,
    Conduct.STRANGER: 3, Conduct.MUMBLES: 3,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: everything about it but what happens to it."""

    name: str
    form: Form
    conduct: Conduct
    client: int
    """Which of the keys."""
    pieces: int
    piece_bytes: int
    wants_usage: bool
    chunked: bool
    """The client frames its body in chunks."""
    sent_in: int
    """Pieces that the request is sent in, with pauses."""
    leaves_after: float
    """Part of the request or of the reply after which a client that leaves is gone."""

    @property
    def path(self) -> str:
        """The route."""
        return "/v1/messages" if self.form is Form.MESSAGES else "/v1/chat/completions"

    @property
    def body(self) -> bytes:
        """What is sent; the engine learns from it what to answer."""
        if self.conduct is Conduct.MUMBLES:
            return b'{"model": "m1", "messages": [' + b" " * self.piece_bytes
        tell = f"{self.name} {self.pieces} {self.piece_bytes}"
        document: dict[str, object] = {
            "model": "m1", "max_tokens": 256, "messages": [{"role": "user", "content": tell}], "padding": "x" * (self.piece_bytes // 2),
            "stream": self.form is not Form.REPLY,
        }  # fmt: skip
        if self.wants_usage and self.form is Form.STREAM:
            document["stream_options"] = {"include_usage": True}
        return json.dumps(document).encode()

    @property
    def answer(self) -> bytes:
        """The whole body that the client must get if nothing goes wrong."""
        parts = answer_parts(self.form, self.name, self.pieces, self.piece_bytes)
        return b"".join(part.data for part in parts if part.for_client or self.wants_usage)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of an engine's answer."""

    data: bytes
    for_client: bool = True
    """False: only the router's meter wants it."""


def ask(seed: int, number: int) -> Asked:
    """The run's request of that number."""
    random = Random(f"{seed} asked {number}")
    conduct = _one_of(random, _CONDUCTS)
    form = random.choice(list(Form))
    large = conduct in (Conduct.SLOW_READER, Conduct.STALLED) or random.random() < 0.05
    return Asked(
        name=f"chaos-{seed}-{number}",
        form=form,
        conduct=conduct,
        client=random.randrange(4),
        pieces=random.randint(40, 80) if large else random.randint(1, 12),
        piece_bytes=random.randint(4_000, 12_000) if large else random.choice((3, 40, 700)),
        wants_usage=form is Form.STREAM and random.random() < 0.3,
        chunked=random.random() < 0.2,
        sent_in=random.randint(2, 5) if conduct is Conduct.SLOW_SENDER else 1,
        leaves_after=random.random(),
    )


def fault_of(seed: int, name: str, attempt: int) -> tuple[Fault, Random]:
    """What the engine does to the request's try of that number, and the numbers it needs for it."""
    random = Random(f"{seed} fault {name} {attempt}")
    return _one_of(random, _FAULTS), random


def told(path: str, body: bytes) -> tuple[Form, str, int, int]:
    """What a request tells the engine: form, name, pieces and their size."""
    document = json.loads(body)
    name, pieces, size = document["messages"][0]["content"].split(" ")
    form = Form.MESSAGES if path.startswith("/v1/messages") else Form.STREAM if document["stream"] else Form.REPLY
    return form, name, int(pieces), int(size)


def answer_parts(form: Form, name: str, pieces: int, piece_bytes: int) -> list[Part]:
    """An engine's whole answer."""
    random = Random(f"text {name}")
    texts = [_text(random, name, index, piece_bytes) for index in range(pieces)]
    match form:
        case Form.REPLY:
            return [Part(_completion("".join(texts)))]
        case Form.STREAM:
            return [
                *(Part(delta(text)) for text in texts),
                Part(STOP),
                Part(usage_event(9, pieces), for_client=False),
                Part(DONE),
            ]
        case Form.MESSAGES:
            return [Part(data) for data in _message_events(texts)]


def _text(random: Random, name: str, index: int, size: int) -> str:
    start = random.randrange(len(ALPHABET))
    return f"{name}/{index}:" + (ALPHABET[start:] + ALPHABET * (size // len(ALPHABET)))[:size]


def _completion(text: str) -> bytes:
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps(
        {"id": "c1", "object": "chat.completion", "model": "m1", "choices": [choice], "usage": usage}
    ).encode()


def _message_events(texts: list[str]) -> list[bytes]:
    def named(name: str, **fields: object) -> bytes:
        return f"event: {name}\n".encode() + event({"type": name, **fields})

    usage = {"input_tokens": 9, "output_tokens": 1}
    return [
        named(
            "message_start",
            message={"id": "m", "type": "message", "role": "assistant", "model": "m1", "content": [], "usage": usage},
        ),
        named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *(named("content_block_delta", index=0, delta={"type": "text_delta", "text": text}) for text in texts),
        named("content_block_stop", index=0),
        named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3}),
        named("message_stop"),
    ]


def _one_of(random: Random, weights: dict[_Choice, int]) -> _Choice:
    return random.choices(list(weights), list(weights.values()))[0]
