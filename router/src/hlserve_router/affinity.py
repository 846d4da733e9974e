"""What names a request's session, so that it goes back to where its prefix is cached. Pure."""

from hashlib import blake2b
from typing import Final

from hlserve_router.exchange import RequestHead
from hlserve_router.state import BodyFacts

PREFIX_BYTES_MIN: Final = 256
"""A shorter prompt has no prefix worth an affinity."""


def affinity_key(client: str, head: RequestHead, model: str, facts: BodyFacts) -> str | None:
    """What names the request's session, best first; None if nothing does.

    One agent program may run many sub-agents under one session id: the first turn after the system prompt tells them
    apart, and stays the same from turn to turn. An explicit `x-hlserve-session` counts as it is.
    """
    if head.session is not None and head.session_explicit:
        return f"{client}\0{head.session}"
    prefix = blake2b(facts.prefix, digest_size=12).hexdigest() if len(facts.prefix) >= PREFIX_BYTES_MIN else ""
    session = head.session or facts.session
    if session is not None:
        return f"{client}\0{session}\0{prefix}"
    return f"\0{model}\0{prefix}" if prefix else None
