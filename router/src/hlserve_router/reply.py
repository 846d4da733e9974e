"""An engine's answer as far as it has come, and how much of one that is no stream is held until it is complete. No I/O."""

from typing import Final

from hlserve_router.answer_head import Headers, kind_of

WHOLE_BYTES: Final = 256 * 1024
"""An answer that is no stream is held until it is complete up to this size: then a break in it is still a real 502."""
TAIL_BYTES: Final = 4096
"""The end of a larger answer that is kept, to read its usage from."""


class Reply:
    """The answer of one try. Times are monotonic seconds; 0 = not yet."""

    __slots__ = (
        "comments", "has_events", "head_at", "headers", "held", "is_compressed", "is_stream", "last_read", "size_bytes",
        "status", "tail",
    )  # fmt: skip

    def __init__(self, status: int, headers: Headers, now: float) -> None:
        self.status = status
        self.headers = headers
        self.head_at = self.last_read = now
        self.is_stream, self.is_compressed = kind_of(status, headers)
        """Nothing can be put between the events of a compressed stream, and nothing read from it."""
        self.has_events = self.is_stream and not self.is_compressed
        """True if the body is events that can be read."""
        self.comments = b""
        """What a stream began with before its first event."""
        self.size_bytes = 0
        """Body bytes so far, of an answer that has no events to read."""
        self.tail = b""
        self.held: list[bytes] = []
        """What is kept of the body for now: all of it, if none was passed on."""

    @property
    def may_be_stream(self) -> bool:
        """True for a stream, and before anything came: then the router itself may begin one."""
        return self.is_stream or not self.head_at

    def keep(self, data: bytes) -> bool:
        """Takes body bytes of an answer that has no events. True if they are held until it is complete, False if they, and
        what was held before, must be passed on."""
        self.size_bytes += len(data)
        self.held.append(data)
        return self.size_bytes <= WHOLE_BYTES and not self.is_stream

    def let_go(self) -> bytes:
        """What was held, to be passed on; only the end of it is remembered."""
        data = self.body()
        self.held = []
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        return data

    def body(self) -> bytes:
        """What is held, in one piece."""
        held = self.held
        return held[0] if len(held) == 1 else b"".join(held)


NO_REPLY: Final = Reply(0, [], 0.0)
"""Before an engine has answered; nothing is ever put into it."""
