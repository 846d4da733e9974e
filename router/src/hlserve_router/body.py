"""Reads the few body fields that routing needs, and knows where bytes may be spliced. The body is never re-serialised.

msgspec gives the top-level values as raw slices. Only a body that looks as if one of our keys were written twice, or
written with escapes, pays for the scanner that walks every top-level key.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from hlserve_api.answers import Reason
from hlserve_router.errors import Refusal
from hlserve_router.state import BodyFacts, MediaRef, RidTravel, Route

_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list_of_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_any = msgspec.json.Decoder().decode


class _Turn(msgspec.Struct):
    role: str = ""


_turn = msgspec.json.Decoder(_Turn).decode

_ESCAPED_ASCII: Final = re.compile(rb"\\u00[2-7]")
"""A printable ASCII character written as an escape: the one way to hide a key or a value from a byte search."""
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_TOKEN: Final = re.compile(_STRING + rb"|[{}\[\],:]", re.DOTALL)
_SPACE: Final = b" \t\r\n"
_MODEL_AT: Final = re.compile(rb'"model"\s*:\s*(' + _STRING + rb")", re.DOTALL)

_RESERVED: Final = frozenset({"rid", "request_id", "session_params", "lora_path", "custom_logit_processor"})
_MEDIA_KEYS: Final = frozenset(
    {"image_url", "video_url", "audio_url", "file_url", "input_audio_url", "image_data", "video_data", "audio_data"}
)
_MEDIA_MARKS: Final = (b'_url"', b'_data"', b'"source"')
"""One of these stands in every body with a media key. Plain searches: a pattern would hold a large body up for a second."""
_PREFIX_BYTES: Final = 2048
_SYSTEM_ROLES: Final = frozenset({"system", "developer"})
_MEDIA_TOKENS: Final = 1024
"""What one picture or clip counts as in estimates; engines use 256 to 4,096 a picture."""


def read_body(route: Route, body: bytes) -> BodyFacts:
    """The facts of a request body. Raises Refusal (invalid_json, duplicate_field, reserved_field, missing_model)."""
    top = _parse(body)
    _refuse_reserved(top)
    escaped = b"\\" in body and b"\\u00" in body and _ESCAPED_ASCII.search(body) is not None
    model_span = _model_span(body, top, escaped=escaped)
    model = _text(top, "model")
    if model is None and "model" in top:
        raise Refusal(Reason.MISSING_MODEL, "`model` must be a string that names a model.", param="model")
    if not model and not route.model_optional:
        raise Refusal(Reason.MISSING_MODEL, "The body has no `model`: name one of GET /v1/models.", param="model")
    media = _media(body, escaped=escaped)
    exact, prompt_bytes = _prompt_size(route, top)
    session, prefix = _session(top), _prefix(route, top)
    return BodyFacts(
        model=model or None,
        stream=_bool(top, "stream"),
        wants_usage=_wants_usage(top),
        prompt_bytes=_without_media(prompt_bytes, media),
        exact_prompt_tokens=exact,
        output_limit_tokens=_output_limit(route, top),
        choices=max(1, min(_int(top, "n") or 1, 128)),
        session=session,
        prefix=prefix,
        previous_response_id=_text(top, "previous_response_id"),
        background=_bool(top, "background"),
        media=media,
        has_tools="tools" in top,
        model_span=model_span,
    )


def _parse(body: bytes) -> Mapping[str, msgspec.Raw]:
    if not body:
        raise Refusal(Reason.INVALID_JSON, "The body is empty: send one JSON object.")
    try:
        return _top_level(body)
    except RecursionError:
        message = "The body is nested too deeply to be read."
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"The body must be one JSON object in UTF-8 without a byte order mark: {error}."
    raise Refusal(Reason.INVALID_JSON, message)


def _refuse_reserved(top: Mapping[str, msgspec.Raw]) -> None:
    for key in top:
        if key in _RESERVED or key.startswith("bootstrap_") or key.endswith("dp_rank"):
            raise Refusal(
                Reason.RESERVED_FIELD, f"`{key[:64]}` is set by the service: remove it from the body.", param=key[:64]
            )


def _model_span(body: bytes, top: Mapping[str, msgspec.Raw], *, escaped: bool) -> tuple[int, int] | None:
    """Where the value of the top-level `model` lies; refuses a body that has the key twice."""
    if "model" not in top:
        return None
    if body.count(b'"model"') == 1 and not escaped:
        found = _MODEL_AT.search(body)
        if found is not None:
            return found.span(1)
    spans = [span for key, span in top_level_spans(body) if key == "model"]
    if len(spans) != 1:
        raise Refusal(Reason.DUPLICATE_FIELD, "`model` stands in the body more than once: keep one.", param="model")
    return spans[0]


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


def _value(top: Mapping[str, msgspec.Raw], key: str) -> Any:
    raw = top.get(key)
    if raw is None:
        return None
    try:
        return _any(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _text(top: Mapping[str, msgspec.Raw], key: str) -> str | None:
    value = _value(top, key)
    return value if isinstance(value, str) else None


def _int(top: Mapping[str, msgspec.Raw], key: str) -> int | None:
    value = _value(top, key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _bool(top: Mapping[str, msgspec.Raw], key: str) -> bool:
    return _value(top, key) is True


def _wants_usage(top: Mapping[str, msgspec.Raw]) -> bool:
    options = _value(top, "stream_options")
    if not isinstance(options, dict):
        return False
    return options.get("include_usage") is True or options.get("continuous_usage_stats") is True


def _output_limit(route: Route, top: Mapping[str, msgspec.Raw]) -> int | None:
    limits = [value for field in route.output_limit_fields if (value := _int(top, field)) is not None and value > 0]
    if route.name == "generate":
        sampling = _value(top, "sampling_params")
        limit = sampling.get("max_new_tokens") if isinstance(sampling, dict) else None
        if isinstance(limit, int) and limit > 0:
            limits.append(limit)
    return max(limits, default=None)


def _prompt_size(route: Route, top: Mapping[str, msgspec.Raw]) -> tuple[int | None, int]:
    """Exact tokens if the prompt is one list of token ids, and the prompt's bytes (tools and system text included)."""
    exact: int | None = None
    total = 0
    for field in (*route.prompt_fields, "system", "instructions", "tools"):
        raw = top.get(field)
        if raw is None:
            continue
        view = memoryview(raw)
        total += len(view)
        start = bytes(view[:64])
        if field in route.prompt_fields and start[:1] == b"[" and start[1:].lstrip()[:1].isdigit():
            exact = (exact or 0) + bytes(view).count(b",") + 1
    return exact, total


def _without_media(prompt_bytes: int, media: tuple[MediaRef, ...]) -> int:
    inline = sum(len(ref.url) for ref in media)
    return max(0, prompt_bytes - inline) + 4 * _MEDIA_TOKENS * len(media)


def _session(top: Mapping[str, msgspec.Raw]) -> str | None:
    """A session id that agents put in the body: prompt_cache_key, then metadata.user_id, then session_id."""
    for key in ("prompt_cache_key", "session_id"):
        value = _text(top, key)
        if value:
            return value[:256]
    metadata = _value(top, "metadata")
    if isinstance(metadata, dict):
        for key in ("session_id", "user_id"):
            value = metadata.get(key)
            if isinstance(value, str) and value:
                return value[:256]
    return None


def _prefix(route: Route, top: Mapping[str, msgspec.Raw]) -> bytes:
    """The start of the prompt after the system messages: what tells two agents with one system prompt apart."""
    for field in route.prompt_fields:
        raw = top.get(field)
        if raw is None:
            continue
        start = bytes(memoryview(raw)[:_PREFIX_BYTES])
        if field in ("messages", "input") and start[:1] == b"[":
            return _first_turn(raw, start)
        return start
    return b""


def _first_turn(messages: msgspec.Raw, start: bytes) -> bytes:
    try:
        turns = _list_of_raw(messages)
    except (msgspec.DecodeError, RecursionError):
        return start
    for turn in turns:
        try:
            role = _turn(turn).role
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            role = ""
        if role not in _SYSTEM_ROLES:
            return bytes(memoryview(turn)[:_PREFIX_BYTES])
    return b""


def _media(body: bytes, *, escaped: bool) -> tuple[MediaRef, ...]:
    if not escaped and not any(mark in body for mark in _MEDIA_MARKS):
        return ()
    try:
        document = _any(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Refusal(Reason.INVALID_JSON, f"The body cannot be read: {error}.") from error
    return tuple(_walk_media(document))


def _walk_media(document: Any) -> Iterator[MediaRef]:
    stack = [document]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack.extend(node)
        elif isinstance(node, dict):
            for key, value in node.items():
                if key in _MEDIA_KEYS:
                    yield from _refs(key, value)
                elif key == "source" and isinstance(value, dict) and isinstance(value.get("url"), str):
                    yield MediaRef("source.url", value["url"])
                else:
                    stack.append(value)


def _refs(key: str, value: Any) -> Iterator[MediaRef]:
    for item in value if isinstance(value, list) else [value]:
        url = item.get("url") if isinstance(item, dict) else item
        if isinstance(url, str):
            yield MediaRef(key, url)
        elif isinstance(item, list):
            yield from _refs(key, item)


def engine_body(
    body: bytes,
    facts: BodyFacts,
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
    if model is not None and facts.model_span is not None:
        edits.append((*facts.model_span, msgspec.json.encode(model)))
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
