"""The radix tree finds the longest common prefix, protects what is in use, and evicts the least recently used."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlserve_capacity.engine.radix import RadixTree, common_prefix_tokens, token_key
from hlserve_capacity.engine.testing import words

PROMPT = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def longest_common_prefix(known: list[list[int]], prompt: list[int]) -> int:
    best = 0
    for other in known:
        shared = 0
        while shared < min(len(other), len(prompt)) and other[shared] == prompt[shared]:
            shared += 1
        best = max(best, shared)
    return best


@given(known=st.lists(PROMPT, max_size=12), prompt=PROMPT, limit=st.integers(0, 14))
def test_match_is_the_brute_force_longest_common_prefix(known: list[list[int]], prompt: list[int], limit: int) -> None:
    tree = RadixTree()
    for other in known:
        tree.insert(token_key(other))
    expected = min(longest_common_prefix(known, prompt), limit)
    assert tree.match_tokens(token_key(prompt), limit) == expected
    assert tree.match(token_key(prompt), limit).tokens == expected
    assert tree.match_tokens(token_key(prompt), len(prompt)) == longest_common_prefix(known, prompt)


@given(known=st.lists(PROMPT, max_size=12))
def test_the_tree_holds_each_distinct_prefix_once(known: list[list[int]]) -> None:
    tree = RadixTree()
    for other in known:
        tree.insert(token_key(other))
    prefixes = {tuple(other[:length]) for other in known for length in range(1, len(other) + 1)}
    assert tree.total_tokens == tree.evictable_tokens == len(prefixes)


@settings(max_examples=200)
@given(data=st.data(), known=st.lists(PROMPT, min_size=1, max_size=10))
def test_counters_add_up_and_protected_prefixes_survive_any_eviction(
    data: st.DataObject, known: list[list[int]]
) -> None:
    tree = RadixTree()
    read, held = [], []
    for prompt in known:
        leaf, _ = tree.insert(token_key(prompt))
        kind = data.draw(st.sampled_from(["read", "held", "free"]))
        if kind == "read":
            tree.acquire(leaf)
            read.append((prompt, leaf))
        elif kind == "held":
            tree.hold(leaf)
            held.append((prompt, leaf))
        tree.evict(data.draw(st.integers(0, 8)))
        in_use = {tuple(p[:n]) for p, _ in read for n in range(1, len(p) + 1)}
        kept = in_use | {tuple(p[:n]) for p, _ in held for n in range(1, len(p) + 1)}
        assert tree.read_tokens == len(in_use)
        assert tree.protected_tokens == len(kept)
        for safe, _ in read + held:
            assert tree.match_tokens(token_key(safe), len(safe)) == len(safe)
    for _, leaf in read:
        tree.release(leaf)
    for _, leaf in held:
        tree.unhold(leaf)
    assert tree.protected_tokens == 0
    tree.evict(10**6)
    assert tree.total_tokens == 0


@given(text=PROMPT, edge=PROMPT, start=st.integers(0, 3))
def test_common_prefix_of_an_edge_is_counted_token_by_token(text: list[int], edge: list[int], start: int) -> None:
    start = min(start, len(text))
    assert common_prefix_tokens(token_key(text), start * 8, token_key(edge)) == longest_common_prefix(
        [text[start:]], edge
    )


def test_eviction_takes_the_least_recently_used_leaf_and_then_its_parent() -> None:
    tree = RadixTree()
    for prompt in ("shared-old", "shared-new", "other"):
        tree.insert(token_key(words(prompt)))
    tree.match(token_key(words("shared-old")), 10)
    assert tree.evict(1) == len("new"), "the leaf that was used longest ago"
    assert tree.match_tokens(token_key(words("shared-old")), 10) == 10
    assert tree.evict(1) == len("other")
    assert tree.evict(100) == len("shared-old"), "a leaf, and the parent that became one"
    assert tree.total_tokens == 0


def test_a_long_prompt_is_matched_in_microseconds_not_token_by_token() -> None:
    tree = RadixTree()
    prompt = array("q", range(32_000))
    tree.insert(token_key(prompt))
    divergent = prompt[:31_990] + array("q", [7] * 10)
    assert tree.match_tokens(token_key(divergent), 32_000) == 31_990


@pytest.mark.parametrize("tokens", [[-1, 5], [2**63 - 1], [0]], ids=["negative ids", "the largest id", "zero"])
def test_any_signed_64_bit_id_is_a_token(tokens: list[int]) -> None:
    tree = RadixTree()
    tree.insert(token_key(tokens))
    assert tree.match_tokens(token_key(tokens), 10) == len(tokens)


def test_clear_forgets_everything() -> None:
    tree = RadixTree()
    tree.insert(token_key(words("abc")))
    tree.clear()
    assert tree.match_tokens(token_key(words("abc")), 3) == tree.total_tokens == tree.evict(5) == 0
