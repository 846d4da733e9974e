"""The values that go into and come out of the way from an SLO to engine flags."""

from dataclasses import dataclass

from hlserve_api.routing import Mode, PriorityOrder
from hlserve_api.v1alpha1.pool_status import DerivedSource
from hlserve_capacity.engine.types import StepCost
from hlserve_capacity.lengths import Lengths
from hlserve_capacity.verdicts import SloReason


@dataclass(frozen=True, slots=True)
class CostBasis:
    """A step cost and where it comes from."""

    cost: StepCost
    source: DerivedSource
    """Calibration or Estimate."""
    description: str
    """In words, for the reasons given: `roofline estimate of llama-3.1-8b on 1 × H200`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SloTarget:
    """What is promised. Milliseconds; None: no target."""

    ttft_ms: int | None
    tpot_ms: int | None
    percentile: int
    observe_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Values a user set; they win over derived ones. None: derive."""

    max_running_requests: int | None = None
    max_queued_requests: int | None = None
    chunked_prefill_size: int | None = None
    context_length: int | None = None
    in_flight_tokens: int | None = None
    priority_order: PriorityOrder | None = None
    drain_timeout_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivationInputs:
    """All that derivation looks at, in plain numbers."""

    mode: Mode
    slo: SloTarget | None
    lengths: Lengths
    max_output_tokens: int
    basis: CostBasis | None
    """None: neither a calibration nor hardware and shape are known."""
    missing_basis: str = ""
    """Why there is no basis, in one sentence."""
    default_chunk_tokens: int | None
    """The engine's default for the device; None: device unknown."""
    max_batch: int
    """Largest batch the engine captures a decode graph for."""
    context_length: int | None
    """The model's own; None: unknown."""
    overrides: Overrides = Overrides()


@dataclass(frozen=True, slots=True)
class DerivedValue:
    """One derived setting, as `status.derived[]` reports it."""

    name: str
    value: str
    source: DerivedSource
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedPool:
    """Settings of a pool's engines and of the router's caps per replica. None: the engine's default, or no bound."""

    max_running_requests: int | None
    max_queued_requests: int | None
    chunked_prefill_size: int | None
    context_length: int | None
    queue_ttl_milliseconds: int | None
    max_in_flight: int | None
    in_flight_tokens: int | None
    kv_tokens: int | None
    """KV tokens of a replica, for the router's admission of sessions (HumanLess with a basis only)."""
    grace_seconds: int
    priority_order: PriorityOrder
    values: tuple[DerivedValue, ...]
    calibrated: bool
    """False: nothing to derive from (condition ConfigDerived, reason NotCalibrated)."""
    slo_reason: SloReason
    slo_message: str

    @property
    def slo_attainable(self) -> bool | None:
        """Whether a replica can meet the SLO; None: unknown, or the pool has none."""
        return None if self.slo_reason is SloReason.UNKNOWN else self.slo_reason is SloReason.ATTAINABLE
