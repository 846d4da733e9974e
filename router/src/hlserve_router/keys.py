"""Step 1: the credentials in force, whose key it is, and whether it may be used now. Pure."""

from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from hlserve_api.answers import Reason
from hlserve_api.routing import KeyEntry, Keyring
from hlserve_router.errors import Refusal

INVALID_KEY: Final = "This key is not known or was revoked: ask the platform team for a ClientKey."


@dataclass(slots=True, eq=False)
class Credential:
    """A credential with its times as Unix seconds."""

    entry: KeyEntry
    digest: bytes
    valid_from: float
    valid_until: float
    suspended: bool


class Keyrings:
    """The credentials in force, by digest. Each shard replaces its former self at once; revocation never waits."""

    def __init__(self) -> None:
        self._shards: dict[str, Keyring] = {}
        self._by_digest: dict[bytes, Credential] = {}
        self.revision = 0
        """Grows with every shard that is put in force."""

    def apply(self, name: str, keyring: Keyring) -> None:
        """Puts one shard in force."""
        self._shards[name] = keyring
        entries: dict[str, KeyEntry] = {}
        doubled: set[str] = set()
        for shard in self._shards.values():
            for entry in shard.keys:
                if entry.digest in entries and entries[entry.digest].client != entry.client:
                    doubled.add(entry.digest)
                entries[entry.digest] = entry
        for digest in doubled:  # whose key it is cannot be known: both are refused
            del entries[digest]
        credentials = map(_credential, entries.values())
        self._by_digest = {credential.digest: credential for credential in credentials}
        self.revision += 1

    def find(self, digest: bytes) -> Credential | None:
        """The credential with this SHA-256 digest."""
        return self._by_digest.get(digest)

    @property
    def loaded(self) -> bool:
        """True once a shard is in force."""
        return bool(self._shards)

    @property
    def generations(self) -> dict[str, str]:
        """Generation of each shard."""
        return {name: shard.generation for name, shard in self._shards.items()}

    def clients(self) -> frozenset[str]:
        """Names of all clients."""
        return frozenset(credential.entry.client for credential in self._by_digest.values())

    def __len__(self) -> int:
        return len(self._by_digest)


def _credential(entry: KeyEntry) -> Credential:
    return Credential(
        entry,
        bytes.fromhex(entry.digest),
        entry.not_before.timestamp() if entry.not_before is not None else float("-inf"),
        entry.not_after.timestamp() if entry.not_after is not None else float("inf"),
        entry.suspended,
    )


def find_key(keyrings: Keyrings, key: bytes, wall_seconds: float) -> KeyEntry:
    """The credential of a key, if it may be used at this Unix time. Raises Refusal (401, 403)."""
    digest = sha256(key).digest()
    found = keyrings.find(digest)
    if found is None or not compare_digest(found.digest, digest):
        raise Refusal(Reason.INVALID_KEY, INVALID_KEY)
    if found.suspended or not found.valid_from <= wall_seconds < found.valid_until:
        raise _not_now(found, wall_seconds)
    return found.entry


def _not_now(found: Credential, wall_seconds: float) -> Refusal:
    entry = found.entry
    if entry.suspended:
        return Refusal(Reason.KEY_SUSPENDED, f"The client {entry.client!r} is suspended: ask the platform team.")
    if entry.not_before is not None and wall_seconds < found.valid_from:
        return Refusal(Reason.KEY_NOT_YET_VALID, f"This key is valid from {entry.not_before.isoformat()} on.")
    until = entry.not_after.isoformat() if entry.not_after is not None else ""
    return Refusal(Reason.KEY_EXPIRED, f"This key expired at {until}: use its successor.")
