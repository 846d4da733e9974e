"""Request ids: UUIDv7 for people and logs, a fixed-length id of our own for engines."""

from random import Random
from typing import Final

ENGINE_ID_CHARACTERS: Final = 36
"""Engines abort by prefix: ids of one length can never be a prefix of each other."""
_BLOCK: Final = 256
"""Ids whose random bits are drawn together."""
_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""RFC 9562: the two highest bits of this digit are 10, the lower ones random."""


class Ids:
    """Makes ids. Random bits are drawn for many at once, and the digits of a millisecond are written once for all its ids."""

    __slots__ = ("_ends", "_engine_ids", "_milliseconds", "_random", "_start")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._ends: list[str] = []
        self._engine_ids: list[str] = []
        self._milliseconds = -1
        self._start = ""

    def request_id(self, unix_seconds: float) -> str:
        """A UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then 74 random bits."""
        milliseconds = int(unix_seconds * 1000)
        if milliseconds != self._milliseconds:
            self._milliseconds = milliseconds
            digits = f"{milliseconds & (2**48 - 1):012x}"
            self._start = f"{digits[:8]}-{digits[8:]}-7"
        if not self._ends:
            self._ends = [f"{b[:3]}-{_VARIANT[b[3]]}{b[4:7]}-{b[7:19]}" for b in self._bits()]
        return self._start + self._ends.pop()

    def engine_id(self) -> str:
        """The id that an engine knows a request by: `hls-` and 128 random bits."""
        if not self._engine_ids:
            self._engine_ids = ["hls-" + bits for bits in self._bits()]
        return self._engine_ids.pop()

    def _bits(self) -> list[str]:
        """128 random bits for each of a block, as 32 hexadecimal digits."""
        digits = f"{self._random.getrandbits(128 * _BLOCK):0{32 * _BLOCK}x}"
        return [digits[at : at + 32] for at in range(0, len(digits), 32)]
