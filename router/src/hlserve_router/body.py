"""Reads the few body fields that routing needs, and knows where bytes may be spliced. The body is never re-serialised.

msgspec gives the top-level values as raw slices. Only a body that looks as if one of our keys were written twice, or
written with escapes, pays for the scanner that walks every top-level key.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from hlserve_api.answers import Reason
from hlserve_router.body_fields import (
    ABSENT,
    NO_MODEL,
    ModelName,
    Top,
    read_any,
    read_every_key,
    read_top,
)
from hlserve_router.body_spans import hides_ascii, top_level_spans
from hlserve_router.errors import Refusal
from hlserve_router.state import BodyFacts, MediaRef, Route

_RESERVED: Final = frozenset({"rid", "request_id", "session_params", "lora_path", "custom_logit_processor"})
_MEDIA_KEYS: Final = frozenset(
    {"image_url", "video_url", "audio_url", "file_url", "input_audio_url", "image_data", "video_data", "audio_data"}
)
_MEDIA_MARKS: Final = (b'_url"', b'_data"', b'"source"')
"""One of these stands in every body with a media key. Plain searches: a pattern would hold a large body up for a second."""
_MARK: Final = re.compile(rb'_(?:(?:url|data|rank)"|(?<="bootstrap_))')
"""How a media key ends (but for `source`), and how a family of reserved keys ends or begins. Its first byte is searched fast."""
_AFTER_QUOTE: Final = (b'source"', b"bootstrap_")
_AFTER_UNDERSCORE: Final = (b'url"', b'data"', b'rank"')
LARGE_BYTES: Final = 64 * 1024
"""From here on a body is searched byte by byte first."""
MOST_LOOKS: Final = 500
"""More quotes or underscores than that, and it is searched as a small one."""
_MEDIA_TOKENS: Final = 1024
"""What one picture or clip counts as in estimates; engines use 256 to 4,096 a picture."""


def read_body(route: Route, body: bytes) -> BodyFacts:
    """The facts of a request body. Raises Refusal (invalid_json, duplicate_field, reserved_field, missing_model)."""
    top = _read_plain(body)
    media: tuple[MediaRef, ...] = ()
    if top is None:
        top, media = _read_carefully(route, body)
    prompt, exact, prompt_bytes = _read_prompt(route, top)
    n = top.n
    return BodyFacts(
        top.model or None,
        top.stream is True,
        top.stream_options is not ABSENT and _wants_usage(top.stream_options),
        _without_media(prompt_bytes, media) if media else prompt_bytes,
        exact,
        _output_limit(route, top),
        1 if n is None else max(1, min(n, 128)),
        _session(top),
        top.previous_response_id,
        top.background is True,
        media,
        top.tools is not ABSENT,
        prompt,
        route.has_turns,
    )


def _read_plain(body: bytes) -> Top | None:
    """The fields of a body that has nothing in it to look at twice; None: read it carefully.

    Nothing is refused here. What might be a field of ours written twice or in escapes, a reserved field, a media
    reference, a value of another type, or no JSON at all, is left to the careful reader.
    """
    if _has_marks(body) or _may_hide(body):
        return None
    try:
        return read_top(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _has_marks(body: bytes) -> bool:
    """True if a media key or a reserved key of a family could be there."""
    if len(body) > LARGE_BYTES:
        after_quote, after_line = _any_follows(body, b'"', _AFTER_QUOTE), _any_follows(body, b"_", _AFTER_UNDERSCORE)
        if after_quote is not None and after_line is not None:
            return after_quote or after_line
    return b'"source"' in body or _MARK.search(body) is not None


def _any_follows(body: bytes, byte: bytes, rests: tuple[bytes, ...]) -> bool | None:
    """True if one of `rests` follows a `byte` anywhere; None if the byte is there too often to look at each.

    Looking for one byte costs a twentieth of looking for a word, and in long prose both of these are rare.
    """
    at = body.find(byte)
    for _ in range(MOST_LOOKS):
        if at < 0:
            return False
        if body.startswith(rests, at + 1):
            return True
        at = body.find(byte, at + 1)
    return None


def _may_hide(body: bytes) -> bool:
    """True if a key could be there that a byte search does not see: written in escapes, or no UTF-8."""
    if hides_ascii(body):
        return True
    if body.isascii():
        return False
    try:
        body.decode()
    except UnicodeDecodeError:
        return True
    return False


def _read_carefully(route: Route, body: bytes) -> tuple[Top, tuple[MediaRef, ...]]:
    """As `_read_plain` for any body: refuses what must be refused, and leaves out values of the wrong type."""
    top = _parse(body)
    _refuse_reserved(top)
    escaped = hides_ascii(body)
    _refuse_two_models(body, top, escaped=escaped)
    model = _text(top, "model")
    if model is None and "model" in top:
        raise Refusal(Reason.MISSING_MODEL, "`model` must be a string that names a model.", param="model")
    if not model and not route.model_optional:
        raise Refusal(Reason.MISSING_MODEL, "The body has no `model`: name one of GET /v1/models.", param="model")
    found = Top(
        NO_MODEL if model is None else ModelName(model),
        _bool(top, "stream"),
        top.get("messages", ABSENT),
        _int(top, "max_tokens"),
        _int(top, "max_completion_tokens"),
        top.get("stream_options", ABSENT),
        top.get("tools", ABSENT),
        _int(top, "n"),
        top.get("prompt", ABSENT),
        top.get("input", ABSENT),
        top.get("text", ABSENT),
        top.get("input_ids", ABSENT),
        top.get("system", ABSENT),
        top.get("instructions", ABSENT),
        _int(top, "max_output_tokens"),
        top.get("sampling_params", ABSENT),
        _text(top, "prompt_cache_key"),
        _text(top, "session_id"),
        top.get("metadata", ABSENT),
        _text(top, "previous_response_id"),
        _bool(top, "background"),
    )
    return found, _media(body, escaped=escaped)


def _parse(body: bytes) -> Mapping[str, msgspec.Raw]:
    if not body:
        raise Refusal(Reason.INVALID_JSON, "The body is empty: send one JSON object.")
    try:
        if not body.isascii():
            body.decode()
        return read_every_key(body)
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


def _refuse_two_models(body: bytes, top: Mapping[str, msgspec.Raw], *, escaped: bool) -> None:
    if "model" not in top or (body.count(b'"model"') == 1 and not escaped):
        return
    if sum(key == "model" for key, _ in top_level_spans(body)) != 1:
        raise Refusal(Reason.DUPLICATE_FIELD, "`model` stands in the body more than once: keep one.", param="model")


def _value(top: Mapping[str, msgspec.Raw], key: str) -> Any:
    raw = top.get(key)
    if raw is None:
        return None
    try:
        return read_any(raw)
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


def _object(raw: msgspec.Raw) -> dict[str, Any]:
    """An object's content; nothing if the value is no object."""
    try:
        value = read_any(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    return value if isinstance(value, dict) else {}


def _wants_usage(raw: msgspec.Raw) -> bool:
    options = _object(raw)
    return options.get("include_usage") is True or options.get("continuous_usage_stats") is True


def _output_limit(route: Route, top: Top) -> int | None:
    """The largest of the reply's limits. A number below 1 is left to the engine, which refuses it."""
    largest = 0
    for field in route.output_limit_fields:
        limit = _sampling_limit(top) if "." in field else getattr(top, field)
        if limit is not None and limit > largest:
            largest = limit
    return largest or None


def _sampling_limit(top: Top) -> int | None:
    """`sampling_params.max_new_tokens` of SGLang's own API."""
    limit = _object(top.sampling_params).get("max_new_tokens") if top.sampling_params is not ABSENT else None
    return limit if isinstance(limit, int) and not isinstance(limit, bool) else None


def _read_prompt(route: Route, top: Top) -> tuple[msgspec.Raw | None, int | None, int]:
    """The prompt, its exact tokens if it is one list of token ids, and its bytes (tools and system text included)."""
    prompt: msgspec.Raw | None = None
    exact: int | None = None
    total = 0
    for field in route.prompt_fields:
        raw: msgspec.Raw = getattr(top, field)
        if raw is ABSENT:
            continue
        if prompt is None:
            prompt = raw
        view = memoryview(raw)
        total += len(view)
        if not route.has_turns and _starts_with_number(view):
            exact = (exact or 0) + bytes(view).count(b",") + 1
    for raw in (top.system, top.instructions, top.tools):
        if raw is not ABSENT:
            total += len(memoryview(raw))
    return prompt, exact, total


def _starts_with_number(view: memoryview) -> bool:
    """True for a list whose first element is a number."""
    return view[0] == 0x5B and bytes(view[1:64]).lstrip()[:1].isdigit()


def _without_media(prompt_bytes: int, media: tuple[MediaRef, ...]) -> int:
    inline = sum(len(ref.url) for ref in media)
    return max(0, prompt_bytes - inline) + 4 * _MEDIA_TOKENS * len(media)


def _session(top: Top) -> str | None:
    """A session id that agents put in the body: prompt_cache_key, then session_id, then one inside metadata."""
    session = top.prompt_cache_key or top.session_id
    if session:
        return session[:256]
    if top.metadata is not ABSENT:
        metadata = _object(top.metadata)
        for key in ("session_id", "user_id"):
            value = metadata.get(key)
            if isinstance(value, str) and value:
                return value[:256]
    return None


def _media(body: bytes, *, escaped: bool) -> tuple[MediaRef, ...]:
    if not escaped and not any(mark in body for mark in _MEDIA_MARKS):
        return ()
    try:
        document = read_any(body)
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
