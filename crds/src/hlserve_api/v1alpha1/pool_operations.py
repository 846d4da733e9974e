"""How a ServingPool lives: autoscaling, rollout, drain, start-up."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from hlserve_api.v1alpha1.meta import IntOrPercent, Node, Rule, int32


class AutoscalingProvider(StrEnum):
    """Who changes the number of replicas."""

    KEDA = "KEDA"
    HPA = "HPA"
    EXTERNAL = "External"


class Autoscaling(Node):
    """Bounds and provider of autoscaling."""

    rules = (
        Rule(
            "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas must not be above maxReplicas",
            ".minReplicas",
        ),
        Rule(
            "!has(self.provider) || self.provider != 'HPA' || !has(self.minReplicas) || self.minReplicas > 0",
            "a HorizontalPodAutoscaler cannot scale to zero: use provider KEDA, or minReplicas of at least 1",
            ".minReplicas",
        ),
    )

    provider: AutoscalingProvider = Field(
        default=AutoscalingProvider.KEDA,
        description="KEDA (can scale to zero), HPA, or External: something of yours writes the scale subresource.",
    )
    min_replicas: Annotated[int, int32(0, 10_000)] = Field(default=1, description="Fewest replicas.")
    max_replicas: Annotated[int, int32(1, 10_000)] = Field(description="Most replicas.")
    scale_down_stabilization_seconds: Annotated[int, int32(0, 3600)] = Field(
        default=300, description="How long demand must be lower before replicas go, in seconds."
    )
    allow_cold_start: bool = Field(
        default=False,
        description="Accept that an Interactive pool at zero replicas makes its first client wait for a start.",
    )


class RolloutStrategy(StrEnum):
    """How replicas move to a new revision."""

    AUTO = "Auto"
    SURGE = "Surge"
    ONE_BY_ONE = "OneByOne"


class Rollout(Node):
    """How replicas move to a new revision."""

    strategy: RolloutStrategy = Field(
        default=RolloutStrategy.AUTO,
        description="Surge needs spare GPUs; OneByOne needs none. Auto surges only if the new pod is scheduled at once.",
    )
    max_surge: IntOrPercent | None = Field(
        default=None, description="Replicas above the wanted number while surging, a count or a percentage; unset: 1."
    )
    max_unavailable: IntOrPercent | None = Field(
        default=None,
        description="Replicas that may be missing meanwhile, a count or a percentage; unset: 0, or 1 for OneByOne.",
    )
    paused: bool = Field(default=False, description="Stop moving replicas; what is there keeps serving.")
    progress_deadline_seconds: Annotated[int, int32(60, 86_400)] = Field(
        default=3600, description="Time without progress after which the rollout counts as failed, in seconds."
    )


class DrainTimeoutAction(StrEnum):
    """What happens to requests that still run at the drain's deadline."""

    TERMINATE = "Terminate"
    WAIT = "Wait"


class Drain(Node):
    """How a pod is emptied before it goes."""

    timeout_seconds: Annotated[int, int32(0, 86_400)] | None = Field(
        default=None, description="Longest drain, in seconds; unset: derived from the SLO, 600 in HumanLess."
    )
    on_timeout: DrainTimeoutAction = Field(
        default=DrainTimeoutAction.TERMINATE, description="Terminate cuts what still runs; Wait goes on waiting."
    )


class Startup(Node):
    """How long an engine may take to load."""

    timeout_seconds: Annotated[int, int32(30, 86_400)] = Field(
        default=1800, description="Time from container start to readiness, in seconds; then the container is restarted."
    )
