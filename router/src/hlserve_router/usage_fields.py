"""The fields of a complete JSON answer that say what it used, and the decoder that finds them. Pure."""

from typing import Final

import msgspec


class CachedTokens(msgspec.Struct, gc=False):
    """Prompt tokens that the engine had in its cache."""

    cached_tokens: int | None = None


class AnswerUsage(msgspec.Struct, gc=False):
    """`usage` in the words of any of the APIs."""

    prompt_tokens: int | None = None
    input_tokens: int | None = None
    completion_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    prompt_tokens_details: CachedTokens | None = None
    input_tokens_details: CachedTokens | None = None


class Answer(msgspec.Struct, gc=False):
    """A complete answer."""

    usage: AnswerUsage | None = None


read_answer: Final = msgspec.json.Decoder(Answer).decode
