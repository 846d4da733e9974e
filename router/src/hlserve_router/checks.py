"""Whether the pools that would serve a request can take what its body asks for. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from hlserve_api.answers import Reason
from hlserve_api.routing import ClassRoute, PoolRoute
from hlserve_router.errors import Refusal
from hlserve_router.state import BodyFacts, Route


def check_media(facts: BodyFacts, serving: Sequence[PoolRoute]) -> None:
    """Engines fetch media only from domains that a pool allows. Raises Refusal (media_not_allowed)."""
    for ref in facts.media:
        if ref.url[:5].lower() == "data:" or _is_base64(ref.url):
            continue
        try:
            parts = urlsplit(ref.url)
            host = parts.hostname or ""
        except ValueError:
            parts, host = urlsplit(""), ""
        domains = {domain for pool in serving for domain in pool.allowed_media_domains}
        if parts.scheme.lower() not in ("http", "https") or host not in domains:
            raise Refusal(
                Reason.MEDIA_NOT_ALLOWED,
                f"`{ref.field}` must be a data: URL, or http(s) of a domain that the pool allows.",
                param=ref.field,
            )


def _is_base64(text: str) -> bool:
    """True for inline media as SGLang's own API takes it: long and without anything a path or URL needs."""
    return len(text) > 256 and ":" not in text[:64] and "." not in text[:256] and not text.startswith("/")


def check_store(facts: BodyFacts, serving: Iterable[PoolRoute]) -> None:
    """What builds on a stored response needs a pool that stores them. Raises Refusal (response_store_off)."""
    if facts.previous_response_id is None and not facts.background:
        return
    if not any(pool.response_store for pool in serving):
        raise Refusal(
            Reason.RESPONSE_STORE_OFF,
            "Stored responses are off here: send the whole conversation instead of `previous_response_id`, "
            "and no `background`.",
            param="previous_response_id" if facts.previous_response_id else "background",
        )


def require_store(pools: Iterable[PoolRoute]) -> None:
    """A stored response can be asked for only where a pool stores them. Raises Refusal (response_store_off)."""
    if not any(pool.response_store for pool in pools):
        raise Refusal(
            Reason.RESPONSE_STORE_OFF, "Stored responses are off here: keep the answer of POST /v1/responses."
        )


@dataclass(slots=True, eq=False)
class Bounds:
    """How long a prompt and a reply may be, in tokens; None: not bounded."""

    class_name: str
    max_input_tokens: int | None
    max_output_tokens: int | None
    context_tokens: int | None
    """Longest context among the pools."""


def bounds_of(route: ClassRoute, serving: Iterable[PoolRoute]) -> Bounds:
    """The bounds of a class and of the pools that serve a model in it."""
    contexts = [pool.context_length for pool in serving if pool.context_length is not None]
    limits = route.limits
    return Bounds(route.name, limits.max_input_tokens, limits.max_output_tokens, max(contexts, default=None))


def check_size(bounds: Bounds, prompt_tokens: int, facts: BodyFacts, route: Route) -> None:
    """The class's limits, the prompt's by its estimate; the model's context by what is sure.

    Raises Refusal: input_too_large, output_too_large. A body is passed on as it is, so a reply's limit can only be
    asked for: by a number in the body that is not above it.
    """
    limit = bounds.max_input_tokens
    if limit is not None and prompt_tokens > limit:
        raise Refusal(
            Reason.INPUT_TOO_LARGE,
            f"The prompt has about {prompt_tokens} tokens; class {bounds.class_name!r} takes {limit}.",
        )
    if bounds.max_output_tokens is not None and route.generates:
        _check_output(bounds.class_name, bounds.max_output_tokens, facts, route)
    context = bounds.context_tokens
    if context is None:
        return
    surely = facts.exact_prompt_tokens if facts.exact_prompt_tokens is not None else facts.prompt_bytes // 64
    if surely > context:
        raise Refusal(
            Reason.INPUT_TOO_LARGE,
            f"The prompt has more tokens than the model's context of {context}: shorten it.",
        )


def _check_output(class_name: str, limit: int, facts: BodyFacts, route: Route) -> None:
    asked = facts.output_limit_tokens
    if asked is not None and asked <= limit:
        return
    field = route.output_limit_fields[0]
    said = "no limit is named" if asked is None else f"{asked} are asked for"
    raise Refusal(
        Reason.OUTPUT_TOO_LARGE,
        f"Replies in class {class_name!r} have at most {limit} tokens, and {said}: send `{field}` of at most {limit}.",
        param=field,
    )
