"""Tokens of the simulator: a whitespace-separated word is a token, `t123` is the token id 123, equality is exact."""

from collections.abc import Iterable, Sequence
from hashlib import blake2b

FIRST_WORD_ID = 1_000_000_000
"""Ids below are numeric tokens (`t0` … `t999999999`), ids from here on are words in the order in which they were seen."""
MAX_WORDS = 4_000_000
"""Distinct words remembered, numeric ones included; later words get a 62-bit hash as id and cannot be turned back into text."""
_HASHED_BIT = 1 << 62


class _WordIds(dict[str, int]):
    """Word to id; a missing word gets the next id. A dict subclass, so that `map` runs at C speed over long prompts."""

    __slots__ = ("limit", "words")

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.words: list[str] = []

    def __missing__(self, word: str) -> int:
        if word[0] == "t" and len(word) < 11 and word[1:].isdecimal() and word == f"t{int(word[1:])}":
            if len(self) < self.limit:
                self[word] = int(word[1:])
            return int(word[1:])
        if len(self) >= self.limit:
            return _HASHED_BIT | int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "big") >> 2
        number = FIRST_WORD_ID + len(self.words)
        self.words.append(word)
        self[word] = number
        return number


class Vocabulary:
    """The words one engine has seen."""

    __slots__ = ("_ids",)

    def __init__(self, max_words: int = MAX_WORDS) -> None:
        self._ids = _WordIds(max_words)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        return list(map(self._ids.__getitem__, text.split()))

    def encode_words(self, words: Iterable[str]) -> list[int]:
        """Token ids of words that hold no whitespace."""
        return list(map(self._ids.__getitem__, words))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`; an id that stands for no known word reads `<id>`."""
        words = self._ids.words
        limit = FIRST_WORD_ID + len(words)
        return " ".join(
            words[token - FIRST_WORD_ID]
            if FIRST_WORD_ID <= token < limit
            else f"t{token}"
            if 0 <= token < FIRST_WORD_ID
            else f"<{token}>"
            for token in tokens
        )

    @property
    def size(self) -> int:
        """Distinct words seen."""
        return len(self._ids.words)
