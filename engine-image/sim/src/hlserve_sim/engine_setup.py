"""From flags to the engine: cost model, KV pool and scheduler configuration. Pure."""

from dataclasses import asdict, dataclass

from hlserve_capacity import devices, shapes
from hlserve_capacity.engine.types import EngineConfig
from hlserve_capacity.lookup import UnknownNameError
from hlserve_capacity.roofline import MEMORY_SHARE, Roofline
from hlserve_sim.flags import PRIORITY_RETRACTION, FlagError, Flags

RATIO_ADMISSION = "ratio"


@dataclass(frozen=True, slots=True)
class Cap:
    """One bound of the scheduler as it was resolved, and why."""

    name: str
    value: int | float | str | None
    why: str


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What a simulated engine is made of."""

    config: EngineConfig
    cost: Roofline
    memory_fraction: float
    caps: tuple[Cap, ...]


def resolve(flags: Flags) -> EngineSetup:
    """The engine that `flags` describe. Raises FlagError with one sentence."""
    try:
        device, shape = devices.by_name(flags.device), shapes.by_name(flags.model_shape)
        cost = Roofline(shape, device, flags.tensor_parallel)
    except UnknownNameError as error:
        raise FlagError(str(error)) from error
    except ValueError as error:
        raise FlagError(f"--tp {flags.tensor_parallel}: {error}") from error
    fraction, fraction_why = _memory_fraction(flags)
    pool_tokens = cost.pool_tokens_within(fraction)
    if flags.max_total_tokens is not None:
        pool_tokens = min(pool_tokens, flags.max_total_tokens) if pool_tokens > 0 else 0
    if pool_tokens < 1:
        raise FlagError(
            f"{shape.name} does not fit on {flags.tensor_parallel} x {device.name} at a memory fraction of {fraction:g}: "
            "give a larger --tp, a larger --mem-fraction-static or another --device"
        )
    chunk = flags.chunked_prefill_size if flags.chunked_prefill_size is not None else device.default_chunk_tokens
    throughput = flags.enable_throughput_mode
    config = EngineConfig(
        pool_tokens=pool_tokens,
        context_length=flags.context_length,
        max_running_requests=flags.max_running_requests,
        max_queued_requests=flags.max_queued_requests,
        chunked_prefill_size=None if chunk == -1 else chunk,
        max_prefill_tokens=flags.max_prefill_tokens,
        # Stock SGLang drops mixing when chunking is off; the throughput mode keeps it.
        mixed_chunk=(flags.enable_mixed_chunk and chunk != -1) or throughput,
        schedule_policy=flags.schedule_policy,
        priority_scheduling=flags.enable_priority_scheduling,
        low_priority_values_first=flags.schedule_low_priority_values_first,
        priority_retraction=flags.retraction_policy == PRIORITY_RETRACTION,
        throughput_mode=throughput,
        kv_aware_admission=throughput,
        session_idle_us=round(flags.session_idle_seconds * 1e6),
        two_stage=flags.enable_two_stage_mixing,
        reserve_output=flags.kv_admission != RATIO_ADMISSION,
        lpm_max_waiting=flags.lpm_max_waiting,
        disable_radix_cache=flags.disable_radix_cache,
    )
    return EngineSetup(config=config, cost=cost, memory_fraction=fraction, caps=_caps(config, fraction, fraction_why))


def _memory_fraction(flags: Flags) -> tuple[float, str]:
    if flags.mem_fraction_static is not None:
        return flags.mem_fraction_static, "--mem-fraction-static"
    if flags.throughput_memfloor is not None and flags.throughput_memfloor > MEMORY_SHARE:
        return flags.throughput_memfloor, f"--throughput-memfloor above the automatic {MEMORY_SHARE:g}"
    return MEMORY_SHARE, "automatic"


def _caps(config: EngineConfig, fraction: float, fraction_why: str) -> tuple[Cap, ...]:
    lifted = config.throughput_mode
    return (
        Cap("max_total_num_tokens", config.pool_tokens, f"KV that fits at a memory fraction of {fraction:g}"),
        Cap("mem_fraction_static", fraction, fraction_why),
        Cap("max_running_requests", config.max_running_requests, "memory: kept in every mode"),
        Cap("max_queued_requests", config.max_queued_requests, "flag" if config.max_queued_requests else "unbounded"),
        Cap(
            "chunked_prefill_size",
            None if lifted else config.chunked_prefill_size,
            "lifted by throughput mode" if lifted else "flag or device default",
        ),
        Cap("max_prefill_tokens", config.max_prefill_tokens, "budget of one step"),
        Cap("schedule_policy", config.schedule_policy.value, "effective policy"),
        Cap(
            "kv_aware_admission",
            config.admission_fraction if lifted else None,
            "share of the pool that sessions may hold",
        ),
    )


def caps_as_dict(caps: tuple[Cap, ...]) -> list[dict[str, object]]:
    """The cap list as JSON builtins, for `/server_info`."""
    return [asdict(cap) for cap in caps]
