"""Event-stream bytes: where events end, which one closes a stream, which one carries usage. Pure; bytes are never rewritten.

`StreamSplitter` passes bytes on as they came and holds back only an event that is not complete yet, up to a cap. So
whatever has been passed on ends at an event boundary, and a ping, an error event or nothing can follow.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from hlserve_router.state import Finish, Shape, Usage

HOLD_BYTES: Final = 64 * 1024
"""An event longer than this is passed on in pieces: memory stays bounded and the side reader gives it up."""

_EOL: Final = rb"(?>\r\n|\n|\r(?!$))"
_BOUNDARY: Final = re.compile(_EOL + rb"(?>\r\n|\n|\r(?!\Z))", re.DOTALL)
_LINE: Final = re.compile(rb"\r\n|\n|\r")
_USAGE_OPEN: Final = re.compile(rb'"usage"\s*:\s*\{')
_ERROR_DATA: Final = re.compile(rb'(?:^|[\r\n])data: ?\{\s*"(?:error"\s*:\s*\{|object"\s*:\s*"error")')
_ERROR_EVENT: Final = re.compile(rb"(?:^|[\r\n])event: ?error[\r\n]")
_DONE_LINE: Final = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]\s*(?:[\r\n]|\Z)")
_MESSAGE_STOP: Final = re.compile(rb'(?:^|[\r\n])(?:event: ?message_stop[\r\n]|data: ?\{"type": ?"message_stop")')
_RESPONSE_TERMINAL: Final = re.compile(
    rb"(?:^|[\r\n])(?:event: ?response\.(?:completed|failed|incomplete|cancelled)[\r\n]|data: ?\[DONE\])"
)
_json = msgspec.json.Decoder().decode


class StreamSplitter:
    """Cuts incoming bytes at the last event boundary. `held` is the incomplete event, `inside` is True after a cap."""

    __slots__ = ("_inside", "held")

    def __init__(self) -> None:
        self.held = b""
        self._inside = False

    @property
    def at_boundary(self) -> bool:
        """True if what was passed on so far ends at an event boundary."""
        return not self._inside

    @property
    def empty(self) -> bool:
        """True if nothing is held and what was passed on ends at an event boundary."""
        return not self.held and not self._inside

    def feed(self, data: bytes) -> bytes:
        """The bytes that may be passed on now; the rest is held."""
        if self.held:
            data = self.held + data
            self.held = b""
        if data.endswith(b"\n\n"):
            self._inside = False
            return data
        end = _last_boundary(data)
        if end:
            self._inside = False
        if len(data) - end > HOLD_BYTES:
            self._inside = True
            return data
        self.held = data[end:]
        return data[:end]

    def drop(self) -> bytes:
        """Gives up the incomplete event and returns it."""
        held, self.held = self.held, b""
        return held


UNUSED: Final = StreamSplitter()
"""For an answer that is no stream; it is never fed."""


def _last_boundary(data: bytes) -> int:
    """Length of the part of `data` that ends with its last event boundary; 0 if there is none."""
    at = max(data.rfind(b"\n\n"), data.rfind(b"\n\r"), data.rfind(b"\r\r"))
    if at < 0:
        return 0
    for found in _BOUNDARY.finditer(data, max(0, at - 2)):
        end = found.end()
        if _BOUNDARY.search(data, end) is None:
            return end
    # The newest candidate was a lone CR at the very end, whose LF may still come: look further back.
    end = 0
    for found in _BOUNDARY.finditer(data):
        end = found.end()
    return end


def events(data: bytes) -> Iterator[bytes]:
    """The complete events of `data`, each with its boundary; what follows the last boundary is the last item."""
    at = 0
    for found in _BOUNDARY.finditer(data):
        yield data[at : found.end()]
        at = found.end()
    if at < len(data):
        yield data[at:]


def event_data(event: bytes) -> bytes | None:
    """The joined `data:` lines of one event; None if it has none (a comment, say)."""
    lines: list[bytes] = []
    for line in _LINE.split(event):
        if line.startswith(b"data:"):
            value = line[5:]
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines) if lines else None


CLOSING_MARKS: Final = {
    Finish.DONE: b"[DONE]",
    Finish.MESSAGE_STOP: b"message_stop",
    Finish.RESPONSE_TERMINAL: b"",
    Finish.NONE: b"",
}
"""Bytes without which no event closes a stream of this kind; empty where there are none to look for."""


TextForm = tuple[bytes, bytes, int]
"""How an event begins and ends, and the length of that beginning."""


def _form(begin: bytes, end: bytes) -> TextForm:
    return begin, end, len(begin)


TEXT_FORMS: Final[dict[Finish, TextForm | None]] = {
    Finish.DONE: _form(b'data: {"id":"', b'"usage":null}\n\n'),
    Finish.MESSAGE_STOP: _form(b"event: content_block_delta\n", b"}\n\n"),
    Finish.RESPONSE_TERMINAL: _form(b"event: response.output_text.delta\n", b"}\n\n"),
    Finish.NONE: None,
}
"""The events that carry the text of a reply, as SGLang writes them."""


def is_text_event(data: bytes, form: TextForm) -> bool:
    """True for exactly one event of this form, so that it is no end, no error and holds no usage. False says nothing."""
    begin, end, begin_bytes = form
    if not (data.endswith(end) and data.startswith(begin)):
        return False
    # Between the two stands no line end. Looking for one costs an eighth of counting them all.
    return data.find(b"\n", begin_bytes) == len(data) - 2


def is_ordinary(data: bytes, closing_mark: bytes) -> bool:
    """True if `data` surely holds no end, no error and no usage: nothing that a relay must know of.

    A plain search for bytes, as this is asked of every piece of every stream. False says nothing.
    """
    if closing_mark in data or b"error" in data or b"meta_info" in data:
        return False
    at = data.find(b'"usage"')
    while at >= 0:
        if not data.startswith(b":null", at + 7):
            return False
        at = data.find(b'"usage"', at + 12)
    return True


def is_complete(data: bytes, finish: Finish) -> bool:
    """True if `data` holds the event that closes a complete stream of this kind."""
    if finish is Finish.DONE:
        return b"[DONE]" in data and _DONE_LINE.search(data) is not None
    if finish is Finish.MESSAGE_STOP:
        return b"message_stop" in data and _MESSAGE_STOP.search(data) is not None
    if finish is Finish.RESPONSE_TERMINAL:
        return _RESPONSE_TERMINAL.search(data) is not None
    return True


def closes(event: bytes, finish: Finish) -> bool:
    """True if a last event that lacks its blank line closes a complete stream: its data must not be cut either."""
    if not is_complete(event, finish):
        return False
    data = event_data(event)
    return finish is Finish.NONE or (data is not None and (data.strip() == b"[DONE]" or _is_json(data)))


def _is_json(data: bytes) -> bool:
    try:
        _json(data)
    except msgspec.DecodeError:
        return False
    return True


def has_error(data: bytes) -> bool:
    """True if `data` holds an engine's error event."""
    return b"error" in data and (_ERROR_DATA.search(data) is not None or _ERROR_EVENT.search(data) is not None)


@dataclass(frozen=True, slots=True)
class EngineError:
    """An engine's error event that came first: the status it stands for and its JSON body."""

    status: int
    body: bytes


_ANTHROPIC_STATUS: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 503,
}
_TYPE_STATUS: Final = {"BadRequestError": 400, "NotFoundError": 404, "invalid_request_error": 400}


def read_error(event: bytes, shape: Shape) -> EngineError | None:
    """The error that one event carries, or None if it carries something else."""
    if not has_error(event):
        return None
    data = event_data(event)
    if data is None:
        return None
    try:
        body = _json(data)
    except (msgspec.DecodeError, RecursionError):
        return EngineError(502, data)
    return EngineError(_status_of(body, shape), data)


def _status_of(body: Any, shape: Shape) -> int:
    error = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return 500
    for key in ("code", "status", "status_code"):
        code = error.get(key)
        if isinstance(code, str) and code.isdigit():
            code = int(code)
        if isinstance(code, int) and 400 <= code <= 599:
            return code
    kind = str(error.get("type", ""))
    return (_ANTHROPIC_STATUS if shape is Shape.ANTHROPIC else _TYPE_STATUS).get(kind, 500)


def without_usage_chunks(data: bytes) -> bytes:
    """`data` without chunks whose `choices` is empty and whose `usage` is not null; otherwise the same object."""
    if _USAGE_OPEN.search(data) is None:
        return data
    parts = list(events(data))
    kept = [event for event in parts if not _is_usage_chunk(event)]
    return data if len(kept) == len(parts) else b"".join(kept)


def _is_usage_chunk(event: bytes) -> bool:
    if _USAGE_OPEN.search(event) is None:
        return False
    data = event_data(event)
    if data is None:
        return False
    try:
        body = _json(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(body, dict) and body.get("choices") == [] and body.get("usage") is not None


_TOKENS: Final = re.compile(
    rb'"(prompt|input|completion|output|cached|cache_read_input)_tokens"\s*:\s*(\d{1,12})(?!\d)'
)
_TOKEN_FIELDS: Final = {
    b"prompt": "prompt_tokens", b"input": "prompt_tokens", b"completion": "completion_tokens",
    b"output": "completion_tokens", b"cached": "cached_tokens", b"cache_read_input": "cached_tokens",
}  # fmt: skip
_USAGE_BYTES: Final = 2048
_USAGE_AT: Final = re.compile(rb'"(?:usage|meta_info)"\s*:\s*\{')


def has_usage(data: bytes) -> bool:
    """True if `data` holds usage that is not null: engines write `"usage":null` into every other chunk."""
    return _USAGE_AT.search(data) is not None


def read_usage(data: bytes, usage: Usage) -> None:
    """Takes the last usage numbers of `data` into `usage`; leaves what is not there."""
    at = _last_usage(data)
    if at < 0:
        return
    seen: set[str] = set()
    for found in _TOKENS.finditer(data, at, at + _USAGE_BYTES):
        name = _TOKEN_FIELDS[found.group(1)]
        if name not in seen:
            seen.add(name)
            setattr(usage, name, int(found.group(2)))


def _last_usage(data: bytes) -> int:
    """Where the last usage that is not null begins; -1 if there is none."""
    end = len(data)
    while (at := max(data.rfind(b'"usage"', 0, end), data.rfind(b'"meta_info"', 0, end))) >= 0:
        if _USAGE_AT.match(data, at) is not None:
            return at
        end = at
    return -1
