"""What the simulated model says: decided in full before the engine starts, from the seed and the request alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from hlserve_sim.json_words import json_parts
from hlserve_sim.lexicon import LEXICON
from hlserve_sim.tokens import Vocabulary

THINK_END = "</think>"
TOOL_CALL = "<tool_call>"
PADDING = "<pad>"

MEDIAN_REPLY_TOKENS = 120.0
REPLY_SIGMA = 0.8
MAX_NATURAL_REPLY_TOKENS = 2048
REASONING_SHARE = {"none": 0.0, "minimal": 0.2, "low": 0.35, "medium": 0.5, "high": 0.65, "xhigh": 0.75, "max": 0.8}
"""Share of a reply's tokens that reason, by `reasoning_effort`. The shares are invented: they only order the efforts."""


class Kind(StrEnum):
    """What a piece of a reply is."""

    REASONING = "reasoning"
    CONTENT = "content"
    TOOL_NAME = "tool_name"
    TOOL_ARGUMENTS = "tool_arguments"
    SILENT = "silent"
    """A token that the engine makes and the parser swallows, as the end mark of reasoning."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call, and the JSON schema of its parameters."""

    name: str
    parameters: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a request asks of its reply. `max_tokens` None: up to the context length."""

    digest: int
    """64 bits that follow from seed and request."""
    room_tokens: int
    """Tokens that the context length leaves for the reply."""
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    reasoning_effort: str | None = None
    tool: Tool | None = None
    """The function that the reply must call."""
    json_schema: dict[str, object] | None = None
    """The schema that the reply must fit."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The text that one token adds."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply: one piece and one token id for each token."""

    pieces: tuple[Piece, ...]
    token_ids: tuple[int, ...]
    finish: str
    """`stop`, `length` or `tool_calls`."""
    matched_stop: str | None = None
    tool_call_id: str = ""

    def text(self, kind: Kind, until: int | None = None) -> str:
        """The text of one kind in the first `until` tokens."""
        return "".join(piece.text for piece in self.pieces[:until] if piece.kind is kind)

    def count(self, kind: Kind, until: int | None = None) -> int:
        """How many of the first `until` tokens are of one kind."""
        return sum(1 for piece in self.pieces[:until] if piece.kind is kind)


def compose(wish: Wish, vocabulary: Vocabulary) -> Reply:
    """The reply to `wish`. At least one token; at most what the limits and the context leave."""
    rng = Random(wish.digest)
    cap = max(1, wish.room_tokens if wish.max_tokens is None else min(wish.max_tokens, wish.room_tokens))
    natural = min(MAX_NATURAL_REPLY_TOKENS, max(2, round(rng.lognormvariate(0.0, REPLY_SIGMA) * MEDIAN_REPLY_TOKENS)))
    natural = max(natural, wish.min_tokens)
    length = cap if wish.ignore_eos else min(natural, cap)
    ended = "length" if wish.ignore_eos or natural > cap else "stop"
    if wish.json_schema is not None:
        return _json_reply(wish, wish.json_schema, vocabulary, rng, cap)
    if wish.tool is not None:
        return _tool_reply(wish, wish.tool, vocabulary, rng, cap)
    share = REASONING_SHARE.get(wish.reasoning_effort or "none", 0.0)
    thinking = min(round(length * share), max(0, length - 2)) if share > 0.0 else 0
    words = rng.choices(LEXICON, k=length)
    pieces = [Piece(Kind.REASONING, word if at == 0 else f" {word}") for at, word in enumerate(words[:thinking])]
    if thinking:
        words[thinking] = THINK_END
        pieces.append(Piece(Kind.SILENT, ""))
    start = len(pieces)
    pieces += [Piece(Kind.CONTENT, word if at == 0 else f" {word}") for at, word in enumerate(words[start:])]
    tokens = vocabulary.encode_words(words)
    matched = None
    if wish.stop and (cut := _first_stop(pieces, start, wish)) is not None:
        pieces, matched = cut
        tokens, ended = tokens[: len(pieces)], "stop"
    return Reply(tuple(pieces), tuple(tokens), ended, matched)


def _first_stop(pieces: Sequence[Piece], start: int, wish: Wish) -> tuple[list[Piece], str] | None:
    """The pieces up to the first stop string (its text trimmed off), and that string."""
    text = "".join(piece.text for piece in pieces[start:])
    found = [(at, stop) for stop in wish.stop if stop and (at := text.find(stop)) >= 0]
    if not found:
        return None
    at, stop = min(found)
    kept, seen, end = list(pieces[:start]), 0, at + len(stop)
    for piece in pieces[start:]:
        kept.append(Piece(piece.kind, piece.text[: max(0, at - seen)]))
        seen += len(piece.text)
        if seen >= end and len(kept) >= wish.min_tokens:
            break
    return kept, stop


def _tool_reply(wish: Wish, tool: Tool, vocabulary: Vocabulary, rng: Random, cap: int) -> Reply:
    """A call of the tool. A length that is forced is met by the words inside a string argument, else by words before."""
    forced = cap if wish.ignore_eos else min(wish.min_tokens, cap) or None
    parts = json_parts(tool.parameters, rng, None if forced is None else forced - 1)
    before = rng.choices(LEXICON, k=max(0, (forced or 0) - 1 - len(parts)))
    pieces = [Piece(Kind.CONTENT, word if at == 0 else f" {word}") for at, word in enumerate(before)]
    pieces.append(Piece(Kind.TOOL_NAME, tool.name))
    pieces += [Piece(Kind.TOOL_ARGUMENTS, part if at == 0 else f" {part}") for at, part in enumerate(parts)]
    words = [*before, *tool_words(tool.name, " ".join(parts))]
    finish = "length" if wish.ignore_eos or len(words) > cap else "tool_calls"
    call_id = f"call_{rng.getrandbits(96):024x}"
    return Reply(tuple(pieces[:cap]), tuple(vocabulary.encode_words(words[:cap])), finish, None, call_id)


def _json_reply(wish: Wish, schema: dict[str, object], vocabulary: Vocabulary, rng: Random, cap: int) -> Reply:
    """A JSON document that fits the schema. A forced length is met by words in a string, else by silent tokens."""
    forced = cap if wish.ignore_eos else min(wish.min_tokens, cap) or None
    parts = json_parts(schema, rng, forced)
    finish = "length" if wish.ignore_eos or len(parts) > cap else "stop"
    pieces = [Piece(Kind.CONTENT, part if at == 0 else f" {part}") for at, part in enumerate(parts[:cap])]
    silent = max(0, (forced or 0) - len(pieces))
    pieces += [Piece(Kind.SILENT, "")] * silent
    return Reply(tuple(pieces), tuple(vocabulary.encode_words([*parts[:cap], *[PADDING] * silent])), finish)


def tool_words(name: str, arguments: str) -> list[str]:
    """The words that a tool call of an earlier turn has in a prompt: the same tokens that the model made."""
    return [f"{TOOL_CALL}{'_'.join(name.split())}", *arguments.split()]
