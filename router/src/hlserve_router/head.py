"""Reads a request's headers once: the key, the few that steer, and those that may pass to an engine. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from hlserve_api import headers as names
from hlserve_api.answers import Reason
from hlserve_router.errors import Refusal
from hlserve_router.exchange import RequestHead
from hlserve_router.state import Route, Shape

MAX_KEY_BYTES: Final = 4096
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_FORWARDED: Final = frozenset(name.encode() for name in names.FORWARDED_TO_ENGINE)
_SESSION_RANK: Final = {name.encode(): rank for rank, name in enumerate(names.KNOWN_SESSION_HEADERS)}
_CLASS: Final = names.CLASS.encode()
_REQUEST_IDS: Final = (names.REQUEST_ID.encode(), names.REQUEST_ID_ANTHROPIC.encode())
_READ_TIMEOUT: Final = names.CLIENT_READ_TIMEOUT.encode()
_AUTHORIZATION: Final = names.AUTHORIZATION.encode()
_API_KEY: Final = names.API_KEY.encode()
_STEERING: Final = frozenset((_AUTHORIZATION, _API_KEY, _CLASS, *_REQUEST_IDS, _READ_TIMEOUT, *_SESSION_RANK))


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys that a request shows."""

    authorization: tuple[bytes, ...] = ()
    api_keys: tuple[bytes, ...] = ()


def read_head(
    route: Route | None, headers: Iterable[tuple[bytes, bytes]], made_request_id: str
) -> tuple[RequestHead, Credentials]:
    """The head of a request; names must be in lower case. A request id that is not well-formed is replaced."""
    forwarded: list[tuple[bytes, bytes]] = []
    authorization: list[bytes] = []
    api_keys: list[bytes] = []
    request_id: str | None = None
    asked_class: str | None = None
    session: tuple[int, bytes] | None = None
    read_timeout: float | None = None
    user_agent = b""
    anthropic = route is not None and route.shape is Shape.ANTHROPIC
    for name, value in headers:
        if name in _FORWARDED:
            forwarded.append((name, value))
            if name == b"user-agent":
                user_agent = value
            elif name == b"anthropic-version":
                anthropic = True
        elif name in _STEERING:
            if name == _AUTHORIZATION:
                authorization.append(value)
            elif name == _API_KEY:
                api_keys.append(value)
            elif name == _CLASS:
                asked_class = value.decode("latin-1").strip()
            elif name in _REQUEST_IDS:
                if request_id is None and _REQUEST_ID.fullmatch(value):
                    request_id = value.decode()
            elif name == _READ_TIMEOUT:
                read_timeout = _seconds(value)
            elif value and (session is None or _SESSION_RANK[name] < session[0]):
                session = (_SESSION_RANK[name], value[:256])
    shape = Shape.ANTHROPIC if anthropic else (route.shape if route is not None else Shape.OPENAI)
    head = RequestHead(
        request_id or made_request_id,
        shape,
        asked_class,
        None if session is None else session[1].decode("latin-1"),
        session is not None and session[0] == 0,
        user_agent[:256].decode("latin-1"),
        read_timeout,
        tuple(forwarded),
    )
    return head, Credentials(tuple(authorization), tuple(api_keys))


def the_key(credentials: Credentials) -> bytes:
    """The one key that the request shows. Raises Refusal (missing_key, invalid_key, conflicting_keys)."""
    keys = [_bearer(value) for value in credentials.authorization] + [key.strip() for key in credentials.api_keys]
    if len(credentials.authorization) > 1:
        raise Refusal(Reason.CONFLICTING_KEYS, "Authorization stands in the request twice: send one.")
    if not keys:
        raise Refusal(Reason.MISSING_KEY, "Send your key as `Authorization: Bearer KEY` or as `x-api-key: KEY`.")
    if any(key != keys[0] for key in keys):
        raise Refusal(Reason.CONFLICTING_KEYS, "Authorization and x-api-key hold different keys: send one.")
    key = keys[0]
    if not key:
        raise Refusal(
            Reason.MISSING_KEY, "The key is empty: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."
        )
    if len(key) > MAX_KEY_BYTES:
        raise Refusal(Reason.INVALID_KEY, INVALID_KEY)
    return key


INVALID_KEY: Final = "This key is not known or was revoked: ask the platform team for a ClientKey."


def _bearer(value: bytes) -> bytes:
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
