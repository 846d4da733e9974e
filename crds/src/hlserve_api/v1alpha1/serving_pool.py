"""ServingPool: one model on identical engines, in one mode. The parts of its spec and its status are in `pool_*.py`."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from hlserve_api.routing import Mode
from hlserve_api.v1alpha1.meta import (
    LIST_SET,
    PRESERVE_UNKNOWN,
    CustomResource,
    KindNames,
    LocalReference,
    Node,
    PrinterColumn,
    Rule,
    ScalePaths,
    int32,
)
from hlserve_api.v1alpha1.pool_engine import Engine
from hlserve_api.v1alpha1.pool_model import Hardware, PoolModel, Slo, Throughput, Traffic
from hlserve_api.v1alpha1.pool_operations import Autoscaling, Drain, Rollout, Startup
from hlserve_api.v1alpha1.pool_placement import Parallelism, Resources, Scheduling
from hlserve_api.v1alpha1.pool_status import ServingPoolStatus

MediaDomain = Annotated[
    str,
    StringConstraints(
        min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
    ),
]


class ResponseStore(StrEnum):
    """Whether engines keep responses for `previous_response_id`."""

    DISABLED = "Disabled"
    ENABLED = "Enabled"


class ServingPoolSpec(Node):
    """Wanted state of a ServingPool."""

    rules = (
        Rule(
            "self.mode != 'Interactive' || has(self.slo)",
            "an Interactive pool needs slo with ttftMilliseconds or tpotMilliseconds: its settings are derived from it",
            ".slo",
        ),
        Rule(
            "self.mode != 'Interactive' || !has(self.throughput)",
            "throughput is for HumanLess pools: remove it, or set mode: HumanLess",
            ".throughput",
        ),
        Rule(
            "self.mode != 'HumanLess' || !has(self.slo)",
            "a HumanLess pool has no latency targets: remove slo, or set mode: Interactive",
            ".slo",
        ),
        Rule(
            "self.mode != 'HumanLess' || !has(self.engine) || !has(self.engine.priorityOrder) || "
            "self.engine.priorityOrder == 'None'",
            "the engine cannot combine prefix-aware scheduling with priorities: in a HumanLess pool set "
            "engine.priorityOrder to None, or leave it out",
            ".engine.priorityOrder",
        ),
        Rule(
            "self.mode == 'HumanLess' || !has(self.autoscaling) || !has(self.autoscaling.minReplicas) || "
            "self.autoscaling.minReplicas > 0 || "
            "(has(self.autoscaling.allowColdStart) && self.autoscaling.allowColdStart)",
            "an Interactive pool that scales to zero makes its first client wait for a start: set minReplicas to at least "
            "1, or accept it with allowColdStart: true",
            ".autoscaling.minReplicas",
        ),
    )

    mode: Mode = Field(
        description="Interactive: latency targets bound the batch. HumanLess: throughput comes first. A change is a drained rollout."
    )
    model: PoolModel = Field(description="The model that the pool serves.")
    hardware: Hardware | None = Field(default=None, description="What the engines run on, for estimates.")
    calibration_ref: LocalReference | None = Field(
        default=None, description="ConfigMap with `calibration.json`, as `hlserve bench calibrate` prints it."
    )
    slo: Slo | None = Field(default=None, description="Latency targets; required in Interactive, refused in HumanLess.")
    throughput: Throughput | None = Field(
        default=None, description="Goals of a HumanLess pool; refused in Interactive."
    )
    traffic: Traffic = Field(default=Traffic(), description="Lengths of the requests, for derivation.")
    engine: Engine = Field(default=Engine(), description="How the engines are started.")
    parallelism: Parallelism = Field(default=Parallelism(), description="How one replica is split over GPUs and nodes.")
    resources: Resources = Field(default=Resources(), description="What one pod asks for.")
    scheduling: Scheduling = Field(default=Scheduling(), description="Where the pods go.")
    replicas: Annotated[int, int32(0, 10_000)] | None = Field(
        default=None,
        description="Wanted replicas. Seeded once by the operator if absent; afterwards only users and autoscalers write it.",
    )
    autoscaling: Autoscaling | None = Field(default=None, description="Bounds of autoscaling; unset: none.")
    rollout: Rollout = Field(default=Rollout(), description="How replicas move to a new revision.")
    drain: Drain = Field(default=Drain(), description="How a pod is emptied before it goes.")
    startup: Startup = Field(default=Startup(), description="How long an engine may take to load.")
    allowed_media_domains: Annotated[tuple[MediaDomain, ...], LIST_SET] = Field(
        default=(),
        description="Hosts that a request may name in http(s) media; empty: only `data:` media.",
        max_length=32,
    )
    response_store: ResponseStore = Field(
        default=ResponseStore.DISABLED,
        description="Enabled: `previous_response_id`, GET and cancel of responses are served; the engine keeps them in memory, "
        "without a bound, until it restarts.",
    )
    pod_patch: Annotated[dict[str, Any], PRESERVE_UNKNOWN] | None = Field(
        default=None,
        description="Strategic merge patch of the pod template, at most 16 KB. Selector labels, ports, service account, command "
        "and the operator's variables are refused (condition ConfigDerived, reason PatchRejected).",
    )


class ServingPool(CustomResource):
    """One model on identical engines, in one mode: Interactive (bound by latency targets) or HumanLess (throughput)."""

    names = KindNames(kind="ServingPool", plural="servingpools", singular="servingpool", short="spool")
    columns = (
        PrinterColumn("Mode", ".spec.mode", "string", "Interactive or HumanLess"),
        PrinterColumn("Model", ".spec.model.name", "string", "Served model name"),
        PrinterColumn("Desired", ".spec.replicas", "integer", "Wanted replicas"),
        PrinterColumn("Ready", ".status.readyReplicas", "integer", "Replicas that serve"),
        PrinterColumn(
            "MaxRun",
            ".status.derived[?(@.name=='maxRunningRequests')].value",
            "string",
            "Requests in the running batch of a replica",
        ),
        PrinterColumn("SLO", ".status.conditions[?(@.type=='SLOMet')].status", "string", "Whether the SLO is met"),
        PrinterColumn(
            "Available", ".status.conditions[?(@.type=='Ready')].status", "string", "Whether the pool serves"
        ),
        PrinterColumn("Age", ".metadata.creationTimestamp", "date", "Time since creation"),
        PrinterColumn("Image", ".spec.engine.image", "string", "Engine image", wide=True),
        PrinterColumn(
            "Draining", ".status.drainingReplicas", "integer", "Replicas that finish their requests", wide=True
        ),
        PrinterColumn(
            "Reason", ".status.conditions[?(@.type=='Ready')].reason", "string", "Why it is ready or not", wide=True
        ),
    )
    scale = ScalePaths(".spec.replicas", ".status.replicas", ".status.selector")
    rules = (
        Rule(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "the name must start with a letter and hold only lower-case letters, digits and hyphens: Services are named after it",
        ),
        Rule(
            "size(self.metadata.name) <= 40",
            "the name must be at most 40 characters, so that names of revisions and pods fit: choose a shorter one",
        ),
    )

    kind: str = Field(default="ServingPool", description="`ServingPool`.", max_length=63)
    spec: ServingPoolSpec = Field(description="Wanted state.")
    status: ServingPoolStatus = Field(
        default=ServingPoolStatus(), description="Observed state, written by the operator."
    )
