"""How far routers are with a client's credentials. Pure.

A shard's generation moves with every key in it, so it cannot say whether one key is known. A key's own revision is the hash of
its own entries; once every router has had it, a shard that moves on for another key's sake takes nothing back.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hlserve_api.compile.canonical import canonical_json
from hlserve_api.routing import KeyEntry, Keyring
from hlserve_api.v1alpha1.client_key import ClientKey, ClientKeyStatus
from hlserve_operator.reported import RouterReport

REVISION_CHARACTERS: Final = 16


@dataclass(frozen=True, slots=True)
class Entries:
    """A client's credentials in the keyring."""

    entries: tuple[KeyEntry, ...] = ()
    shards: frozenset[str] = frozenset()
    """Names of the shards that hold them."""

    @property
    def revision(self) -> str | None:
        """Hash of the entries; None: there are none."""
        if not self.entries:
            return None
        texts = [canonical_json(entry) for entry in sorted(self.entries, key=lambda each: each.credential)]
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:REVISION_CHARACTERS]


NO_ENTRIES: Final = Entries()


@dataclass(frozen=True, slots=True)
class Sync:
    """What routers know of a client."""

    known: int
    of: int

    @property
    def complete(self) -> bool:
        """Every router knows the newest credentials, and there is at least one."""
        return 0 < self.of <= self.known

    def __str__(self) -> str:
        """As `status.syncedRouters` shows it."""
        return f"{self.known}/{self.of}"


def entries_by_client(keyrings: Mapping[str, Keyring]) -> dict[str, Entries]:
    """Each client's entries over all shards, which are given by name."""
    found: dict[str, Entries] = {}
    for shard, keyring in keyrings.items():
        for entry in keyring.keys:
            former = found.get(entry.client, NO_ENTRIES)
            found[entry.client] = Entries((*former.entries, entry), former.shards | {shard})
    return found


def sync_of(
    key: ClientKey,
    entries: Entries,
    revision: str | None,
    generations: Mapping[str, str],
    reports: Sequence[RouterReport],
) -> Sync:
    """How many routers know `revision`, which is that of `entries`. `generations`: of the newest shards, by name."""
    if was_complete(key.status) and key.status.keyring_revision == revision:
        return Sync(len(reports), len(reports)) if reports else _former(key.status)
    # A credential that went away was in any shard: until all of them are new, some router might still take it.
    removed = {known.id for known in key.status.credentials if known.fingerprint} - {
        entry.credential for entry in entries.entries
    }
    awaited = generations.keys() if removed or not entries.shards else entries.shards
    known = sum(
        report.answered and all(report.keyrings.get(name) == generations[name] for name in awaited)
        for report in reports
    )
    return Sync(known, len(reports))


def was_complete(status: ClientKeyStatus) -> bool:
    """Whether every router knew the revision that the status names."""
    return _former(status).complete


def _former(status: ClientKeyStatus) -> Sync:
    known, slash, of = (status.synced_routers or "").partition("/")
    return Sync(int(known), int(of)) if slash and known.isdecimal() and of.isdecimal() else Sync(0, 0)
