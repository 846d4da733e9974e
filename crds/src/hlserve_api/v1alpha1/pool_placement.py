"""Where and how large a ServingPool's pods are: parallelism, resources, scheduling."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from hlserve_api.v1alpha1.meta import (
    LIST_ATOMIC,
    LabelKey,
    LabelMap,
    LabelValue,
    Node,
    Quantity,
    Rule,
    int32,
    list_map,
)


class Parallelism(Node):
    """How one replica is split over GPUs and nodes."""

    rules = (
        Rule(
            "!has(self.nodes) || ((has(self.tensor) ? self.tensor : 1) * (has(self.pipeline) ? self.pipeline : 1)) "
            "% self.nodes == 0",
            "tensor × pipeline must be a multiple of nodes, so that every node gets the same number of GPUs",
        ),
    )

    tensor: Annotated[int, int32(1, 64)] = Field(
        default=1, description="Tensor parallel size: GPUs that share each layer."
    )
    pipeline: Annotated[int, int32(1, 64)] = Field(default=1, description="Pipeline parallel size: stages of layers.")
    nodes: Annotated[int, int32(1, 64)] = Field(
        default=1, description="Nodes of one replica; more than 1 needs LeaderWorkerSet."
    )

    @property
    def gpus_per_pod(self) -> int:
        """GPUs of one pod: tensor × pipeline ÷ nodes."""
        return self.tensor * self.pipeline // self.nodes


class Resources(Node):
    """What one pod asks for. The number of GPUs follows from `parallelism`."""

    gpu_resource_name: str = Field(
        default="nvidia.com/gpu",
        description="Extended resource to ask for.",
        min_length=1,
        max_length=317,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$",
    )
    cpu: Quantity | None = Field(default=None, description="CPU request of the engine; unset: none.")
    memory: Quantity | None = Field(default=None, description="Memory request of the engine; unset: none.")
    shm_size_limit: Quantity | None = Field(
        default=None, description="Bound of /dev/shm, which tensor parallel engines use; unset: none."
    )


class TolerationOperator(StrEnum):
    """How a toleration's key is compared."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    """Which effect of a taint is tolerated."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Node):
    """A taint that the pods tolerate."""

    key: LabelKey | None = Field(default=None, description="Key of the taint; unset with Exists: every taint.")
    operator: TolerationOperator = Field(default=TolerationOperator.EQUAL, description="How the key is compared.")
    value: LabelValue | None = Field(default=None, description="Value of the taint, for Equal.")
    effect: TaintEffect | None = Field(default=None, description="Effect that is tolerated; unset: all.")
    toleration_seconds: Annotated[int, int32(0, 2_147_483_647)] | None = Field(
        default=None, description="How long NoExecute is tolerated, in seconds; unset: for ever."
    )


class WhenUnsatisfiable(StrEnum):
    """What happens to a pod that would break a spread constraint."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class TopologySpreadConstraint(Node):
    """How the pool's pods spread over a topology. The label selector is the operator's."""

    topology_key: LabelKey = Field(description="Node label whose values are the domains.")
    max_skew: Annotated[int, int32(1, 1000)] = Field(
        default=1, description="Largest difference between two domains, in pods."
    )
    when_unsatisfiable: WhenUnsatisfiable = Field(
        default=WhenUnsatisfiable.SCHEDULE_ANYWAY, description="What happens to a pod that would break the constraint."
    )


class Scheduling(Node):
    """Where the pods go. Affinity is set through `podPatch` only."""

    node_selector: LabelMap = Field(default={}, description="Labels that a node must have.", max_length=32)
    tolerations: Annotated[tuple[Toleration, ...], LIST_ATOMIC] = Field(
        default=(), description="Taints that the pods tolerate.", max_length=32
    )
    topology_spread_constraints: Annotated[tuple[TopologySpreadConstraint, ...], list_map("topologyKey")] = Field(
        default=(), description="How the pods spread.", max_length=8
    )
    priority_class_name: str | None = Field(default=None, description="PriorityClass of the pods.", max_length=253)
    runtime_class_name: str | None = Field(default=None, description="RuntimeClass of the pods.", max_length=253)
    scheduler_name: str | None = Field(
        default=None, description="Scheduler of the pods; unset: the default one.", max_length=253
    )
    queue_name: str | None = Field(default=None, description="Kueue LocalQueue that admits the pods.", max_length=253)
    group_topology_key: LabelKey | None = Field(
        default=None, description="Node label within which all pods of one multi-node replica must lie."
    )
