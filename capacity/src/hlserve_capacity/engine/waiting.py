"""Why requests wait, and how much of the pool admission has given away: facts for an operator, read on demand.

Nothing here decides anything: reading it leaves every later decision as it was.
"""

from dataclasses import dataclass
from enum import StrEnum

from hlserve_capacity.engine.radix import TOKEN_BYTES, RadixTree, common_prefix_tokens


class WaitReason(StrEnum):
    """What keeps the first waiting request out of the batch."""

    NONE = "none"
    """Nothing: it starts with the next step."""
    SLOTS = "slots"
    """The batch is full."""
    ADMISSION = "admission"
    """The sessions that are admitted leave too little of the KV bound."""
    KV = "kv"
    """Its KV does not fit beside what runs."""
    BUDGET = "budget"
    """The step takes no more prompt tokens, or none at all in a decode-only stage."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The reason with the amount that is there and the amount that is needed: requests for SLOTS, else tokens."""

    reason: WaitReason
    headroom: int
    need: int


@dataclass(frozen=True, slots=True)
class Admission:
    """KV tokens that admitted requests and held sessions count for, and the bound on them."""

    tokens: int
    bound_tokens: int


def matched_and_loose_tokens(tree: RadixTree, key: bytes, limit_tokens: int) -> tuple[int, int]:
    """Length of the longest cached prefix of `key`, and how many of its tokens nobody protects. Changes nothing."""
    node, at, loose = tree.root, 0, 0
    end = min(len(key) // TOKEN_BYTES, limit_tokens) * TOKEN_BYTES
    while at < end:
        child = node.children.get(key[at : at + TOKEN_BYTES])
        if child is None:
            break
        shared = min(common_prefix_tokens(key, at, child.edge), (end - at) // TOKEN_BYTES)
        at += shared * TOKEN_BYTES
        if not (child.readers or child.holders):
            loose += shared
        if shared < child.tokens:
            break
        node = child
    return at // TOKEN_BYTES, loose
