"""Request ids: UUIDv7 for people and logs, a fixed-length id of our own for engines."""

from random import Random

ENGINE_ID_CHARACTERS = 36
"""Engines abort by prefix: ids of one length can never be a prefix of each other."""


def uuid7(unix_seconds: float, random: Random) -> str:
    """A UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then 74 random bits."""
    value = (int(unix_seconds * 1000) & (2**48 - 1)) << 80 | 0x7 << 76 | random.getrandbits(12) << 64
    text = f"{value | 0b10 << 62 | random.getrandbits(62):032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def engine_id(random: Random) -> str:
    """The id that an engine knows a request by: `hls-` and 128 random bits."""
    return f"hls-{random.getrandbits(128):032x}"
