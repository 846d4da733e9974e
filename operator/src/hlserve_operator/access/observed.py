"""What the plan of access starts from: one frozen value, read before and not changed while planning."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hlserve_api.v1alpha1.client_key import ClientKey
from hlserve_api.v1alpha1.serving_pool import ServingPool
from hlserve_api.v1alpha1.workload_class import WorkloadClass
from hlserve_capacity.derive_types import DerivedPool
from hlserve_operator.caps import Caps
from hlserve_operator.refs import Ref
from hlserve_operator.reported import RouterReport


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """What routing needs to know of one pool."""

    pool: ServingPool
    derived: DerivedPool
    """Of the revision that serves."""
    ready_replicas: int = 0
    """Engine pods that are ready and do not drain."""
    draining: tuple[str, ...] = ()
    """UIDs of the pods that get no new requests."""
    caps: Mapping[str, Caps] = field(default_factory=dict)
    """By pod UID: what it may have in flight by the revision that it is of; absent: that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretView:
    """One Secret that a ClientKey or a pool refers to, or that was made for a ClientKey."""

    name: str
    data: Mapping[str, bytes] = field(repr=False)
    """Decoded from base64. Never shown: not in a log, not in a traceback's representation."""
    owner_uid: str = ""
    """UID of the ClientKey that controls it (`ownerReferences` with `controller: true`); empty: nobody."""
    owner_name: str = ""
    """Name of that ClientKey."""
    generated: bool = False
    """It carries `GENERATED_LABEL`: the operator made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessObserved:
    """All that access depends on, at one moment. Objects that are being deleted are among it; the plan leaves them out."""

    namespace: str
    pools: tuple[PoolFacts, ...] = ()
    classes: tuple[WorkloadClass, ...] = ()
    keys: tuple[ClientKey, ...] = ()
    secrets: Mapping[str, SecretView] = field(default_factory=dict)
    """By name: every Secret that `wanted_secrets` names and that exists, and every one with `GENERATED_LABEL`."""
    reports: tuple[RouterReport, ...] = ()
    """One for each router pod that is ready, answered or not."""
    documents: frozenset[Ref] = frozenset()
    """The ConfigMaps and Secrets that exist with `DOCUMENT_LABEL`."""
    taken: frozenset[Ref] = frozenset()
    """Somebody else's objects under the names of documents: they are left alone."""
    stored_table: str | None = None
    """`table.json` as it is stored; None: there is none."""
    denied: Mapping[str, str] = field(default_factory=dict)
    """Why a resource (`secrets`, `servingpools`, `workloadclasses`, `clientkeys`) could not be read. What would follow from it is left
    as it is: an unreadable Secret must not revoke a key."""
    pruned: Mapping[str, str] = field(default_factory=dict)
    """Why the installed CRD of a kind (`WorkloadClass`, `ClientKey`) is too old, by kind."""
