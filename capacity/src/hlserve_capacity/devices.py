"""The device table: what each GPU can do by its data sheet, and which share of it kernels reach.

Data-sheet figures are dense bf16 FLOP/s and HBM bandwidth. The efficiencies are fitted to public kernel profiles where
those exist; `basis` says so for each device.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hlserve_capacity.lookup import find


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU. Rates are per second and per device."""

    name: str
    flops_per_second: float
    """Dense bf16."""
    hbm_bytes_per_second: float
    memory_bytes: float
    interconnect_bytes_per_second: float
    """NVLink, one direction, all links of one device."""
    gemm_mfu: float
    """Plateau of GEMM efficiency, reached at a few thousand tokens."""
    weight_stream_efficiency_tp1: float
    """Achieved share of HBM bandwidth when weights are streamed, unsharded."""
    weight_stream_efficiency_tp8: float
    """The same with weights sharded over eight devices: thin shards stream worse."""
    kv_read_efficiency: float
    """Achieved share of HBM bandwidth in decode attention."""
    prefill_attention_mfu: float
    basis: str

    @property
    def default_chunk_tokens(self) -> int:
        """SGLang 0.5.23's default of `--chunked-prefill-size` for a device of this memory."""
        gigabytes = self.memory_bytes / 1e9
        if gigabytes < 20:
            return 2048
        if gigabytes < 60:
            return 4096
        return 8192 if gigabytes < 160 else 16_384


_HOPPER = "data sheet; efficiencies fitted to public H100 kernel profiles, attention efficiencies assumed"

_DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        device.name: device
        for device in (
            Device(
                name="A100-80G",
                flops_per_second=312e12,
                hbm_bytes_per_second=2.039e12,
                memory_bytes=80e9,
                interconnect_bytes_per_second=300e9,
                gemm_mfu=0.75,
                weight_stream_efficiency_tp1=0.78,
                weight_stream_efficiency_tp8=0.65,
                kv_read_efficiency=0.62,
                prefill_attention_mfu=0.50,
                basis="data sheet; efficiencies fitted to public kernel profiles and published decode slopes",
            ),
            Device(
                name="H100",
                flops_per_second=989e12,
                hbm_bytes_per_second=3.35e12,
                memory_bytes=80e9,
                interconnect_bytes_per_second=450e9,
                gemm_mfu=0.75,
                weight_stream_efficiency_tp1=0.86,
                weight_stream_efficiency_tp8=0.70,
                kv_read_efficiency=0.75,
                prefill_attention_mfu=0.55,
                basis=_HOPPER,
            ),
            Device(
                name="H200",
                flops_per_second=989e12,
                hbm_bytes_per_second=4.8e12,
                memory_bytes=141e9,
                interconnect_bytes_per_second=450e9,
                gemm_mfu=0.75,
                weight_stream_efficiency_tp1=0.86,
                weight_stream_efficiency_tp8=0.70,
                kv_read_efficiency=0.75,
                prefill_attention_mfu=0.55,
                basis="data sheet; H100's efficiencies, checked against two published end-to-end latencies",
            ),
            Device(
                name="H20",
                flops_per_second=148e12,
                hbm_bytes_per_second=4.0e12,
                memory_bytes=96e9,
                interconnect_bytes_per_second=450e9,
                gemm_mfu=0.88,
                weight_stream_efficiency_tp1=0.86,
                weight_stream_efficiency_tp8=0.70,
                kv_read_efficiency=0.75,
                prefill_attention_mfu=0.70,
                basis="data sheet only; no public kernel profile was found",
            ),
        )
    }
)

_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "A100": "A100-80G",
        "A100-80GB": "A100-80G",
        "A100-SXM4-80GB": "A100-80G",
        "NVIDIA-A100-SXM4-80GB": "A100-80G",
        "H100-SXM": "H100",
        "H100-80G": "H100",
        "NVIDIA-H100-80GB-HBM3": "H100",
        "H200-SXM": "H200",
        "NVIDIA-H200": "H200",
        "H20-96G": "H20",
        "NVIDIA-H20": "H20",
    }
)


def names() -> tuple[str, ...]:
    """The devices the table holds, sorted."""
    return tuple(sorted(_DEVICES))


def by_name(name: str) -> Device:
    """The device called `name` (case and separators do not matter; node-label spellings such as NVIDIA-H200 work too).

    Raises UnknownNameError, which lists the known names.
    """
    return find(_DEVICES, _ALIASES, name, "device")
