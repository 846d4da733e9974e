"""Where values lie in a request body, and the few spans that are changed on the way to an engine. Pure.

A body is never re-serialised: everything but the stated spans goes on byte for byte.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from hlserve_router.state import RidTravel

_ESCAPED_ASCII: Final = re.compile(rb"\\u00[2-7]")
MOST_ESCAPES: Final = 500
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_TOKEN: Final = re.compile(_STRING + rb"|[{}\[\],:]", re.DOTALL)
_SPACE: Final = b" \t\r\n"
_MODEL_AT: Final = re.compile(rb'"model"\s*:\s*(' + _STRING + rb")", re.DOTALL)
_any = msgspec.json.Decoder().decode


def hides_ascii(body: bytes) -> bool:
    """True if a printable ASCII character is written as an escape: the one way to hide a key or a value from a byte search.

    Control characters in what tools printed are escapes too, so that a large body often has some.
    """
    if b"\\" not in body:
        return False
    at = body.find(b"\\u00")
    for _ in range(MOST_ESCAPES):
        if at < 0:
            return False
        if b"2" <= body[at + 4 : at + 5] <= b"7":
            return True
        at = body.find(b"\\u00", at + 4)
    return at >= 0 and _ESCAPED_ASCII.search(body, at) is not None


def top_level_spans(body: bytes) -> Iterator[tuple[str, tuple[int, int]]]:
    """Every top-level key with the span of its value, in order, duplicates included. `body` is one valid JSON object."""
    depth = 0
    key: str | None = None
    pending: bytes | None = None
    start = 0
    for token in _TOKEN.finditer(body):
        mark = body[token.start()]
        if mark == 0x22:  # a string
            if depth == 1 and key is None:
                pending = token.group()
        elif mark in b"{[":
            depth += 1
        elif mark in b"}]":
            depth -= 1
            if depth == 0 and key is not None:
                yield key, _trim(body, start, token.start())
                return
        elif depth == 1:
            if mark == 0x3A and key is None and pending is not None:
                key, pending, start = str(_any(pending)), None, token.end()
            elif mark == 0x2C and key is not None:
                yield key, _trim(body, start, token.start())
                key = None


def _trim(body: bytes, start: int, end: int) -> tuple[int, int]:
    while start < end and body[start] in _SPACE:
        start += 1
    while end > start and body[end - 1] in _SPACE:
        end -= 1
    return start, end


def model_span(body: bytes) -> tuple[int, int] | None:
    """Where the value of the top-level `model` lies; None without one. `body` is one that `read_body` took."""
    if body.count(b'"model"') == 1 and not hides_ascii(body):
        found = _MODEL_AT.search(body)
        if found is not None:
            return found.span(1)
    return next((span for key, span in top_level_spans(body) if key == "model"), None)


def engine_body(
    body: bytes,
    *,
    model: str | None,
    rid: tuple[RidTravel, str] | None,
    priority: int | None,
    include_usage: bool,
) -> tuple[bytes | memoryview, ...]:
    """The body's pieces for the engine: the client's bytes with at most four stated spans changed.

    `model` replaces the value of an alias; `rid` and `priority` are put in front of the first key; `include_usage`
    sets `stream_options.include_usage`. With none of them the client's bytes are the only piece.
    """
    edits: list[tuple[int, int, bytes]] = []
    inserted: list[bytes] = []
    span = model_span(body) if model is not None else None
    if model is not None and span is not None:
        edits.append((*span, msgspec.json.encode(model)))
    if rid is not None and rid[0] in (RidTravel.BODY_RID, RidTravel.BODY_REQUEST_ID):
        inserted.append(b'"%b":"%b"' % (rid[0].value.encode(), rid[1].encode()))
    if priority is not None or include_usage:
        spans = dict(top_level_spans(body)) if b"priority" in body or b"stream_options" in body else {}
        if priority is not None:
            _set(edits, inserted, spans, "priority", b"%d" % priority)
        if include_usage:
            span = spans.get("stream_options")
            value = b'{"include_usage":true}' if span is None else _usage_options(body[span[0] : span[1]])
            _set(edits, inserted, spans, "stream_options", value)
    if inserted:
        opening = body.index(b"{") + 1
        edits.append((opening, opening, b",".join(inserted) + b","))
    if not edits:
        return (body,)
    return tuple(_pieces(body, sorted(edits)))


def _set(
    edits: list[tuple[int, int, bytes]],
    inserted: list[bytes],
    spans: Mapping[str, tuple[int, int]],
    key: str,
    value: bytes,
) -> None:
    if key in spans:
        edits.append((*spans[key], value))
    else:
        inserted.append(b'"%b":%b' % (key.encode(), value))


def _usage_options(current: bytes) -> bytes:
    options = _any(current)
    return msgspec.json.encode({**(options if isinstance(options, dict) else {}), "include_usage": True})


def _pieces(body: bytes, edits: list[tuple[int, int, bytes]]) -> Iterator[bytes | memoryview]:
    view = memoryview(body)
    at = 0
    for start, end, new in edits:
        if start > at:
            yield view[at:start]
        yield new
        at = end
    if at < len(body):
        yield view[at:]
