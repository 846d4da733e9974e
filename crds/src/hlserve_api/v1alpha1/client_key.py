"""ClientKey: who calls, in which class, with which limits. The keys themselves are in Secrets, never here."""

from enum import StrEnum
from typing import Annotated

from pydantic import AwareDatetime, Field, StringConstraints

from hlserve_api.routing import BudgetPeriod, OnExhausted
from hlserve_api.v1alpha1.meta import (
    LIST_SET,
    Conditions,
    CustomResource,
    KindNames,
    Label,
    ModelName,
    Node,
    PrinterColumn,
    Rule,
    SecretKeyReference,
    int32,
    list_map,
)

GENERATED_SECRET_KEY = "key"
"""Key within the Secret that is made for a credential without `secretRef`."""


class WorkloadClassReference(Node):
    """A WorkloadClass in the same namespace."""

    name: Label = Field(description="Name of the WorkloadClass.")


class KeyEncoding(StrEnum):
    """What the Secret holds."""

    PLAIN = "Plain"
    SHA256 = "SHA256"


class Credential(Node):
    """One key of the client; two of them overlap during a rotation."""

    rules = (
        Rule(
            "!has(self.notAfter) || !has(self.notBefore) || timestamp(self.notBefore) < timestamp(self.notAfter)",
            "notBefore must be earlier than notAfter, or the key is never valid",
            ".notAfter",
        ),
    )

    id: Annotated[str, StringConstraints(min_length=1, max_length=32, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = (
        Field(description="Name of the credential, unique in the ClientKey.")
    )
    secret_ref: SecretKeyReference | None = Field(
        default=None,
        description="Secret with the key; unset: Secret `CLIENTKEY-ID`, key `key`, which is made once and owned by the ClientKey.",
    )
    encoding: KeyEncoding = Field(
        default=KeyEncoding.PLAIN,
        description="Plain: the Secret holds the key. SHA256: it holds the lower-case hexadecimal digest of the key.",
    )
    not_before: AwareDatetime | None = Field(
        default=None, description="When the key starts to be valid; unset: at once."
    )
    not_after: AwareDatetime | None = Field(default=None, description="When the key stops being valid; unset: never.")

    def secret(self, client_key: str) -> tuple[str, str]:
        """Name of the Secret and key within it, for the credential of the ClientKey with this name."""
        if self.secret_ref is not None:
            return self.secret_ref.name, self.secret_ref.key
        return f"{client_key}-{self.id}", GENERATED_SECRET_KEY


class ClientLimits(Node):
    """Limits of the client over all its credentials; unset: none."""

    requests_per_minute: Annotated[int, int32(1, 10_000_000)] | None = Field(
        default=None, description="Requests that may start per minute."
    )
    tokens_per_minute: Annotated[int, int32(1, 2_000_000_000)] | None = Field(
        default=None, description="Prompt plus reply tokens per minute."
    )
    max_concurrent: Annotated[int, int32(1, 1_000_000)] | None = Field(default=None, description="Requests at once.")


class ClientBudget(Node):
    """Tokens in a calendar period (UTC). Needs a limits store that outlives the router."""

    tokens: int = Field(description="Prompt plus reply tokens per period.", ge=1, le=2**53)
    period: BudgetPeriod = Field(default=BudgetPeriod.DAY, description="Day or Month, in UTC.")
    on_exhausted: OnExhausted = Field(
        default=OnExhausted.REJECT,
        description="Reject: 429 budget_exhausted. Demote: requests run in the key's lowest allowed class.",
    )


class ClientKeySpec(Node):
    """Wanted rights of a client."""

    tenant: str = Field(
        default="", description="Tenant that the client belongs to, for fairness and reports.", max_length=63
    )
    workload_class_ref: WorkloadClassReference = Field(description="Class of the client's requests.")
    allowed_classes: Annotated[tuple[Label, ...], LIST_SET] = Field(
        default=(),
        description="Classes that `x-hlserve-class` may choose; empty: any class of a lower intent.",
        max_length=16,
    )
    models: Annotated[tuple[ModelName, ...], LIST_SET] = Field(
        default=(), description="Models that the client may use; empty: all.", max_length=64
    )
    credentials: Annotated[tuple[Credential, ...], list_map("id")] = Field(
        description="The client's keys: one, or two during a rotation.", min_length=1, max_length=2
    )
    limits: ClientLimits = Field(default=ClientLimits(), description="Limits of the client.")
    budget: ClientBudget | None = Field(default=None, description="Tokens per calendar period; unset: no budget.")
    suspended: bool = Field(
        default=False, description="Refuse the client with 403 key_suspended, without deleting anything."
    )


class CredentialStatus(Node):
    """What is known of one credential."""

    id: Label = Field(description="The credential.")
    fingerprint: str | None = Field(
        default=None,
        description="First 8 hexadecimal digits of the key's digest.",
        max_length=8,
        pattern=r"^[0-9a-f]{8}$",
    )
    not_after: AwareDatetime | None = Field(default=None, description="When the key stops being valid.")


class ClientKeyStatus(Node):
    """Observed state of a ClientKey."""

    observed_generation: int | None = Field(
        default=None, description="The `metadata.generation` that this status is about.", ge=0, le=2**53
    )
    credentials: Annotated[tuple[CredentialStatus, ...], list_map("id")] = Field(
        default=(), description="The credentials in force.", max_length=2
    )
    keyring_revision: str | None = Field(
        default=None, description="Revision of the keyring at which this key's own entry last changed.", max_length=64
    )
    synced_routers: str | None = Field(
        default=None, description="Routers that know this revision, of all, such as `3/3`.", max_length=15
    )
    last_used_time: AwareDatetime | None = Field(default=None, description="Last request, to within ten minutes.")
    conditions: Conditions = Field(default=(), description="Ready and CredentialsResolved.")


class ClientKey(CustomResource):
    """Who calls, in which class, with which limits. Plain keys are only in Secrets; routers get digests."""

    names = KindNames(kind="ClientKey", plural="clientkeys", singular="clientkey", short="ck")
    columns = (
        PrinterColumn("Class", ".spec.workloadClassRef.name", "string", "Class of the client's requests"),
        PrinterColumn("Tenant", ".spec.tenant", "string", "Tenant of the client"),
        PrinterColumn("Ready", ".status.conditions[?(@.type=='Ready')].status", "string", "Whether the key works"),
        PrinterColumn("Synced", ".status.syncedRouters", "string", "Routers that know the key"),
        PrinterColumn("Used", ".status.lastUsedTime", "date", "Time since the last request"),
        PrinterColumn("Age", ".metadata.creationTimestamp", "date", "Time since creation"),
        PrinterColumn(
            "Reason", ".status.conditions[?(@.type=='Ready')].reason", "string", "Why it works or not", wide=True
        ),
    )

    kind: str = Field(default="ClientKey", description="`ClientKey`.", max_length=63)
    spec: ClientKeySpec = Field(description="Wanted rights.")
    status: ClientKeyStatus = Field(default=ClientKeyStatus(), description="Observed state, written by the operator.")
