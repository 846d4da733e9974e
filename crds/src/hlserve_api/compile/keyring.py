"""ClientKeys and Secrets to keyring shards. Keys come in as text and leave only as digests."""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from hlserve_api.compile.canonical import generation_of
from hlserve_api.routing import (
    DEFAULT_KEYRING_SHARDS,
    KEYRING_SECRET_PREFIX,
    Budget,
    KeyEntry,
    KeyLimits,
    Keyring,
    ShardDigest,
)
from hlserve_api.v1alpha1.client_key import ClientBudget, ClientKey, Credential, KeyEncoding

SHORTEST_KEY_CHARACTERS: Final = 16
SHORTEST_GOOD_KEY_CHARACTERS: Final = 24
LEAST_GOOD_ENTROPY_BITS: Final = 80.0
LONGEST_KEY_CHARACTERS: Final = 4096
"""The router hashes no more of a header than this, so a longer key could never be matched."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEY_TEXT = re.compile(r"[\x21-\x7e]*")


class KeyProblemReason(StrEnum):
    """Reasons of the condition CredentialsResolved; also in `hlserve_api.conditions`."""

    SECRET_MISSING = "SecretMissing"
    DUPLICATE_KEY = "DuplicateKey"
    WEAK_KEY = "WeakKey"
    MALFORMED_KEY = "MalformedKey"
    EXPIRED = "Expired"


@dataclass(frozen=True, slots=True)
class KeyProblem:
    """What is wrong with one credential. `refused`: it is not in the keyring; otherwise a warning."""

    client: str
    credential: str
    reason: KeyProblemReason
    message: str
    refused: bool


@dataclass(frozen=True, slots=True)
class CompiledKeys:
    """The keyring shards by number, their digests for the routing table, and the problems found."""

    keyrings: tuple[Keyring, ...]
    problems: tuple[KeyProblem, ...]

    @property
    def shards(self) -> tuple[ShardDigest, ...]:
        """Name and content digest of each shard, for the routing table."""
        return tuple(
            ShardDigest(name=f"{KEYRING_SECRET_PREFIX}{number}", digest=keyring.generation)
            for number, keyring in enumerate(self.keyrings)
        )

    def problems_of(self, client: str) -> tuple[KeyProblem, ...]:
        """The problems of the ClientKey with this name."""
        return tuple(problem for problem in self.problems if problem.client == client)


@dataclass(frozen=True, slots=True)
class _Found:
    """A credential whose digest is known."""

    key: ClientKey
    credential: Credential
    digest: str


def digest(key: str) -> str:
    """Lower-case hexadecimal SHA-256 of the key's UTF-8 bytes."""
    return hashlib.sha256(key.encode()).hexdigest()


def fingerprint(digest: str) -> str:
    """The part of a digest that status and logs may show."""
    return digest[:8]


def shard_of(digest: str, shards: int) -> int:
    """Number of the shard that holds a digest: its first eight bytes modulo the number of shards."""
    return int(digest[:16], 16) % shards


def entropy_bits(key: str) -> float:
    """Shannon estimate of a key's entropy in bits: length times entropy per character, from the key's own frequencies.

    Low for repeated characters and short keys; it cannot see dictionary words.
    """
    if not key:
        return 0.0
    counts = Counter(key)
    return -sum(count * math.log2(count / len(key)) for count in counts.values())


def _problem(
    found: ClientKey, credential: Credential, reason: KeyProblemReason, text: str, *, refused: bool
) -> KeyProblem:
    return KeyProblem(found.name, credential.id, reason, text, refused)


def _plain_key_problem(key: ClientKey, credential: Credential, text: str) -> KeyProblem | None:
    if not _KEY_TEXT.fullmatch(text) or len(text) > LONGEST_KEY_CHARACTERS:
        return _problem(
            key,
            credential,
            KeyProblemReason.MALFORMED_KEY,
            f"the key must be at most {LONGEST_KEY_CHARACTERS} printable ASCII characters without spaces, or no client could "
            "send it in a header: make a new one with `hlserve keys new`",
            refused=True,
        )
    if len(text) < SHORTEST_KEY_CHARACTERS:
        return _problem(
            key,
            credential,
            KeyProblemReason.WEAK_KEY,
            f"the key has {len(text)} characters, fewer than {SHORTEST_KEY_CHARACTERS}, and is refused: make a new one with "
            "`hlserve keys new`",
            refused=True,
        )
    if len(text) < SHORTEST_GOOD_KEY_CHARACTERS or entropy_bits(text) < LEAST_GOOD_ENTROPY_BITS:
        return _problem(
            key,
            credential,
            KeyProblemReason.WEAK_KEY,
            "the key works but could be guessed: it is short or repeats itself; make a new one with `hlserve keys new`",
            refused=False,
        )
    return None


def _read(
    key: ClientKey, credential: Credential, secrets: Mapping[tuple[str, str], str]
) -> tuple[_Found | None, KeyProblem | None]:
    name, field = credential.secret(key.name)
    text = secrets.get((name, field))
    if text is None:
        problem = _problem(
            key,
            credential,
            KeyProblemReason.SECRET_MISSING,
            f"there is no Secret {name} with the key {field}: create it, or correct credentials[{credential.id}].secretRef",
            refused=True,
        )
        return None, problem
    # A Secret made from a file ends with the file's newline, which no client can send.
    text = text.rstrip("\r\n")
    if credential.encoding is KeyEncoding.SHA256:
        if _DIGEST.fullmatch(text):
            return _Found(key, credential, text), None
        problem = _problem(
            key,
            credential,
            KeyProblemReason.MALFORMED_KEY,
            f"Secret {name}, key {field}, must hold 64 lower-case hexadecimal digits, because the encoding is SHA256: store the "
            "key's SHA-256, or set encoding: Plain",
            refused=True,
        )
        return None, problem
    weak = _plain_key_problem(key, credential, text)
    if weak is not None and weak.refused:
        return None, weak
    return _Found(key, credential, digest(text)), weak


def _duplicate(found: _Found, others: Sequence[_Found]) -> KeyProblem:
    names = ", ".join(sorted(f"{each.key.name}/{each.credential.id}" for each in others))
    return _problem(
        found.key,
        found.credential,
        KeyProblemReason.DUPLICATE_KEY,
        f"the same key is also in {names}, so it is not clear whose it is, and all of them are refused: give each its own key",
        refused=True,
    )


def _expired(found: _Found, now: datetime) -> KeyProblem | None:
    end = found.credential.not_after
    if end is None or end > now:
        return None
    # It stays in the keyring, so that the router can say key_expired rather than invalid_key.
    return _problem(
        found.key,
        found.credential,
        KeyProblemReason.EXPIRED,
        f"the key expired at {end.isoformat()}: make a new one with `hlserve keys new`, or remove the credential",
        refused=False,
    )


def _budget(budget: ClientBudget | None) -> Budget | None:
    if budget is None:
        return None
    return Budget(tokens=budget.tokens, period=budget.period, on_exhausted=budget.on_exhausted)


def _entry(found: _Found) -> KeyEntry:
    spec = found.key.spec
    return KeyEntry(
        digest=found.digest,
        client=found.key.name,
        credential=found.credential.id,
        tenant=spec.tenant,
        class_name=spec.workload_class_ref.name,
        allowed_classes=spec.allowed_classes,
        models=spec.models,
        limits=KeyLimits(**spec.limits.model_dump()),
        budget=_budget(spec.budget),
        not_before=found.credential.not_before,
        not_after=found.credential.not_after,
        suspended=spec.suspended,
    )


def _keyring(entries: Sequence[KeyEntry]) -> Keyring:
    keyring = Keyring(generation="", keys=tuple(sorted(entries, key=lambda entry: entry.digest)))
    return keyring.model_copy(update={"generation": generation_of(keyring)})


def compile_keyrings(
    keys: Sequence[ClientKey],
    secrets: Mapping[tuple[str, str], str],
    *,
    now: datetime,
    shards: int = DEFAULT_KEYRING_SHARDS,
) -> CompiledKeys:
    """The keyring shards of all ClientKeys; `secrets` maps (Secret name, key) to its text.

    Every shard exists, empty or not. Credentials that are refused are left out and reported; nothing raises. Two credentials with
    the same key are both refused, whoever came first.
    """
    problems: list[KeyProblem] = []
    by_digest: dict[str, list[_Found]] = {}
    for key in sorted(keys, key=lambda each: each.name):
        for credential in key.spec.credentials:
            found, problem = _read(key, credential, secrets)
            if problem is not None:
                problems.append(problem)
            if found is not None:
                by_digest.setdefault(found.digest, []).append(found)
    sharded: list[list[KeyEntry]] = [[] for _ in range(shards)]
    for key_digest, holders in by_digest.items():
        if len(holders) > 1:
            problems.extend(_duplicate(one, [other for other in holders if other is not one]) for one in holders)
            continue
        expired = _expired(holders[0], now)
        if expired is not None:
            problems.append(expired)
        sharded[shard_of(key_digest, shards)].append(_entry(holders[0]))
    ordered = sorted(problems, key=lambda problem: (problem.client, problem.credential, problem.reason))
    return CompiledKeys(tuple(_keyring(entries) for entries in sharded), tuple(ordered))
