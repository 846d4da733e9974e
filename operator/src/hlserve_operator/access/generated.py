"""Secrets for credentials that name none: which to make, which stand for nothing any more. Pure, but for the key, which is given."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from hlserve_api.v1alpha1.client_key import GENERATED_SECRET_KEY, ClientKey
from hlserve_api.v1alpha1.serving_pool import ServingPool
from hlserve_operator.access.actions import NewKeySecret
from hlserve_operator.access.labels import GENERATED_LABEL, release_labels
from hlserve_operator.access.observed import AccessObserved, SecretView
from hlserve_operator.refs import Ref
from hlserve_operator.state import Manifest

NAME_CHARACTERS: Final = 253
"""Longest name of a Kubernetes object."""


def wanted_secrets(keys: Sequence[ClientKey], pools: Sequence[ServingPool]) -> frozenset[str]:
    """Names of every Secret that access reads: of credentials, given or made, and of the link to engines."""
    names = {credential.secret(key.name)[0] for key in keys for credential in key.spec.credentials}
    for pool in pools:
        if pool.spec.engine.api_key_secret_ref is not None:
            names.add(pool.spec.engine.api_key_secret_ref.name)
        tls = pool.spec.engine.tls
        if tls is not None:
            names.add(tls.secret_name if tls.ca_secret_ref is None else tls.ca_secret_ref.name)
    return frozenset(names)


def was_made(key: ClientKey, credential: str) -> bool:
    """Whether the credential had a key at any time. One is never made twice: its client would be locked out without a word."""
    return any(known.id == credential and known.fingerprint is not None for known in key.status.credentials)


def new_secrets(keys: Sequence[ClientKey], secrets: Mapping[str, SecretView]) -> Iterator[NewKeySecret]:
    """The Secrets that are to be made, for credentials without `secretRef` that never had a key."""
    for key in keys:
        for credential in key.spec.credentials:
            name, _ = credential.secret(key.name)
            wanted = credential.secret_ref is None and name not in secrets and len(name) <= NAME_CHARACTERS
            if wanted and not was_made(key, credential.id):
                yield NewKeySecret(
                    ref=Ref("v1", "Secret", name),
                    owner=Ref(key.api_version, key.kind, key.name),
                    owner_uid=key.metadata.uid,
                    credential=credential.id,
                )


def leftover_secrets(keys: Sequence[ClientKey], observed: AccessObserved) -> Iterator[Ref]:
    """Made Secrets whose credential is gone from its ClientKey: if its id came back, it must not bring an old key back to life.

    Those whose ClientKey is gone are the garbage collector's. One that a credential or pool names by `secretRef` stays.
    """
    live = {key.metadata.uid for key in keys}
    wanted = wanted_secrets(keys, [facts.pool for facts in observed.pools])
    for name, view in sorted(observed.secrets.items()):
        if view.generated and view.owner_uid in live and name not in wanted:
            yield Ref("v1", "Secret", name)


def foreign_owner(key: ClientKey, view: SecretView) -> str | None:
    """Name of another ClientKey that a made Secret belongs to: `a-b` with credential `c` and `a` with `b-c` want the same one.

    Also the case of a ClientKey that was deleted and made anew under its name, until its old Secret is collected.
    """
    return view.owner_name if view.owner_uid not in ("", key.metadata.uid) else None


def manifest_with(action: NewKeySecret, key: str, *, namespace: str, release: str) -> Manifest:
    """The Secret that holds `key`. It goes when its ClientKey goes."""
    return {
        "apiVersion": action.ref.api_version,
        "kind": action.ref.kind,
        "metadata": {
            "name": action.ref.name,
            "namespace": namespace,
            "labels": {**release_labels(release), GENERATED_LABEL: action.owner_uid},
            "ownerReferences": [
                {
                    "apiVersion": action.owner.api_version,
                    "kind": action.owner.kind,
                    "name": action.owner.name,
                    "uid": action.owner_uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "type": "Opaque",
        "data": {GENERATED_SECRET_KEY: base64.b64encode(key.encode()).decode()},
    }
