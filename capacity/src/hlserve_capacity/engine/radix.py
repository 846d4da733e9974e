"""A radix tree over token ids: which prefix of a prompt is already in KV, who needs it, what may go.

Edges are bytes of eight a token, so that a comparison is one `memcmp` however long the prompt is.
"""

import heapq
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

TOKEN_BYTES = 8


def token_key(tokens: Sequence[int]) -> bytes:
    """The bytes form of token ids. Ids are signed 64-bit; others raise OverflowError."""
    return (tokens if isinstance(tokens, array) and tokens.typecode == "q" else array("q", tokens)).tobytes()


def common_prefix_tokens(text: bytes, start: int, edge: bytes) -> int:
    """Tokens that `edge` shares with `text` from byte `start` on."""
    limit = min(len(edge), len(text) - start) // TOKEN_BYTES
    if text.startswith(edge[: limit * TOKEN_BYTES], start):
        return limit
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        if text.startswith(edge[low * TOKEN_BYTES : middle * TOKEN_BYTES], start + low * TOKEN_BYTES):
            low = middle
        else:
            high = middle
    return low


@dataclass(slots=True, eq=False)
class Node:
    """One edge and the node below it. `readers`: running requests on it or below; `holders`: idle sessions likewise."""

    edge: bytes
    parent: "Node | None"
    children: dict[bytes, "Node"] = field(default_factory=dict)
    readers: int = 0
    holders: int = 0
    used_at: int = 0
    """Logical clock of the last use, the LRU order."""
    attached: bool = True

    @property
    def tokens(self) -> int:
        return len(self.edge) // TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Match:
    """The longest prefix found: `node` ends at or below the last matched token."""

    node: Node
    tokens: int


class RadixTree:
    """Prefix cache with exact token match, reference counts and LRU eviction of leaves.

    Counters hold between calls: `total_tokens` = read + held only + evictable.
    """

    def __init__(self) -> None:
        self.root = Node(b"", None)
        self.total_tokens = 0
        self.read_tokens = 0
        """Tokens under at least one running request."""
        self.protected_tokens = 0
        """Tokens under a running request or an idle session."""
        self.version = 0
        """Changes whenever a match may change."""
        self._clock = count(1)
        self._leaves: list[tuple[int, int, Node]] = []
        self._ticket = count()

    @property
    def evictable_tokens(self) -> int:
        return self.total_tokens - self.protected_tokens

    @property
    def held_tokens(self) -> int:
        """Tokens that only idle sessions protect."""
        return self.protected_tokens - self.read_tokens

    def match_tokens(self, key: bytes, limit_tokens: int) -> int:
        """Length of the longest cached prefix of `key`, at most `limit_tokens`. Changes nothing."""
        node, at = self.root, 0
        end = min(len(key), limit_tokens * TOKEN_BYTES)
        while at < end:
            child = node.children.get(key[at : at + TOKEN_BYTES])
            if child is None:
                break
            if key.startswith(child.edge, at):
                node, at = child, at + len(child.edge)
                continue
            at += common_prefix_tokens(key, at, child.edge) * TOKEN_BYTES
            break
        return min(at, end) // TOKEN_BYTES

    def match(self, key: bytes, limit_tokens: int) -> Match:
        """The longest cached prefix, its node cut to end exactly there, and touched as just used."""
        node, at = self.root, 0
        end = min(len(key) // TOKEN_BYTES, limit_tokens) * TOKEN_BYTES
        stamp = next(self._clock)
        while at < end:
            child = node.children.get(key[at : at + TOKEN_BYTES])
            if child is None:
                break
            if at + len(child.edge) <= end and key.startswith(child.edge, at):
                at += len(child.edge)
            else:
                shared = common_prefix_tokens(key[:end], at, child.edge)
                child = self._split(child, shared)
                at += shared * TOKEN_BYTES
                child.used_at = stamp
                return Match(child, at // TOKEN_BYTES)
            child.used_at = stamp
            node = child
        return Match(node, at // TOKEN_BYTES)

    def insert(self, key: bytes) -> tuple[Node, int]:
        """Put `key` in. Returns the node that ends it and how many of its tokens were there before."""
        found = self.match(key, len(key) // TOKEN_BYTES)
        rest = key[found.tokens * TOKEN_BYTES :]
        if not rest:
            return found.node, found.tokens
        leaf = Node(rest, found.node, used_at=next(self._clock))
        found.node.children[rest[:TOKEN_BYTES]] = leaf
        self.total_tokens += leaf.tokens
        self.version += 1
        self._offer(leaf)
        return leaf, found.tokens

    def acquire(self, node: Node) -> None:
        """A running request reads `node` and everything above it."""
        at: Node | None = node
        while at is not None and at.parent is not None:
            if at.readers == 0:
                self.read_tokens += at.tokens
                if at.holders == 0:
                    self.protected_tokens += at.tokens
            at.readers += 1
            at = at.parent

    def release(self, node: Node) -> None:
        """Undo one `acquire`."""
        at: Node | None = node
        while at is not None and at.parent is not None:
            at.readers -= 1
            if at.readers == 0:
                self.read_tokens -= at.tokens
                if at.holders == 0:
                    self.protected_tokens -= at.tokens
                    self._offer(at)
            at = at.parent

    def hold(self, node: Node) -> None:
        """An idle session protects `node` and everything above it."""
        at: Node | None = node
        while at is not None and at.parent is not None:
            if at.holders == 0 and at.readers == 0:
                self.protected_tokens += at.tokens
            at.holders += 1
            at = at.parent

    def unhold(self, node: Node) -> None:
        """Undo one `hold`."""
        at: Node | None = node
        while at is not None and at.parent is not None:
            at.holders -= 1
            if at.holders == 0 and at.readers == 0:
                self.protected_tokens -= at.tokens
                self._offer(at)
            at = at.parent

    def evict(self, tokens: int) -> int:
        """Remove the least recently used unprotected leaves until `tokens` are gone. Returns how many went."""
        gone = 0
        while gone < tokens and self._leaves:
            used_at, _, node = heapq.heappop(self._leaves)
            parent = node.parent
            if parent is None or not self._is_victim(node):
                continue
            if node.used_at != used_at:
                self._offer(node)
                continue
            del parent.children[node.edge[:TOKEN_BYTES]]
            node.attached = False
            gone += node.tokens
            self.total_tokens -= node.tokens
            self.version += 1
            self._offer(parent)
        return gone

    def clear(self) -> None:
        """Forget everything. Only without readers and holders."""
        self.root = Node(b"", None)
        self.total_tokens = self.read_tokens = self.protected_tokens = 0
        self._leaves.clear()
        self.version += 1

    def _is_victim(self, node: Node) -> bool:
        return node.attached and node.parent is not None and not (node.readers or node.holders or node.children)

    def _offer(self, node: Node) -> None:
        if self._is_victim(node):
            heapq.heappush(self._leaves, (node.used_at, next(self._ticket), node))

    def _split(self, node: Node, tokens: int) -> Node:
        """Cut an edge after `tokens`; the upper part is new and keeps the lower part's protection."""
        cut = tokens * TOKEN_BYTES
        parent = node.parent or self.root
        upper = Node(
            node.edge[:cut],
            parent,
            children={node.edge[cut : cut + TOKEN_BYTES]: node},
            readers=node.readers,
            holders=node.holders,
            used_at=node.used_at,
        )
        parent.children[upper.edge[:TOKEN_BYTES]] = upper
        node.edge = node.edge[cut:]
        node.parent = upper
        return upper
