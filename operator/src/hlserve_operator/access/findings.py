"""What is wrong with credentials, and the keyring of those that are right. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from hlserve_api.compile import CompiledKeys, KeyProblem, compile_keyrings, document_json
from hlserve_api.conditions import ConditionReason
from hlserve_api.routing import Keyring
from hlserve_api.v1alpha1.client_key import ClientKey, Credential
from hlserve_operator.access.generated import NAME_CHARACTERS, foreign_owner, was_made
from hlserve_operator.access.observed import SecretView

SHARD_BYTES: Final = 1024 * 1024 - 16 * 1024
"""Largest keyring shard, in bytes: a Secret's data may be 1 MiB, and the rest is for a little growth."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with one credential. `refused`: it is not in the keyring; otherwise a warning."""

    client: str
    credential: str
    reason: ConditionReason
    message: str
    refused: bool = True


@dataclass(frozen=True, slots=True)
class Keys:
    """The compiled keyring and everything that was found on the way."""

    compiled: CompiledKeys
    findings: tuple[Finding, ...]


def compile_keys(
    keys: Sequence[ClientKey],
    secrets: Mapping[str, SecretView],
    *,
    now: datetime,
    shards: int,
    shard_bytes: int = SHARD_BYTES,
) -> Keys:
    """The keyring of all ClientKeys. If a shard would be larger than a Secret may be, the newest clients are left out of it."""
    findings = [
        found for key in keys for credential in key.spec.credentials if (found := _unusable(key, credential, secrets))
    ]
    usable = _without(keys, {(found.client, found.credential) for found in findings})
    texts = _texts(usable, secrets)
    compiled = compile_keyrings(usable, texts, now=now, shards=shards)
    surplus = {each for keyring in compiled.keyrings for each in _surplus(keyring, keys, shard_bytes)}
    if surplus:
        findings += [_full(client, credential) for client, credential in sorted(surplus)]
        compiled = compile_keyrings(_without(usable, surplus), texts, now=now, shards=shards)
    return Keys(compiled, (*findings, *(_finding(problem) for problem in compiled.problems)))


def _finding(problem: KeyProblem) -> Finding:
    return Finding(
        problem.client, problem.credential, ConditionReason(problem.reason), problem.message, problem.refused
    )


def _unusable(key: ClientKey, credential: Credential, secrets: Mapping[str, SecretView]) -> Finding | None:
    """Why a Secret that should be made, or was made, cannot be used; None: the compiler judges it."""
    if credential.secret_ref is not None:
        return None
    name, _ = credential.secret(key.name)
    view = secrets.get(name)
    if view is not None:
        owner = foreign_owner(key, view)
        if owner is None:
            return None
        text = f"Secret {name} belongs to ClientKey {owner}: give this credential another id, or a secretRef"
    elif len(name) > NAME_CHARACTERS:
        text = (
            f"the Secret's name {name[:40]}… would have {len(name)} characters, more than {NAME_CHARACTERS}: give "
            "the credential a secretRef"
        )
    elif was_made(key, credential.id):
        text = (
            f"Secret {name}, which was made for this credential, is gone, and no second key is made in its place: "
            "put it back, or give the credential another id to get a new key"
        )
    else:
        text = f"Secret {name} is about to be made"
    return Finding(key.name, credential.id, ConditionReason.SECRET_MISSING, text)


def _without(keys: Sequence[ClientKey], left_out: set[tuple[str, str]]) -> list[ClientKey]:
    clients = {client for client, _ in left_out}
    return [_only(key, left_out) if key.name in clients else key for key in keys]


def _only(key: ClientKey, left_out: set[tuple[str, str]]) -> ClientKey:
    kept = tuple(each for each in key.spec.credentials if (key.name, each.id) not in left_out)
    return key.model_copy(update={"spec": key.spec.model_copy(update={"credentials": kept})})


def _texts(keys: Sequence[ClientKey], secrets: Mapping[str, SecretView]) -> dict[tuple[str, str], str]:
    texts: dict[tuple[str, str], str] = {}
    for key in keys:
        for credential in key.spec.credentials:
            name, field = credential.secret(key.name)
            view = secrets.get(name)
            if view is not None and field in view.data:
                # Bytes that are no UTF-8 become characters that no key may have: MalformedKey, not an exception.
                texts[name, field] = view.data[field].decode(errors="replace")
    return texts


def _surplus(keyring: Keyring, keys: Sequence[ClientKey], shard_bytes: int) -> list[tuple[str, str]]:
    size = len(document_json(keyring).encode())
    if size <= shard_bytes:
        return []
    made = {key.name: key.metadata.creation_timestamp or _EPOCH for key in keys}
    newest_first = sorted(
        keyring.keys, key=lambda entry: (made[entry.client], entry.client, entry.credential), reverse=True
    )
    surplus: list[tuple[str, str]] = []
    for entry in newest_first:
        if size <= shard_bytes:
            break
        surplus.append((entry.client, entry.credential))
        # What leaving this entry out saves, to within a byte.
        size -= len(document_json(keyring.model_copy(update={"keys": (entry,)})).encode()) - _EMPTY_BYTES
    return surplus


_EMPTY_BYTES: Final = len(document_json(Keyring(generation="0" * 64, keys=())).encode())


def _full(client: str, credential: str) -> Finding:
    return Finding(
        client,
        credential,
        ConditionReason.KEYRING_FULL,
        "the keyring shard that this key belongs to is full, so routers do not learn it: raise the chart's keyring.shards",
    )
