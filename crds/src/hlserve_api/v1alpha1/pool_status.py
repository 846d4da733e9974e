"""What the operator reports about a ServingPool. Fast numbers belong in metrics, not here."""

from enum import StrEnum
from typing import Annotated

from pydantic import AwareDatetime, Field, StringConstraints

from hlserve_api.v1alpha1.meta import LIST_ATOMIC, Conditions, Node, int32, list_map

Count = Annotated[int, int32(0, 100_000)]
Argument = Annotated[str, StringConstraints(max_length=1024)]


class DerivedSource(StrEnum):
    """Where a setting comes from, weakest first."""

    DEFAULT = "Default"
    ESTIMATE = "Estimate"
    CALIBRATION = "Calibration"
    USER = "User"


class DerivedValue(Node):
    """One setting that the operator gave the engines or the router, and why."""

    name: str = Field(description="Name of the setting, such as `maxRunningRequests`.", min_length=1, max_length=63)
    value: str = Field(description="Its value as text.", max_length=63)
    source: DerivedSource = Field(description="Default, Estimate, Calibration or User.")
    why: str = Field(default="", description="The reason with its numbers, in one sentence.", max_length=512)


class EngineStatus(Node):
    """What the current revision's engines were started with."""

    image_digest: str | None = Field(default=None, description="Digest of the running image.", max_length=256)
    template_hash: str | None = Field(
        default=None, description="Hash of the pod template: the revision's name.", max_length=63
    )
    args: Annotated[tuple[Argument, ...], LIST_ATOMIC] = Field(
        default=(), description="Arguments of the engine, in order.", max_length=160
    )


class CalibrationPoint(Node):
    """One measured point of the throughput-SLO frontier."""

    max_running_requests: Annotated[int, int32(1, 65_536)] = Field(
        description="Running requests per replica at this point."
    )
    chunked_prefill_size: Annotated[int, int32(1, 1_048_576)] | None = Field(
        default=None, description="Chunk size at this point, in tokens."
    )
    tokens_per_second: Annotated[int, int32(0, 100_000_000)] = Field(
        description="Output tokens per second per replica."
    )
    ttft_milliseconds: Annotated[int, int32(0, 86_400_000)] | None = Field(
        default=None, description="Time to first token at the SLO's percentile, in ms."
    )
    tpot_milliseconds: Annotated[int, int32(0, 86_400_000)] | None = Field(
        default=None, description="Time per output token at the SLO's percentile, in ms."
    )


class CalibrationStatus(Node):
    """What was measured on this pool's model and hardware."""

    key: str | None = Field(
        default=None, description="Engine, device and model that the measurement is of.", max_length=253
    )
    measured_at: AwareDatetime | None = Field(default=None, description="When it was measured.")
    tokens_per_second_at_slo: Annotated[int, int32(0, 100_000_000)] | None = Field(
        default=None,
        alias="tokensPerSecondAtSLO",
        description="Best output tokens per second per replica within the SLO.",
    )
    tokens_per_second_unbounded: Annotated[int, int32(0, 100_000_000)] | None = Field(
        default=None, description="Best output tokens per second per replica without an SLO."
    )
    human_tax_percent: Annotated[int, int32(0, 100)] | None = Field(
        default=None, description="Share of throughput that the SLO costs, in percent."
    )
    points: Annotated[tuple[CalibrationPoint, ...], LIST_ATOMIC] = Field(
        default=(), description="Measured points of the frontier.", max_length=8
    )


class SloStatus(Node):
    """Attainment over the last window, rounded, written at most once a minute."""

    window_seconds: Annotated[int, int32(1, 86_400)] | None = Field(
        default=None, description="Length of the window, in seconds."
    )
    attainment_percent: Annotated[int, int32(0, 100)] | None = Field(
        default=None, description="Requests that met the targets, in percent; unset: no traffic."
    )
    ttft_milliseconds: Annotated[int, int32(0, 86_400_000)] | None = Field(
        default=None, description="Time to first token at the SLO's percentile, in ms."
    )
    tpot_milliseconds: Annotated[int, int32(0, 86_400_000)] | None = Field(
        default=None, description="Time per output token at the SLO's percentile, in ms."
    )


class ServingPoolStatus(Node):
    """Observed state of a ServingPool."""

    observed_generation: int | None = Field(
        default=None, description="The `metadata.generation` that this status is about.", ge=0, le=2**53
    )
    replicas: Count | None = Field(default=None, description="Replicas that exist, in every revision.")
    ready_replicas: Count | None = Field(default=None, description="Replicas that serve.")
    updated_replicas: Count | None = Field(default=None, description="Replicas of the current revision.")
    draining_replicas: Count | None = Field(
        default=None, description="Replicas that get no new requests and finish theirs."
    )
    selector: str | None = Field(
        default=None, description="Label selector of the pods as text, for the scale subresource.", max_length=1024
    )
    engine: EngineStatus | None = Field(
        default=None, description="What the current revision's engines were started with."
    )
    derived: Annotated[tuple[DerivedValue, ...], list_map("name")] = Field(
        default=(), description="Settings in force, with their source.", max_length=32
    )
    calibration: CalibrationStatus | None = Field(default=None, description="What was measured on this pool.")
    slo: SloStatus | None = Field(default=None, description="Attainment over the last window; absent in HumanLess.")
    conditions: Conditions = Field(default=(), description="Ready and the conditions that it is made of.")
