"""What the plan of access asks for. Carried out in the order of the fields; a failure of one does not stop the others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hlserve_operator.refs import Ref
from hlserve_operator.state import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKeySecret:
    """A Secret with a key that is yet to be made. To be *created*, never applied: if it exists by then, that one stays.

    `manifest_with` in `hlserve_operator.access.generated` turns it into the manifest.
    """

    ref: Ref
    owner: Ref
    """The ClientKey that the Secret is made for."""
    owner_uid: str
    credential: str
    """Id of the credential."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusPatch:
    """A JSON merge patch of an object's `status`, which differs from what the object has; null removes a field."""

    ref: Ref
    status: Mapping[str, Any]
    conditions: Mapping[str, str]
    """Type to `status/reason` of the conditions that the patch changes, for events; empty: only figures change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessEvent:
    """Something to be told on an object as a Kubernetes Event: once, however often it is asked for in the same words."""

    ref: Ref
    reason: str
    message: str
    warning: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessActions:
    """Everything that one reconcile of access does. Documents and deletions are done at once; of Secrets and statuses, in their order,
    as many as a short time allows."""

    documents: tuple[Manifest, ...] = ()
    """To be applied if they differ from what is stored, in this order: keyring shards first, so that revocation never waits."""
    new_secrets: tuple[NewKeySecret, ...] = ()
    delete: tuple[Ref, ...] = ()
    """Documents and generated Secrets that stand for nothing any more."""
    statuses: tuple[StatusPatch, ...] = ()
    """At most `STATUSES_A_RUN`, the important ones first."""
    events: tuple[AccessEvent, ...] = ()
    requeue_after_seconds: float | None = None
    """When to plan again although nothing happens: at the next start or end of a key, or at once for what was left over."""
