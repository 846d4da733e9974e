"""The start of a prompt after its system messages: what tells two agents with one system prompt apart. Pure.

A conversation grows long and its first turn stays near its beginning: of a long one nothing behind that turn is looked at.
"""

import re
from typing import Final

import msgspec

from hlserve_router.body_fields import read_list, read_turn
from hlserve_router.state import BodyFacts

PREFIX_BYTES: Final = 2048
DECODED_BYTES: Final = 16 * 1024
"""Up to here a decoder is through the whole prompt before a search for its first turn is."""
SEARCHED_BYTES: Final = 64 * 1024
MOST_MARKS: Final = 256
"""Longer system messages, or such of more pieces, cost a pass over the whole prompt."""
_SYSTEM_ROLES: Final = frozenset({"system", "developer"})
_TURN: Final = re.compile(rb'[\s,]*+(\{)\s*(?:"type"\s*:\s*"[^"\\]*"\s*,\s*)?"role"\s*:\s*"([^"\\]*)"')
"""A turn as nearly every client writes it: its role comes first.

If a turn has two, the first counts, in a decoded turn too: what stands behind a long content is not looked at.
"""
_MARK: Final = re.compile(rb'["{}\[\]]')
_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
"""The rest of a string, from behind its first quote."""


def prompt_prefix(facts: BodyFacts) -> bytes:
    """The start of the prompt after the system messages; never anything of the turn after that."""
    if facts.prompt is None:
        return b""
    view = memoryview(facts.prompt)
    if not facts.has_turns or view[0] != 0x5B:
        return bytes(view[:PREFIX_BYTES])
    if len(view) <= DECODED_BYTES:
        return _decoded(facts.prompt)
    data = bytes(view[:SEARCHED_BYTES])
    at = 1
    while (turn := _TURN.match(data, at)) is not None:
        start = turn.start(1)
        limit = start + PREFIX_BYTES
        if limit > SEARCHED_BYTES:
            break
        if str(turn[2], "ascii", "replace") not in _SYSTEM_ROLES:
            return data[start : _end(data, start, limit, PREFIX_BYTES) or limit]
        at = _end(data, start, len(data), MOST_MARKS)
        if not at:
            break
    return _decoded(facts.prompt)


def _end(data: bytes, at: int, limit: int, most_marks: int) -> int:
    """Where the object that begins at `at` ends; 0 if that is behind `limit`, or behind more marks than are looked at."""
    depth = 0
    for _ in range(most_marks):
        found = _MARK.search(data, at, limit)
        if found is None:
            return 0
        at = found.end()
        mark = data[at - 1]
        if mark == 0x22:
            string = _STRING.match(data, at, limit)
            if string is None:
                return 0
            at = string.end()
        elif mark == 0x7B or mark == 0x5B:
            depth += 1
        else:
            depth -= 1
            if not depth:
                return at
    return 0


def _decoded(messages: msgspec.Raw) -> bytes:
    """As `prompt_prefix`, for turns in any form; for a list that holds no turns, its start."""
    try:
        turns = read_list(messages)
    except (msgspec.DecodeError, RecursionError):
        return bytes(memoryview(messages)[:PREFIX_BYTES])
    for turn in turns:
        if _role(turn) not in _SYSTEM_ROLES:
            return bytes(memoryview(turn)[:PREFIX_BYTES])
    return b""


def _role(turn: msgspec.Raw) -> str:
    usual = _TURN.match(turn)
    if usual is not None:
        return str(usual[2], "ascii", "replace")
    try:
        return read_turn(turn).role
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return ""
