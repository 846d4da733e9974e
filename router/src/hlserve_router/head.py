"""Reads a request's headers once: the key, the few that steer, and those that may pass to an engine. Pure."""

import re
from collections.abc import Iterable
from typing import Final

from hlserve_api import headers as names
from hlserve_api.answers import Reason
from hlserve_router.errors import Refusal
from hlserve_router.exchange import RequestHead
from hlserve_router.keys import INVALID_KEY
from hlserve_router.state import Route, Shape

MAX_KEY_BYTES: Final = 4096
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_SESSION, _AGENT = 100, 200
"""Headers that name a session, and a sub-agent of one, mean this plus their rank, the best first."""


_FORWARDED, _USER_AGENT, _ANTHROPIC, _AUTHORIZATION, _API_KEY, _CLASS, _REQUEST_IDS, _READ_TIMEOUT = range(8)
"""What a header says to the router. Every other header says nothing to it and goes nowhere."""


def _meanings() -> dict[bytes, int]:
    meanings = {name.encode(): _FORWARDED for name in names.FORWARDED_TO_ENGINE}
    meanings[b"user-agent"] = _USER_AGENT
    meanings[b"anthropic-version"] = _ANTHROPIC
    meanings[names.AUTHORIZATION.encode()] = _AUTHORIZATION
    meanings[names.API_KEY.encode()] = _API_KEY
    meanings[names.CLASS.encode()] = _CLASS
    meanings[names.REQUEST_ID.encode()] = meanings[names.REQUEST_ID_ANTHROPIC.encode()] = _REQUEST_IDS
    meanings[names.CLIENT_READ_TIMEOUT.encode()] = _READ_TIMEOUT
    meanings.update((name.encode(), _SESSION + rank) for rank, name in enumerate(names.KNOWN_SESSION_HEADERS))
    meanings.update((name.encode(), _AGENT + rank) for rank, name in enumerate(names.KNOWN_SUBAGENT_HEADERS))
    return meanings


_MEANINGS: Final = _meanings()
_LAST_FORWARDED: Final = _ANTHROPIC


class Credentials:
    """The keys that a request shows."""

    __slots__ = ("api_keys", "authorization")

    def __init__(self) -> None:
        self.authorization: list[bytes] = []
        self.api_keys: list[bytes] = []


def read_head(
    route: Route | None, headers: Iterable[tuple[bytes, bytes]], made_request_id: str
) -> tuple[RequestHead, Credentials]:
    """The head of a request; names must be in lower case. A request id that is not well-formed is replaced."""
    forwarded: list[tuple[bytes, bytes]] = []
    shown = Credentials()
    head = RequestHead(made_request_id, Shape.OPENAI if route is None else route.shape, forwarded)
    best = best_agent = -1
    own_id = True
    meaning_of = _MEANINGS.get
    for name, value in headers:
        meaning = meaning_of(name)
        if meaning is None:
            continue
        if meaning <= _LAST_FORWARDED:
            forwarded.append((name, value))
            if meaning == _USER_AGENT:
                head.user_agent = value[:256].decode("latin-1")
            elif meaning == _ANTHROPIC:
                head.shape = Shape.ANTHROPIC
        elif meaning == _AUTHORIZATION:
            shown.authorization.append(value)
        elif meaning == _API_KEY:
            shown.api_keys.append(value)
        elif meaning == _CLASS:
            head.asked_class = value.decode("latin-1").strip()
        elif meaning == _REQUEST_IDS:
            if own_id and _REQUEST_ID.fullmatch(value):
                head.request_id, own_id = value.decode(), False
        elif meaning == _READ_TIMEOUT:
            head.read_timeout_seconds = _seconds(value)
        elif meaning >= _AGENT:
            if value and (best_agent < 0 or meaning < best_agent):
                best_agent = meaning
                head.agent = value[:256].decode("latin-1")
        elif value and (best < 0 or meaning < best):
            best = meaning
            head.session = value[:256].decode("latin-1")
    head.session_explicit = best == _SESSION
    return head, shown


def the_key(credentials: Credentials) -> bytes:
    """The one key that the request shows. Raises Refusal (missing_key, invalid_key, conflicting_keys)."""
    authorization, api_keys = credentials.authorization, credentials.api_keys
    key = _bearer(authorization[0]) if len(authorization) == 1 and not api_keys else _one_of(authorization, api_keys)
    if not key:
        raise Refusal(
            Reason.MISSING_KEY, "The key is empty: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."
        )
    if len(key) > MAX_KEY_BYTES:
        raise Refusal(Reason.INVALID_KEY, INVALID_KEY)
    return key


def _one_of(authorization: list[bytes], api_keys: list[bytes]) -> bytes:
    keys = [*map(_bearer, authorization), *[key.strip() for key in api_keys]]
    if len(authorization) > 1:
        raise Refusal(Reason.CONFLICTING_KEYS, "Authorization stands in the request twice: send one.")
    if not keys:
        raise Refusal(Reason.MISSING_KEY, "Send your key as `Authorization: Bearer KEY` or as `x-api-key: KEY`.")
    if any(key != keys[0] for key in keys):
        raise Refusal(Reason.CONFLICTING_KEYS, "Authorization and x-api-key hold different keys: send one.")
    return keys[0]


def _bearer(value: bytes) -> bytes:
    if value.startswith(b"Bearer "):
        return value[7:].strip()
    scheme, _, key = value.strip().partition(b" ")
    if scheme.lower() != b"bearer":
        raise Refusal(Reason.INVALID_KEY, "Authorization must be `Bearer KEY`; other schemes are not served.")
    return key.strip()


def _seconds(value: bytes) -> float | None:
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 < seconds < 1e7 else None
