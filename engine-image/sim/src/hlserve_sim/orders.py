"""A request as all APIs understand it, once its body is read."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Self, cast

from hlserve_sim import errors
from hlserve_sim.errors import ApiError
from hlserve_sim.fields import Fields
from hlserve_sim.replies import Reply, Tool, Wish, compose
from hlserve_sim.tokens import Vocabulary

MAX_RID_CHARACTERS = 256
MAX_CHOICES = 1024
"""Choices of one HTTP request, over all its prompts."""
_CHOICE_STRIDE = 0x9E37_79B9_7F4A_7C15
_DIGEST_MASK = (1 << 64) - 1

Prompt = tuple[Sequence[int], int]
"""Tokens and digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A generation to run. `rid` None: the server makes one."""

    prompt: Sequence[int]
    digest: int
    model: str
    stream: bool
    rid: str | None
    priority: int | None
    max_tokens: int | None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    reasoning_effort: str | None = None
    tool: Tool | None = None
    json_schema: dict[str, object] | None = None
    include_usage: bool = False
    continuous_usage: bool = False
    choices: int = 1
    """Replies to each prompt."""
    further: tuple[Prompt, ...] = ()
    """The prompts after the first one."""
    listed: bool = False
    """The prompts came as a list, so a native answer is a list too."""
    top_logprobs: int | None = None
    """Alternatives shown for each token, 0 for the token alone; None: no log probabilities."""

    @property
    def several(self) -> bool:
        """Whether it takes more than one engine request, or its answer looks as if it did."""
        return self.choices > 1 or self.listed

    def prompts(self) -> list[Self]:
        """One order for each prompt, with one choice."""
        own = ((self.prompt, self.digest), *self.further)
        return [
            replace(self, prompt=prompt, digest=digest, choices=1, further=(), listed=False) for prompt, digest in own
        ]

    def singles(self) -> list[Self]:
        """One order for each choice, prompt by prompt. The first choice is what a request for one would get."""
        return [
            replace(one, digest=(one.digest + number * _CHOICE_STRIDE) & _DIGEST_MASK)
            for one in self.prompts()
            for number in range(self.choices)
        ]

    def with_overrides(self, rid: str | None, priority: int | None) -> Self:
        """The same order under another id and priority."""
        return replace(self, rid=rid, priority=priority)

    def reply(self, vocabulary: Vocabulary, context_length: int, pool_tokens: int) -> Reply:
        """What the model will say. Raises ApiError if the prompt, or prompt and wanted reply, exceed the context."""
        if len(self.prompt) >= context_length:
            raise errors.too_long(len(self.prompt), context_length)
        if self.max_tokens is not None and len(self.prompt) + self.max_tokens > context_length:
            raise errors.total_too_long(len(self.prompt), self.max_tokens, context_length)
        wish = Wish(
            digest=self.digest,
            room_tokens=min(context_length, pool_tokens) - len(self.prompt),
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            stop=self.stop,
            reasoning_effort=self.reasoning_effort,
            tool=self.tool,
            json_schema=self.json_schema,
        )
        return compose(wish, vocabulary)


class Reader:
    """What reading a body needs to know of the server."""

    __slots__ = ("_seed", "default_include_usage", "vocabulary")

    def __init__(self, vocabulary: Vocabulary, seed: int, default_include_usage: bool) -> None:
        self.vocabulary = vocabulary
        self.default_include_usage = default_include_usage
        self._seed = seed

    def text_prompt(self, text: str) -> tuple[list[int], int]:
        """Tokens and digest of a text."""
        return self.vocabulary.encode(text), self._digest(text.encode("utf-8", "surrogatepass"))

    def words_prompt(self, words: Sequence[str]) -> tuple[list[int], int]:
        """Tokens and digest of words. The digest is of the words, not of ids: another replica gives the same reply."""
        return self.vocabulary.encode_words(words), self._digest(" ".join(words).encode("utf-8", "surrogatepass"))

    def ids_prompt(self, ids: Sequence[object], name: str) -> tuple[Sequence[int], int]:
        """Tokens and digest of token ids. Raises ApiError if one is no token id."""
        try:
            tokens: array[int] = array("q", cast(Sequence[int], ids))
        except (TypeError, OverflowError) as error:
            raise ApiError(f"{name}: token ids must be integers below 2^63", kind="Bad Request", param=name) from error
        if min(tokens, default=0) < 0:
            raise ApiError(f"{name}: token ids must be at least 0", kind="Bad Request", param=name)
        return tokens, self._digest(tokens.tobytes())

    def prompts(self, value: object, name: str) -> tuple[list[Prompt], bool]:
        """The prompts of a text, of a list of token ids, or of a list of either; and whether it was such a list."""
        if not (isinstance(value, list) and value and isinstance(value[0], (str, list))):
            return [self.any_prompt(value, name)], False
        if len(value) > MAX_CHOICES:
            raise ApiError(f"{name}: at most {MAX_CHOICES} prompts a request, not {len(value)}", param=name)
        if any(not isinstance(item, type(value[0])) for item in value):
            raise ApiError(f"{name}: must hold either texts or lists of token ids", kind="Bad Request", param=name)
        return [self.any_prompt(item, name) for item in value], True

    def any_prompt(self, value: object, name: str) -> Prompt:
        """Tokens and digest of a text or of a list of token ids."""
        if isinstance(value, str) and value:
            return self.text_prompt(value)
        if isinstance(value, list) and value and not isinstance(value[0], (str, list)):
            return self.ids_prompt(value, name)
        if not value:
            raise ApiError("Prompt cannot be empty", param=name)
        raise ApiError(f"{name}: must be a text or a list of token ids", kind="Bad Request", param=name)

    def _digest(self, content: bytes) -> int:
        key = self._seed.to_bytes(16, "big", signed=True)
        return int.from_bytes(blake2b(content, digest_size=8, key=key).digest(), "big")


def choices_wanted(fields: Fields, prompts: int = 1) -> int:
    """How many replies to each prompt, checked."""
    choices = fields.integer("n")
    if choices is None:
        return 1
    if choices < 1:
        raise ApiError(f"n must be at least 1, got {choices}.", param="n")
    if choices * prompts > MAX_CHOICES:
        raise ApiError(f"n: at most {MAX_CHOICES} choices a request, not {choices * prompts}", param="n")
    return choices


def limit(value: int | None, name: str) -> int | None:
    """A limit on tokens. SGLang refuses one below 1."""
    if value is not None and value < 1:
        raise ApiError(f"{name} must be at least 1, got {value}.", param=name)
    return value


def request_id(fields: Fields, name: str) -> str | None:
    """The id that the body gives, checked for length."""
    rid = fields.text(name)
    if rid is not None and not 0 < len(rid) <= MAX_RID_CHARACTERS:
        raise ApiError(f"{name}: must have 1 to {MAX_RID_CHARACTERS} characters", kind="Bad Request", param=name)
    return rid


def schema_wanted(container: Fields | None, name: str) -> dict[str, object] | None:
    """The JSON schema that a `response_format` (or `format`) asks for; None: free text."""
    wanted = container.child(name) if container is not None else None
    if wanted is None or wanted.text("type") not in ("json_schema", "json_object"):
        return None
    nested = wanted.child("json_schema") or wanted
    schema = nested.child("schema")
    if schema is None and wanted.text("type") == "json_schema":
        raise ApiError("schema_ is required for json_schema response format request.", param=name)
    return dict(schema.raw) if schema is not None else {"type": "object"}


def usage_wanted(fields: Fields, default: bool) -> tuple[bool, bool]:
    """Whether a stream ends with a usage chunk, and whether each chunk carries usage."""
    options = fields.child("stream_options")
    if options is None:
        return default, False
    return options.flag("include_usage") or default, options.flag("continuous_usage_stats")
