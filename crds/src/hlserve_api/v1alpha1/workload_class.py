"""WorkloadClass: how one kind of request is queued, placed and bounded."""

from typing import Annotated

from pydantic import Field

from hlserve_api.routing import FairnessBy, HeaderOverride, Intent, TargetRole
from hlserve_api.v1alpha1.meta import (
    Conditions,
    CustomResource,
    KindNames,
    Label,
    LabelMap,
    Node,
    PoolName,
    PrinterColumn,
    Rule,
    int32,
    list_map,
)

Tokens = Annotated[int, int32(1, 100_000_000)]
Percent = Annotated[int, int32(0, 100)]


class PoolReference(Node):
    """A ServingPool in the same namespace."""

    name: PoolName = Field(description="Name of the ServingPool.")


class PoolSelector(Node):
    """ServingPools by label."""

    match_labels: LabelMap = Field(description="Labels that a pool must have, all of them.", min_length=1, max_length=8)


class ClassTarget(Node):
    """A pool, or several by label, that the class may use."""

    rules = (
        Rule(
            "has(self.poolRef) != has(self.poolSelector)",
            "a target names its pool by poolRef, or several by poolSelector: give exactly one of the two",
        ),
    )

    name: Label = Field(description="Name of this target, unique in the class.")
    pool_ref: PoolReference | None = Field(default=None, description="One pool, by name.")
    pool_selector: PoolSelector | None = Field(default=None, description="Pools by label.")
    role: TargetRole = Field(
        default=TargetRole.PRIMARY, description="Primary: always used. Spill: only when the primaries are short."
    )
    weight: Annotated[int, int32(1, 100)] = Field(default=1, description="Share among targets of the same role.")


class Spill(Node):
    """When the class may use its Spill targets."""

    rules = (
        Rule(
            "!has(self.enterQueueWaitMilliseconds) || !has(self.leaveQueueWaitMilliseconds) || "
            "self.enterQueueWaitMilliseconds > self.leaveQueueWaitMilliseconds",
            "enterQueueWaitMilliseconds must be above leaveQueueWaitMilliseconds, or spilling would start and stop all the time",
            ".leaveQueueWaitMilliseconds",
        ),
    )

    enter_queue_wait_milliseconds: Annotated[int, int32(1, 86_400_000)] = Field(
        default=1000, description="Queue wait above which spilling starts, in ms."
    )
    leave_queue_wait_milliseconds: Annotated[int, int32(0, 86_400_000)] | None = Field(
        default=None,
        description="Queue wait below which spilling stops, in ms; unset: half of enterQueueWaitMilliseconds.",
    )
    when_unavailable: bool = Field(default=True, description="Also spill while no primary endpoint is there at all.")


class ClassQueue(Node):
    """Bounds of the class's queue in each router."""

    max_depth: Annotated[int, int32(0, 1_000_000)] = Field(default=1000, description="Most requests that wait.")
    max_bytes: int = Field(
        default=256 * 1024 * 1024, description="Most bytes of bodies that wait.", ge=0, le=64 * 1024**3
    )
    ttl_milliseconds: Annotated[int, int32(1, 86_400_000)] | None = Field(
        default=None,
        description="Longest wait, in ms; the smaller of this and the pool's counts. Unset: Interactive the pool's TTFT target "
        "(30000 without one), Agent 540000, below the 600 s of the SDKs, Batch 3600000.",
    )


class ClassLimits(Node):
    """Limits of each request or client of the class."""

    max_input_tokens: Tokens | None = Field(default=None, description="Longest prompt, in tokens; unset: the model's.")
    max_output_tokens: Tokens | None = Field(
        default=None,
        description="Longest reply, in tokens: a request that asks for more, or names no limit, is refused; unset: the model's.",
    )
    max_concurrent_per_client: Annotated[int, int32(1, 100_000)] | None = Field(
        default=None, description="Requests that one client may have at once; unset: no limit."
    )


class Share(Node):
    """The class's share of each of its pools."""

    rules = (
        Rule(
            "!has(self.minPercent) || !has(self.maxPercent) || self.minPercent <= self.maxPercent",
            "minPercent must not be above maxPercent",
            ".minPercent",
        ),
    )

    min_percent: Percent = Field(
        default=0, description="Share that is kept for the class while it has work, in percent."
    )
    max_percent: Annotated[int, int32(1, 100)] = Field(
        default=100, description="Largest share that the class may hold, in percent."
    )


class ClassTimeouts(Node):
    """Deadlines of the class's requests; each unset one follows from the intent."""

    total_seconds: Annotated[int, int32(1, 604_800)] | None = Field(
        default=None,
        description="From arrival to the last byte, in s. Unset: the pools' requestTimeoutSeconds, else Interactive 600, "
        "Agent 3600, Batch 21600.",
    )
    silence_seconds: Annotated[int, int32(1, 86_400)] | None = Field(
        default=None,
        description="Longest gap between two bytes of the engine once the reply began, in s. Unset: Interactive 60, Agent 600, Batch 1800.",
    )
    peek_milliseconds: Annotated[int, int32(0, 60_000)] | None = Field(
        default=None,
        description="How long the first event is held back to learn the real status, in ms. Unset: Interactive 2000, others 5000.",
    )
    ping_seconds: Annotated[int, int32(1, 3600)] | None = Field(
        default=None, description="Gap after which a silent stream gets a ping, in s. Unset: 15."
    )
    retry_cutoff_seconds: Annotated[int, int32(0, 86_400)] | None = Field(
        default=None,
        description="A 502 later than this after dispatch tells SDKs not to retry, in s. Unset: Interactive 5, Agent 30, Batch 60.",
    )
    start_seconds: Annotated[int, int32(1, 86_400)] | None = Field(
        default=None,
        description="Longest wait for the engine's first byte, in s. Unset: Interactive 30, Agent 600, Batch 1800.",
    )


class Fairness(Node):
    """Between whom the class's queue is shared."""

    by: FairnessBy = Field(
        default=FairnessBy.CLIENT, description="Client: between ClientKeys. Tenant: between their tenants."
    )


class WorkloadClassSpec(Node):
    """Wanted behaviour of a WorkloadClass."""

    rules = (
        Rule(
            "self.targets.exists(t, !has(t.role) || t.role == 'Primary')",
            "at least one target must have role Primary: Spill targets are used only when the primaries are short",
            ".targets",
        ),
    )

    intent: Intent = Field(description="Who waits for the answers; sets the defaults of queue and timeouts.")
    priority: Annotated[int, int32(-1000, 1000)] = Field(default=0, description="Larger is more urgent, everywhere.")
    targets: Annotated[tuple[ClassTarget, ...], list_map("name")] = Field(
        description="Pools that the class may use.", min_length=1, max_length=8
    )
    spill: Spill = Field(default=Spill(), description="When the class may use its Spill targets.")
    queue: ClassQueue = Field(default=ClassQueue(), description="Bounds of the class's queue in each router.")
    limits: ClassLimits = Field(default=ClassLimits(), description="Limits of each request or client.")
    share: Share = Field(default=Share(), description="The class's share of each of its pools.")
    timeouts: ClassTimeouts = Field(default=ClassTimeouts(), description="Deadlines of the class's requests.")
    fairness: Fairness = Field(default=Fairness(), description="Between whom the class's queue is shared.")
    header_override: HeaderOverride = Field(
        default=HeaderOverride.LOWER_ONLY,
        description="Whether `x-hlserve-class` may lower the class of a key that has this one: LowerOnly or Deny.",
    )


class ResolvedPool(Node):
    """A pool that a target stands for."""

    name: PoolName = Field(description="Name of the ServingPool.")
    target: Label = Field(description="The target that it comes from.")
    role: TargetRole = Field(description="Primary or Spill.")


class WorkloadClassStatus(Node):
    """Observed state of a WorkloadClass."""

    observed_generation: int | None = Field(
        default=None, description="The `metadata.generation` that this status is about.", ge=0, le=2**53
    )
    resolved_pools: Annotated[tuple[ResolvedPool, ...], list_map("name")] = Field(
        default=(), description="Pools that the targets stand for.", max_length=64
    )
    pools_summary: str | None = Field(
        default=None, description="Names of the pools in one line, for `kubectl get`.", max_length=256
    )
    client_count: Annotated[int, int32(0, 10_000_000)] | None = Field(
        default=None, description="ClientKeys of this class."
    )
    conditions: Conditions = Field(default=(), description="Ready and TargetsResolved.")


class WorkloadClass(CustomResource):
    """How one kind of request is queued, placed and bounded. The key decides a request's class; the class decides its pools."""

    names = KindNames(kind="WorkloadClass", plural="workloadclasses", singular="workloadclass", short="wlc")
    columns = (
        PrinterColumn("Intent", ".spec.intent", "string", "Who waits for the answers"),
        PrinterColumn("Priority", ".spec.priority", "integer", "Larger is more urgent"),
        PrinterColumn("Pools", ".status.poolsSummary", "string", "Pools that the class uses"),
        PrinterColumn("Clients", ".status.clientCount", "integer", "ClientKeys of this class"),
        PrinterColumn(
            "Ready", ".status.conditions[?(@.type=='Ready')].status", "string", "Whether the class is served"
        ),
        PrinterColumn("Age", ".metadata.creationTimestamp", "date", "Time since creation"),
    )
    rules = (
        Rule(
            "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 63",
            "the name must be at most 63 lower-case letters, digits and hyphens: it is a header value and a metric label",
        ),
    )

    kind: str = Field(default="WorkloadClass", description="`WorkloadClass`.", max_length=63)
    spec: WorkloadClassSpec = Field(description="Wanted behaviour.")
    status: WorkloadClassStatus = Field(
        default=WorkloadClassStatus(), description="Observed state, written by the operator."
    )
