"""The documents that the operator (or `hlserve up`) writes and the router reads: table, keyring and engine credentials.

All are JSON with camelCase names. Readers ignore unknown fields, so that neighbouring versions work together, and refuse a
higher `schemaVersion` (see `SCHEMA_VERSION`) while they keep the last good document.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

SCHEMA_VERSION: Final = 1

Name = Annotated[str, StringConstraints(min_length=1, max_length=63)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Document(BaseModel):
    """A node of a document: frozen, camelCase on the wire, unknown fields ignored."""

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore", hide_input_in_errors=True
    )


class Mode(StrEnum):
    """What a pool's engines are tuned for."""

    INTERACTIVE = "Interactive"
    HUMAN_LESS = "HumanLess"


class Intent(StrEnum):
    """Who waits for a class's answers."""

    INTERACTIVE = "Interactive"
    AGENT = "Agent"
    BATCH = "Batch"

    @property
    def rank(self) -> int:
        """0 = most urgent (Interactive), 2 = least (Batch); a client may only move to a higher rank."""
        return (Intent.INTERACTIVE, Intent.AGENT, Intent.BATCH).index(self)


class TargetRole(StrEnum):
    """Whether a pool serves a class always (Primary) or only when the primaries are short (Spill)."""

    PRIMARY = "Primary"
    SPILL = "Spill"


class PriorityOrder(StrEnum):
    """Which way an engine's `priority` field counts; None: the field is not sent."""

    NONE = "None"
    HIGHER_FIRST = "HigherFirst"
    LOWER_FIRST = "LowerFirst"


class FairnessBy(StrEnum):
    """Between whom a class's queue is shared."""

    CLIENT = "Client"
    TENANT = "Tenant"


class HeaderOverride(StrEnum):
    """Whether `x-hlserve-class` may lower a request's class."""

    DENY = "Deny"
    LOWER_ONLY = "LowerOnly"


class BudgetPeriod(StrEnum):
    """Calendar period of a budget, in UTC."""

    DAY = "Day"
    MONTH = "Month"


class OnExhausted(StrEnum):
    """What happens to a client that used up its budget."""

    REJECT = "Reject"
    DEMOTE = "Demote"


class Endpoint(Document):
    """One engine replica at a fixed address (the file form; on a cluster EndpointSlices give them)."""

    url: str = Field(description="Base URL without a trailing slash, e.g. http://10.0.0.7:30000.", max_length=512)
    id: str = Field(default="", description="Stable id (pod UID on a cluster); empty: the URL.", max_length=128)
    name: str = Field(
        default="", description="Name in metrics and reports (pod name on a cluster); empty: the id.", max_length=253
    )


class ReplicaCaps(Document):
    """Caps of replicas that run with other settings than the newest of their pool: those of an older revision, during a rollout."""

    endpoints: tuple[str, ...] = Field(description="Endpoint ids that the caps are of.")
    max_in_flight: int | None = Field(default=None, ge=1, description="Requests in flight; unset: no bound.")
    in_flight_tokens: int | None = Field(default=None, ge=1, description="Tokens in flight; unset: no bound.")
    kv_tokens: int | None = Field(
        default=None, ge=1, description="Tokens that the KV cache holds; unset: as the engine says."
    )


class PoolRoute(Document):
    """What the router must know of one ServingPool. Caps are per replica."""

    name: Name = Field(description="ServingPool name.")
    mode: Mode = Field(description="Interactive or HumanLess.")
    model: str = Field(description="Served model name.", max_length=128)
    aliases: tuple[str, ...] = Field(default=(), description="Other names that clients may use for the model.")
    service: str | None = Field(default=None, description="Service whose EndpointSlices list the replicas.")
    endpoints: tuple[Endpoint, ...] = Field(default=(), description="Static replicas; used when `service` is unset.")
    priority_order: PriorityOrder = Field(
        default=PriorityOrder.NONE, description="Which way the engine's priority counts; None: the field is not sent."
    )
    max_in_flight: int | None = Field(
        default=None, ge=1, description="Requests in flight per replica; unset: no bound."
    )
    in_flight_tokens: int | None = Field(
        default=None, ge=1, description="Tokens in flight per replica; unset: no bound."
    )
    kv_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Tokens that the KV cache of a replica holds. A HumanLess pool keeps its active sessions inside it; unset: as the "
        "engine says, and no bound if it does not.",
    )
    replica_caps: tuple[ReplicaCaps, ...] = Field(
        default=(),
        description="Caps in place of the three above, for the endpoints that each names. A router that does not know the field "
        "takes the pool's for all.",
    )
    queue_ttl_milliseconds: int | None = Field(
        default=None, ge=0, description="Longest wait; the smaller of this and the class's counts."
    )
    context_length: int | None = Field(default=None, ge=1, description="Longest prompt plus reply, in tokens.")
    draining: tuple[str, ...] = Field(default=(), description="Endpoint ids that get no new requests.")
    foreign: bool = Field(
        default=False,
        description="The engines are somebody else's (`--engine`): usage is asked for by `stream_options`, and neither "
        "`x-override-rid` nor `priority` is sent.",
    )
    response_store: bool = Field(
        default=False, description="`previous_response_id`, GET and cancel of responses are served."
    )
    allowed_media_domains: tuple[str, ...] = Field(
        default=(), description="Hosts from which http(s) media may be named."
    )


class Target(Document):
    """A pool that a class may use."""

    pool: Name = Field(description="Name of a pool of this table.")
    role: TargetRole = Field(
        default=TargetRole.PRIMARY, description="Primary, or Spill: only when the primaries are short."
    )
    weight: int = Field(default=1, ge=1, le=100, description="Share among targets of the same role.")


class SpillRule(Document):
    """When a class may use its Spill targets: watermarks on queue wait, with hysteresis, or no primary endpoint at all."""

    enter_queue_wait_milliseconds: int = Field(
        default=1000, ge=0, description="Queue wait above which spilling starts, in ms."
    )
    leave_queue_wait_milliseconds: int = Field(
        default=500, ge=0, description="Queue wait below which spilling stops, in ms."
    )
    when_unavailable: bool = Field(default=True, description="Also spill while no primary endpoint is there at all.")


class QueueRule(Document):
    """Bounds of a class's queue in each router."""

    max_depth: int = Field(default=1000, ge=0, description="Most requests that wait.")
    max_bytes: int = Field(default=256 * 1024 * 1024, ge=0, description="Most bytes of bodies that wait.")
    ttl_milliseconds: int = Field(
        default=60_000, ge=0, description="Longest wait, in ms; the smaller of this and the pool's counts."
    )


class ShareRule(Document):
    """Share of a pool's capacity that a class is sure of (min) and may hold (max), in percent."""

    min_percent: int = Field(
        default=0, ge=0, le=100, description="Share that is kept for the class while it has work, in percent."
    )
    max_percent: int = Field(
        default=100, ge=0, le=100, description="Largest share that the class may hold, in percent."
    )


class ClassLimits(Document):
    """Limits of each request or client of a class; unset: none."""

    max_input_tokens: int | None = Field(default=None, ge=1, description="Longest prompt, in tokens.")
    max_output_tokens: int | None = Field(default=None, ge=1, description="Longest reply, in tokens.")
    max_concurrent_per_client: int | None = Field(
        default=None, ge=1, description="Requests that one client may have at once."
    )


class Timeouts(Document):
    """Deadlines of a class's requests."""

    total_seconds: int = Field(ge=0, description="From arrival to the last byte, in s.")
    silence_seconds: int = Field(
        ge=0, description="Longest gap between two bytes of the engine once the reply began, in s."
    )
    peek_milliseconds: int = Field(
        ge=0, description="How long the first event is held back to learn the real status, in ms."
    )
    ping_seconds: int = Field(ge=0, description="Gap after which a silent stream gets a ping, in s.")
    retry_cutoff_seconds: int = Field(
        ge=0, description="A 502 later than this after dispatch tells SDKs not to retry, in s."
    )
    start_seconds: int = Field(ge=0, description="Longest wait for the engine's first byte, in s.")


class ClassRoute(Document):
    """One WorkloadClass as the router applies it."""

    name: Name = Field(description="WorkloadClass name.")
    intent: Intent = Field(description="Who waits for the answers.")
    priority: int = Field(default=0, description="Larger is more urgent.")
    targets: tuple[Target, ...] = Field(description="Pools that the class may use.")
    spill: SpillRule = Field(default=SpillRule(), description="When the class may use its Spill targets.")
    queue: QueueRule = Field(description="Bounds of the class's queue in each router.")
    share: ShareRule = Field(default=ShareRule(), description="The class's share of each of its pools.")
    limits: ClassLimits = Field(default=ClassLimits(), description="Limits of each request or client.")
    timeouts: Timeouts = Field(description="Deadlines of the class's requests.")
    fairness: FairnessBy = Field(default=FairnessBy.CLIENT, description="Between whom the queue is shared.")
    header_override: HeaderOverride = Field(
        default=HeaderOverride.LOWER_ONLY, description="Whether `x-hlserve-class` may lower the class."
    )


class ShardDigest(Document):
    """Name and content digest of one keyring shard, so that a reader knows when it holds them all."""

    name: str = Field(description="Name of the shard's Secret.")
    digest: Digest = Field(description="Generation of the shard.")


class RoutingTable(Document):
    """ConfigMap `hlserve-routing-table`, key `table.json`."""

    schema_version: int = Field(default=SCHEMA_VERSION, ge=1, description="Readers refuse a higher one than they know.")
    generation: str = Field(description="Hash of the content.")
    keyring_shards: tuple[ShardDigest, ...] = Field(default=(), description="Every shard of the keyring.")
    pools: tuple[PoolRoute, ...] = Field(description="Pools, by name.")
    classes: tuple[ClassRoute, ...] = Field(description="Classes, by name.")


class KeyLimits(Document):
    """Limits of one ClientKey; unset: none."""

    requests_per_minute: int | None = Field(default=None, ge=1, description="Requests that may start per minute.")
    tokens_per_minute: int | None = Field(default=None, ge=1, description="Prompt plus reply tokens per minute.")
    max_concurrent: int | None = Field(default=None, ge=1, description="Requests at once.")


class Budget(Document):
    """Tokens that a ClientKey may use in a calendar period (UTC)."""

    tokens: int = Field(ge=0, description="Prompt plus reply tokens per period.")
    period: BudgetPeriod = Field(default=BudgetPeriod.DAY, description="Day or Month, in UTC.")
    on_exhausted: OnExhausted = Field(
        default=OnExhausted.REJECT, description="Reject with 429, or Demote to the key's lowest allowed class."
    )


class KeyEntry(Document):
    """One credential of one ClientKey. The key itself is nowhere, only its digest."""

    digest: Digest = Field(description="Lower-case hexadecimal SHA-256 of the key's UTF-8 bytes.")
    client: str = Field(description="ClientKey name.", max_length=253)
    credential: str = Field(description="Credential id within the ClientKey.", max_length=63)
    tenant: str = Field(default="", max_length=63, description="Tenant that the client belongs to; empty: none.")
    class_name: str = Field(alias="class", max_length=63, description="Class of the client's requests.")
    allowed_classes: tuple[str, ...] = Field(
        default=(), description="Classes that `x-hlserve-class` may choose; empty: any of a lower intent."
    )
    models: tuple[str, ...] = Field(default=(), description="Models that the key may use; empty: all.")
    limits: KeyLimits = Field(default=KeyLimits(), description="Limits of the client over all its credentials.")
    budget: Budget | None = Field(default=None, description="Tokens per calendar period; unset: no budget.")
    not_before: datetime | None = Field(default=None, description="When the key starts to be valid; unset: at once.")
    not_after: datetime | None = Field(default=None, description="When the key stops being valid; unset: never.")
    suspended: bool = Field(default=False, description="The client is refused with 403 key_suspended.")


class Keyring(Document):
    """Secret `hlserve-keyring-<n>`, key `keyring.json`: one shard of the keys."""

    schema_version: int = Field(default=SCHEMA_VERSION, ge=1, description="Readers refuse a higher one than they know.")
    generation: str = Field(description="Hash of the content.")
    keys: tuple[KeyEntry, ...] = Field(description="Credentials of this shard, by digest.")


class EngineTrust(Document):
    """How the routers know that they speak TLS to a pool's own engines."""

    ca: str = Field(
        default="", description="Certificates of the CA, as PEM; empty: those that the router's system trusts."
    )
    server_name: str = Field(
        default="",
        max_length=253,
        description="Name that an engine's certificate must carry; empty: `<service>.<namespace>.svc` for pods, which have "
        "addresses only, else the host of the endpoint's URL.",
    )


class EngineCredential(Document):
    """What the routers need to be served by one pool's engines."""

    api_key: str = Field(
        default="",
        max_length=4096,
        pattern=r"^[\x21-\x7e]*$",
        repr=False,
        description="Key that the engines ask for, sent as `Authorization: Bearer`; empty: none.",
    )
    tls: EngineTrust | None = Field(
        default=None,
        description="Set: the pool's pods speak TLS. Engines with an endpoint URL speak what the URL says.",
    )


class EngineCredentials(Document):
    """Secret `hlserve-engine-credentials`, key `engine-credentials.json`."""

    schema_version: int = Field(default=SCHEMA_VERSION, ge=1, description="Readers refuse a higher one than they know.")
    generation: str = Field(default="", description="Hash of the content.")
    pools: dict[Name, EngineCredential] = Field(
        description="Credentials by pool; a pool that needs none may be left out."
    )


TABLE_CONFIG_MAP: Final = "hlserve-routing-table"
TABLE_KEY: Final = "table.json"
KEYRING_SECRET_PREFIX: Final = "hlserve-keyring-"
KEYRING_KEY: Final = "keyring.json"
ENGINE_CREDENTIALS_SECRET: Final = "hlserve-engine-credentials"
ENGINE_CREDENTIALS_KEY: Final = "engine-credentials.json"
DEFAULT_KEYRING_SHARDS: Final = 4


class DocumentError(ValueError):
    """A document that a reader refuses as a whole. The reader keeps its last good one."""


class UnsupportedSchemaVersionError(DocumentError):
    """A document of a newer version than this reader knows."""

    def __init__(self, kind: str, found: int) -> None:
        super().__init__(
            f"{kind} has schemaVersion {found}, but this program reads up to {SCHEMA_VERSION}: upgrade it, or roll the writer back."
        )


class WrongDocumentError(DocumentError):
    """A document of another kind than the one that is asked for."""

    def __init__(self, wanted: str, found: str) -> None:
        super().__init__(f"This is {found}, and {wanted} is asked for here: name the right file.")


def parse_table(data: bytes | str) -> RoutingTable:
    """Parse `table.json`. Raises DocumentError, or pydantic.ValidationError for a broken document."""
    return _parse(RoutingTable, data)


def parse_keyring(data: bytes | str) -> Keyring:
    """Parse `keyring.json`. Raises DocumentError, or pydantic.ValidationError for a broken document."""
    return _parse(Keyring, data)


def parse_engine_credentials(data: bytes | str) -> EngineCredentials:
    """Parse `engine-credentials.json`. Raises DocumentError, or pydantic.ValidationError for a broken document."""
    return _parse(EngineCredentials, data)


_Kind = TypeVar("_Kind", RoutingTable, Keyring, EngineCredentials)
_WORDS: Final[dict[type[Document], str]] = {
    RoutingTable: "a routing table",
    Keyring: "a keyring",
    EngineCredentials: "a file of engine credentials",
}


def _parse(kind: type[_Kind], data: bytes | str) -> _Kind:
    try:
        document = kind.model_validate_json(data)
    except ValidationError:
        # What is wrong inside says little where the file is another one, or newer than all that is known here.
        _look_outside(kind, data)
        raise
    if document.schema_version > SCHEMA_VERSION:
        raise UnsupportedSchemaVersionError(kind.__name__, document.schema_version)
    return document


def _look_outside(kind: type[Document], data: bytes | str) -> None:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(content, dict):
        return
    found = _kind_of(content)
    if found is not None and found is not kind:
        raise WrongDocumentError(_WORDS[kind], _WORDS[found])
    version = content.get("schemaVersion")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise UnsupportedSchemaVersionError(kind.__name__, version)


def _kind_of(content: Mapping[str, object]) -> type[Document] | None:
    """The kind of a document, by the members that no other kind has; None: it has none of them, or several."""
    found: list[type[Document]] = []
    if "classes" in content or isinstance(content.get("pools"), list):
        found.append(RoutingTable)
    if "keys" in content:
        found.append(Keyring)
    if isinstance(content.get("pools"), dict):
        found.append(EngineCredentials)
    return found[0] if len(found) == 1 else None
