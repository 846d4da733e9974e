"""sglang-router's `cache_aware` policy, for runs without a clock. Pure.

Written from the description in its documentation and source (sgl-model-gateway, the 0.3 line). A request goes to the engine that was
last sent the longest prefix of its text, if that is more than `cache_threshold` of it; else to the engine with the fewest requests
in flight. If requests in flight differ by more than both `balance_abs_threshold` and `balance_rel_threshold`, it goes to the engine
with the fewest whatever its text. The router knows requests only: neither their tokens, nor what an engine has evicted.

It compares characters, this compares tokens: the clients' tokens are words of the same length. Its bound on the tree
(`--max-tree-size`, 2^26 characters an engine, checked once a minute) is above what all sessions of a run write, so nothing is
evicted here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_TREE_TOKENS = (1 << 26) // 5
"""`--max-tree-size` in tokens of five characters."""


@dataclass(frozen=True, slots=True)
class CacheAwareRules:
    """The options of the same names, with the defaults of its command line."""

    cache_threshold: float = 0.3
    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5


class TreeFullError(RuntimeError):
    """A run wrote more text than the peer's tree holds: what it would evict is not modelled."""


@dataclass(slots=True, eq=False)
class _Node:
    tokens: Sequence[int]
    engine: int
    """Index of the engine that was sent this text last."""
    children: "dict[int, _Node]" = field(default_factory=dict)


class CacheAware:
    """The policy over `engines` engines, told of every request's start and end."""

    def __init__(self, engines: int, rules: CacheAwareRules | None = None) -> None:
        self._rules = rules or CacheAwareRules()
        self._loads = [0] * engines
        self._root = _Node((), 0)
        self.tree_tokens = 0
        """Tokens in the tree."""

    def take(self, prompt: Sequence[int]) -> int:
        """The engine for a request, by its index. Raises TreeFullError."""
        lightest = self._loads.index(min(self._loads))
        engine = lightest
        if not self._imbalanced():
            matched, owner = self._longest(prompt)
            if prompt and matched / len(prompt) > self._rules.cache_threshold:
                engine = owner
        self._insert(prompt, engine)
        self._loads[engine] += 1
        return engine

    def give_back(self, engine: int) -> None:
        """A request ended."""
        self._loads[engine] -= 1

    def _imbalanced(self) -> bool:
        most, least = max(self._loads), min(self._loads)
        rules = self._rules
        return most - least > rules.balance_abs_threshold and most > least * rules.balance_rel_threshold

    def _longest(self, prompt: Sequence[int]) -> tuple[int, int]:
        """How many tokens of the prompt the tree has, and the engine that was sent them."""
        node, at = self._root, 0
        while at < len(prompt) and (child := node.children.get(prompt[at])) is not None:
            node = child
            shared = _shared(node.tokens, prompt, at)
            at += shared
            if shared < len(node.tokens):
                break
        return at, node.engine

    def _insert(self, prompt: Sequence[int], engine: int) -> None:
        node, at = self._root, 0
        while at < len(prompt):
            child = node.children.get(prompt[at])
            if child is None:
                node.children[prompt[at]] = _Node(prompt[at:], engine)
                self.tree_tokens += len(prompt) - at
                break
            shared = _shared(child.tokens, prompt, at)
            if shared < len(child.tokens):
                upper = _Node(child.tokens[:shared], child.engine)
                child.tokens = child.tokens[shared:]
                upper.children[child.tokens[0]] = child
                node.children[prompt[at]] = child = upper
            child.engine = engine
            node, at = child, at + shared
        if self.tree_tokens > MAX_TREE_TOKENS:
            raise TreeFullError(f"{self.tree_tokens} tokens are more than the peer's tree holds: run a shorter load")


def _shared(known: Sequence[int], prompt: Sequence[int], at: int) -> int:
    """How many tokens of `known` stand in `prompt` from `at` on."""
    most = min(len(known), len(prompt) - at)
    if known[:most] == prompt[at : at + most]:
        return most
    low, high = 0, most
    while low + 1 < high:
        middle = (low + high) // 2
        if known[low:middle] == prompt[at + low : at + middle]:
            low = middle
        else:
            high = middle
    return low
