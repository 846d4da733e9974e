"""What names a request's session, so that it goes back to where its prefix is cached. Pure."""

import re
from typing import Final
from zlib import crc32

import msgspec

from hlserve_router.body_fields import read_user_id
from hlserve_router.body_turns import prompt_prefix
from hlserve_router.exchange import RequestHead
from hlserve_router.state import BodyFacts

PREFIX_BYTES_MIN: Final = 256
"""A shorter prompt has no prefix worth an affinity."""
_CACHE_MARK: Final = re.compile(rb',?\s*"cache_control"\s*:\s*\{[^{}]*\}')
"""Anthropic clients move this mark to the newest turns, so the first turn has it in one request and not in the next."""
_LEGACY_USER: Final = re.compile(r"_session_([0-9a-fA-F-]{8,})$")


def affinity_key(client: str, head: RequestHead, model: str, facts: BodyFacts) -> str | None:
    """What names the request's session, best first; None if nothing does.

    One agent program may run many sub-agents under one session id: their own id, where the client sends one, and the first
    turn after the system prompt tell them apart, and stay the same from turn to turn. An explicit `x-hlserve-session` counts as
    it is. Two clients never share a key, but where only the prompt names the session.
    """
    if head.session is not None and head.session_explicit:
        return f"{client}\0{head.session}"
    prefix = prefix_digest(prompt_prefix(facts))
    session = head.session or (None if facts.session is None else session_part(facts.session))
    if session is not None:
        return f"{client}\0{session}\0{head.agent or ''}\0{prefix}"
    return f"\0{model}\0{prefix}" if prefix else None


def prefix_digest(prefix: bytes) -> str:
    """Checksum of the first turn after the system prompt; empty if it is too short to tell sessions apart.

    Among ten thousand sessions, in one router of a hundred, two have the same, and share a home. Who wants to share somebody's
    home can as well send the same turn: a digest that cannot be forged costs four times as much and would keep nothing apart.
    """
    if len(prefix) < PREFIX_BYTES_MIN:
        return ""
    if b'"cache_control"' in prefix:
        prefix = _CACHE_MARK.sub(b"", prefix)
    return f"{crc32(prefix):08x}"


def session_part(user: str) -> str:
    """The session in a body's session field. Claude Code puts it into `metadata.user_id`, as JSON or (older) as a suffix."""
    if user.startswith("{"):
        try:
            return read_user_id(user).session_id or user
        except msgspec.DecodeError:
            return user
    found = _LEGACY_USER.search(user)
    return found.group(1) if found is not None else user
