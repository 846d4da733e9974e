"""An engine's answer as far as it has come, and how much of one that is no stream is held until it is complete. No I/O."""

from dataclasses import dataclass, field
from typing import Final

from hlserve_router.answer_head import Headers, is_compressed, is_event_stream

WHOLE_BYTES: Final = 256 * 1024
"""An answer that is no stream is held until it is complete up to this size: then a break in it is still a real 502."""
TAIL_BYTES: Final = 4096
"""The end of a larger answer that is kept, to read its usage from."""


@dataclass(slots=True, eq=False)
class Reply:
    """The answer of one try. Times are monotonic seconds; 0 = not yet."""

    status: int = 0
    headers: Headers = field(default_factory=list)
    head_at: float = 0.0
    last_read: float = 0.0
    is_stream: bool = False
    is_compressed: bool = False
    """Nothing can be put between the events of a compressed stream, and nothing read from it."""
    comments: bytes = b""
    """What a stream began with before its first event."""
    size_bytes: int = 0
    """Body bytes so far, of an answer that has no events to read."""
    tail: bytes = b""
    _held: list[bytes] = field(default_factory=list)

    def begin(self, status: int, headers: Headers, now: float) -> None:
        """Status and headers came."""
        self.status, self.headers, self.head_at, self.last_read = status, headers, now, now
        self.is_stream = is_event_stream(status, headers)
        self.is_compressed = is_compressed(headers)

    @property
    def has_events(self) -> bool:
        """True if the body is events that can be read."""
        return self.is_stream and not self.is_compressed

    @property
    def may_be_stream(self) -> bool:
        """True for a stream, and before anything came: then the router itself may begin one."""
        return self.is_stream or not self.head_at

    @property
    def may_wait(self) -> bool:
        """True if the body can be held until it is complete."""
        return self.size_bytes <= WHOLE_BYTES and not self.is_stream

    def count(self, data: bytes) -> None:
        """Body bytes came."""
        self.size_bytes += len(data)
        self.tail = (self.tail + data)[-TAIL_BYTES:] if self.size_bytes > WHOLE_BYTES else b""

    def hold(self, data: bytes) -> None:
        """Those bytes are kept for now."""
        self._held.append(data)

    def let_go(self) -> list[bytes]:
        """What was held, to be passed on; only the end of it stays."""
        held, self._held = self._held, []
        self.tail = held[-1][-TAIL_BYTES:]
        return held

    def held(self) -> bytes:
        """What is held: the whole body, if none of it was passed on."""
        return b"".join(self._held)
