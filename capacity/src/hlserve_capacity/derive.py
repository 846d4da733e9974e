"""From a ServingPool's SLO, traffic and hardware to engine flags and router caps, each with its source and reason."""

from hlserve_api.routing import Mode, PriorityOrder
from hlserve_api.v1alpha1 import ServingPool
from hlserve_api.v1alpha1.pool_model import ModelShape as ShapeSpec
from hlserve_api.v1alpha1.pool_model import SloEnforcement
from hlserve_api.v1alpha1.pool_status import DerivedSource
from hlserve_capacity import devices, lengths, shapes
from hlserve_capacity.calibration import Calibration
from hlserve_capacity.derive_core import derive_values
from hlserve_capacity.derive_types import (
    CostBasis,
    DerivationInputs,
    DerivedPool,
    DerivedValue,
    Overrides,
    SloTarget,
)
from hlserve_capacity.lookup import UnknownNameError
from hlserve_capacity.roofline import Roofline
from hlserve_capacity.verdicts import SloReason

__all__ = ["DerivedPool", "DerivedValue", "SloReason", "derivation_inputs", "derive", "engine_args"]

_GRAPH_BATCH = 256
_GRAPH_BATCH_TP4 = 512
"""SGLang's largest decode graph on devices of 60 to 160 GB: 256, from four-way tensor parallelism on 512."""


def derive(pool: ServingPool, calibration: Calibration | None = None) -> DerivedPool:
    """Derived settings of a pool; `calibration` is the parsed document that `calibrationRef` names, if it is there.

    Never fails for what a pool can say: an unknown accelerator or shape gives engine defaults and the reason.
    """
    return derive_values(derivation_inputs(pool, calibration))


def derivation_inputs(pool: ServingPool, calibration: Calibration | None = None) -> DerivationInputs:
    """The plain numbers that a pool's derivation starts from."""
    spec = pool.spec
    shape, shape_problem = _shape(spec.model.shape)
    device, device_problem = _device(spec.hardware.accelerator if spec.hardware else None)
    basis, missing = None, ""
    if calibration is not None:
        basis = CostBasis(calibration.cost, DerivedSource.CALIBRATION, f"calibration of {calibration.identity}")
    elif shape is None or device is None:
        missing = "; ".join(problem for problem in (device_problem, shape_problem) if problem)
    else:
        basis, missing = _estimate(shape, device, spec.parallelism.tensor)
    slo = spec.slo
    return DerivationInputs(
        mode=spec.mode,
        slo=None
        if slo is None
        else SloTarget(
            ttft_ms=slo.ttft_milliseconds,
            tpot_ms=slo.tpot_milliseconds,
            percentile=slo.percentile,
            observe_only=slo.enforcement is SloEnforcement.OBSERVE,
        ),
        lengths=lengths.from_p95(spec.traffic.input_tokens_p95, spec.traffic.output_tokens_p95),
        max_output_tokens=spec.traffic.max_output_tokens,
        basis=basis,
        missing_basis=missing,
        default_chunk_tokens=None if device is None else device.default_chunk_tokens,
        max_batch=_GRAPH_BATCH if spec.parallelism.tensor < 4 else _GRAPH_BATCH_TP4,
        context_length=None if shape is None else shape.context_length,
        overrides=Overrides(
            max_running_requests=spec.engine.max_running_requests,
            max_queued_requests=spec.engine.max_queued_requests,
            chunked_prefill_size=spec.engine.chunked_prefill_size,
            context_length=spec.engine.context_length,
            in_flight_tokens=spec.engine.in_flight_tokens_per_replica,
            priority_order=spec.engine.priority_order,
            drain_timeout_seconds=spec.drain.timeout_seconds,
        ),
    )


def _shape(spec: ShapeSpec | None) -> tuple[shapes.ModelShape | None, str]:
    if spec is None:
        return None, "nothing to estimate from: set model.shape, or calibrationRef"
    try:
        if spec.name is not None:
            return shapes.by_name(spec.name), ""
        numbers = (spec.parameters, spec.layers, spec.hidden_size, spec.heads, spec.kv_heads, spec.head_dim)
        parameters, layers, hidden_size, heads, kv_heads, head_dim = (number or 0 for number in numbers)
        return (
            shapes.custom(
                "model.shape",
                parameters=parameters,
                layers=layers,
                hidden_size=hidden_size,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                bytes_per_parameter=spec.bytes_per_parameter,
            ),
            "",
        )
    except ValueError as error:
        return None, str(error)


def _device(accelerator: str | None) -> tuple[devices.Device | None, str]:
    if accelerator is None:
        return None, "nothing to estimate from: set hardware.accelerator, or calibrationRef"
    try:
        return devices.by_name(accelerator), ""
    except UnknownNameError as error:
        return None, str(error)


def _estimate(shape: shapes.ModelShape, device: devices.Device, tensor: int) -> tuple[CostBasis | None, str]:
    try:
        roofline = Roofline(shape, device, tensor)
    except ValueError as error:
        return None, str(error)
    where = f"{shape.name} on {tensor} × {device.name}"
    if not roofline.pool_tokens:
        return None, f"the weights of {where} do not fit: raise parallelism.tensor, or use a device with more memory"
    return CostBasis(roofline, DerivedSource.ESTIMATE, f"roofline estimate of {where}"), ""


def _engine_queue(user: int | None, derived: DerivedPool) -> int | None:
    """A user's own bound, else all that the router may have in flight: SGLang's queue also holds what is about to start, so a burst
    of short prompts would be refused by an engine with free slots. How long a queue may get is the router's to enforce."""
    if user is not None or derived.max_queued_requests is None or derived.max_running_requests is None:
        return derived.max_queued_requests
    return derived.max_running_requests + derived.max_queued_requests


def engine_args(pool: ServingPool, derived: DerivedPool) -> tuple[str, ...]:
    """SGLang's arguments for a pool's engines: the user's `extraArgs` first, then ours, so that ours win.

    Where the engine listens (`--host`, `--port`) and where its files lie (`--model-path`) is the caller's to add.
    """
    spec = pool.spec
    args = [*spec.engine.extra_args, "--served-model-name", spec.model.name]
    if spec.parallelism.tensor > 1:
        args += ["--tensor-parallel-size", str(spec.parallelism.tensor)]
    if spec.parallelism.pipeline > 1:
        args += ["--pipeline-parallel-size", str(spec.parallelism.pipeline)]
    for flag, value in (
        ("--max-running-requests", derived.max_running_requests),
        ("--max-queued-requests", _engine_queue(spec.engine.max_queued_requests, derived)),
        ("--chunked-prefill-size", derived.chunked_prefill_size),
        ("--context-length", spec.engine.context_length),
    ):
        if value is not None:
            args += [flag, str(value)]
    human_less = spec.mode is Mode.HUMAN_LESS
    args += ["--enable-mixed-chunk", "--schedule-policy", "lpm" if human_less else "fcfs"]
    if human_less:
        args.append("--enable-throughput-mode")
    if derived.priority_order is not PriorityOrder.NONE:
        args.append("--enable-priority-scheduling")
    if derived.priority_order is PriorityOrder.LOWER_FIRST:
        args.append("--schedule-low-priority-values-first")
    return (*args, "--enable-metrics", "--stream-response-default-include-usage")
