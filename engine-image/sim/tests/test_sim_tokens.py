from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_sim.tokens import FIRST_WORD_ID, Vocabulary

WORDS = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1).filter(
    lambda word: len(word.split()) == 1 == len([word.strip()])
)


@given(st.lists(WORDS))
def test_each_word_is_one_token_and_comes_back(words: list[str]) -> None:
    vocabulary = Vocabulary()
    text = " ".join(words)
    ids = vocabulary.encode(text)
    assert len(ids) == len(text.split())
    assert vocabulary.decode(ids) == " ".join(text.split())


@given(st.lists(st.integers(0, FIRST_WORD_ID - 1)))
def test_numeric_words_are_the_token_ids_they_name(ids: list[int]) -> None:
    assert Vocabulary().encode(" ".join(f"t{number}" for number in ids)) == ids


@pytest.mark.parametrize("word", ["t01", "t", "t-1", "t1x", "t10000000000", "T1", "t٣"])
def test_a_word_that_only_looks_numeric_is_a_word(word: str) -> None:
    vocabulary = Vocabulary()
    assert vocabulary.encode(word) == [FIRST_WORD_ID]
    assert vocabulary.decode([FIRST_WORD_ID]) == word


def test_equal_words_are_equal_tokens_and_different_words_differ() -> None:
    vocabulary = Vocabulary()
    first, second, again = vocabulary.encode("alpha beta alpha")
    assert first == again != second


def test_beyond_the_limit_words_are_hashed_and_memory_stays_bounded() -> None:
    vocabulary = Vocabulary(max_words=2)
    ids = vocabulary.encode("one two three four three")
    assert vocabulary.size == 2
    assert ids[2] == ids[4] != ids[3]
    assert all(0 <= number < 1 << 63 for number in ids)
    assert vocabulary.decode(ids[:2]) == "one two"


def test_a_prompt_of_32k_words_is_read_in_milliseconds() -> None:
    vocabulary = Vocabulary()
    text = " ".join(f"t{number % 5000}" for number in range(32_768))
    vocabulary.encode(text)
    started = process_time()
    vocabulary.encode(text)
    assert process_time() - started < 0.05
