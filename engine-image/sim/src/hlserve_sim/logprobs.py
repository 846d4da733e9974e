"""Log probabilities of a simulated reply: invented, but plausible and always the same for the same request.

The word that was said is the most likely one. What it leaves is halved from one alternative to the next, so the probabilities
of a token never add up to more than one.
"""

from hashlib import blake2b
from math import log
from typing import Final

from hlserve_sim.errors import ApiError
from hlserve_sim.lexicon import LEXICON
from hlserve_sim.live import Live

MAX_TOP: Final = 20
"""Alternatives that may be asked for, the said word included: OpenAI's limit for chat."""
LEAST_LIKELY: Final = 0.5
MOST_LIKELY: Final = 0.99

Ranked = list[tuple[str, float]]
"""Words with their natural log probabilities, likeliest first."""


def top_wanted(value: int | None, name: str) -> int:
    """How many alternatives are asked for, checked."""
    top = 0 if value is None else value
    if not 0 <= top <= MAX_TOP:
        raise ApiError(f"{name}: must be from 0 to {MAX_TOP}, not {top}", param=name)
    return top


def ranked(digest: int, at: int, text: str, alternatives: int) -> Ranked:
    """The said `text` of token `at`, then `alternatives` words that were not said."""
    drawn = int.from_bytes(blake2b(text.encode(), digest_size=8, key=(digest + at).to_bytes(16, "big")).digest(), "big")
    chance = LEAST_LIKELY + (MOST_LIKELY - LEAST_LIKELY) * (drawn >> 11) / (1 << 53)
    words, rest, start = [(text, log(chance))], 1.0 - chance, drawn % len(LEXICON)
    lead, said = " " if text.startswith(" ") else "", {text.strip()}
    for word in LEXICON[start:] + LEXICON[:start]:
        if len(words) > alternatives:
            break
        if word not in said:
            said.add(word)
            rest /= 2
            words.append((lead + word, log(rest)))
    return words


def chat_logprobs(live: Live, start: int, stop: int, top: int) -> dict[str, object]:
    """Tokens `start` … `stop` - 1 as chat shows them."""
    content = []
    for at, piece in enumerate(live.reply.pieces[start:stop], start):
        words = ranked(live.digest, at, piece.text, max(0, top - 1))
        content.append({**_entry(*words[0]), "top_logprobs": [_entry(*word) for word in words[:top]]})
    return {"content": content}


def completion_logprobs(live: Live, start: int, stop: int, top: int) -> dict[str, object]:
    """Tokens `start` … `stop` - 1 as completions show them. SGLang gives no text offsets: -1."""
    rows = [
        ranked(live.digest, at, piece.text, max(0, top - 1))
        for at, piece in enumerate(live.reply.pieces[start:stop], start)
    ]
    return {
        "text_offset": [-1] * len(rows),
        "token_logprobs": [words[0][1] for words in rows],
        "tokens": [words[0][0] for words in rows],
        "top_logprobs": [dict(words) for words in rows] if top else [],
    }


def _entry(token: str, logprob: float) -> dict[str, object]:
    return {"token": token, "bytes": list(token.encode()), "logprob": logprob}
