"""What one engine iteration costs on a GPU: a roofline over the kernels of a dense decoder under tensor parallelism.

    step = t0 + GEMM(n) + pointwise(n) + all-reduce(n) + prefill attention(chunks) + κ · K + head(rows)

with n new tokens in the step (one per decoding sequence plus all chunk tokens), K context tokens of the decoding
sequences, and rows sampled. Times are microseconds. Kernels are summed: no overlap between them is modelled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hlserve_capacity.devices import Device
from hlserve_capacity.shapes import ModelShape

MEMORY_SHARE = 0.88
"""Share of device memory left for weights and KV once activations and graphs are reserved."""
DEFAULT_HOST_US = 2500.0
"""t0 of a current engine; the one constant that was tuned on end-to-end latencies."""

_US = 1e6
_RIDGE_SHARE = 0.30
_THIN_SHARD_KNEE = 1.6
_POINTWISE_FLOOR_US = 15.0
_POINTWISE_EFFICIENCY = 0.9
_ALL_REDUCE_FLOOR_US = 15.0
_ALL_REDUCE_EFFICIENCY = 0.80
_HEAD_MFU = 0.5
_SHARD_WEIGHT = {1: 0.0, 2: 0.35, 4: 0.65, 8: 1.0}
"""How far weight streaming has moved from its TP1 to its TP8 efficiency."""


@dataclass(frozen=True, slots=True)
class StepParts:
    """The terms of one iteration, in microseconds; they add up to the step."""

    host_us: float
    gemm_us: float
    pointwise_us: float
    all_reduce_us: float
    prefill_attention_us: float
    decode_attention_us: float
    head_us: float

    @property
    def total_us(self) -> float:
        """The whole iteration."""
        return (
            self.host_us
            + self.gemm_us
            + self.pointwise_us
            + self.all_reduce_us
            + self.prefill_attention_us
            + self.decode_attention_us
            + self.head_us
        )


class Roofline:
    """The cost of iterations of `shape` on `tensor_parallel` devices; a StepCost.

    Raises ValueError for a tensor parallelism that no constant was fitted for. A model that does not fit has
    `pool_tokens` 0: its steps still have a price, so that kernels can be compared.
    """

    __slots__ = (
        "_device",
        "_flops_us",
        "_head_read_us",
        "_head_row_us",
        "_knee_tokens",
        "_kv_read_us",
        "_kv_token_bytes",
        "_pointwise_us",
        "_prefill_attention_us",
        "_reduce_us",
        "_shape",
        "_t0_us",
        "_tensor_parallel",
        "_weight_pass_us",
    )

    def __init__(
        self, shape: ModelShape, device: Device, tensor_parallel: int = 1, t0_us: float = DEFAULT_HOST_US
    ) -> None:
        if tensor_parallel not in _SHARD_WEIGHT:
            raise ValueError(f"tensor parallelism {tensor_parallel} is not modelled: use one of 1, 2, 4, 8")
        if t0_us < 0:
            raise ValueError(f"t0_us is {t0_us}: the host time of an iteration cannot be negative")
        self._shape, self._device, self._tensor_parallel, self._t0_us = shape, device, tensor_parallel, float(t0_us)
        ways = float(tensor_parallel)
        kv_ways = float(min(tensor_parallel, shape.kv_heads))
        slope = device.weight_stream_efficiency_tp8 - device.weight_stream_efficiency_tp1
        streaming = device.weight_stream_efficiency_tp1 + slope * _SHARD_WEIGHT[tensor_parallel]
        hbm, flops = device.hbm_bytes_per_second, device.flops_per_second
        linear, hidden = shape.linear_parameters, shape.hidden_size

        self._weight_pass_us = _US * linear * shape.bytes_per_parameter / (ways * hbm * streaming)
        self._flops_us = _US * 2 * linear / (ways * flops * device.gemm_mfu)
        self._knee_tokens = _RIDGE_SHARE * flops / hbm * (_THIN_SHARD_KNEE if tensor_parallel == 8 else 1.0)
        pointwise_bytes = (16 * hidden + 6 * shape.intermediate_size / ways) * 2
        self._pointwise_us = _US * pointwise_bytes / (hbm * _POINTWISE_EFFICIENCY)
        ring = 2 * (ways - 1) / ways * 2 * hidden
        self._reduce_us = _US * ring / (device.interconnect_bytes_per_second * _ALL_REDUCE_EFFICIENCY)
        self._kv_read_us = _US * shape.kv_bytes_per_token / (kv_ways * hbm * device.kv_read_efficiency)
        attention_flops = 4 * shape.layers * shape.heads * shape.head_dim
        self._prefill_attention_us = _US * attention_flops / (ways * flops * device.prefill_attention_mfu)
        head = shape.vocabulary * hidden
        self._head_read_us = _US * head * shape.bytes_per_parameter / (ways * hbm * streaming)
        self._head_row_us = _US * 2 * head / (ways * flops * _HEAD_MFU)
        self._kv_token_bytes = shape.kv_bytes_per_token * ways / kv_ways

    @property
    def shape(self) -> ModelShape:
        """The model."""
        return self._shape

    @property
    def device(self) -> Device:
        """The GPU."""
        return self._device

    @property
    def tensor_parallel(self) -> int:
        """GPUs that share one replica."""
        return self._tensor_parallel

    @property
    def t0_us(self) -> float:
        """Host and launch time per iteration."""
        return self._t0_us

    @property
    def pool_tokens(self) -> int:
        """KV tokens that fit beside the weights in the usual share of memory; 0 if the weights alone do not fit."""
        return self.pool_tokens_within(MEMORY_SHARE)

    @property
    def weight_pass_us(self) -> float:
        """W: one pass over the layers' weights."""
        return self._weight_pass_us

    @property
    def kv_read_us_per_token(self) -> float:
        """κ: decode attention's cost of one context token in one step."""
        return self._kv_read_us

    def pool_tokens_within(self, memory_share: float) -> int:
        """KV tokens that fit beside the weights if both may take this share of the devices' memory; 0 if none do.

        Where KV heads are fewer than devices they are replicated, and every copy takes its room.
        """
        free_bytes = self._tensor_parallel * self._device.memory_bytes * memory_share - self._shape.weight_bytes
        return max(0, int(free_bytes / self._kv_token_bytes))

    def step_us(
        self, decode_sequences: int, decode_context_tokens: int, chunks: Sequence[tuple[int, int]] = ()
    ) -> float:
        """Microseconds of one iteration; `chunks` are (new tokens, tokens in KV before them)."""
        tokens = decode_sequences
        attention = 0.0
        for new_tokens, prefix_tokens in chunks:
            tokens += new_tokens
            attention += self.prefill_attention_us(new_tokens, prefix_tokens)
        return (
            self._t0_us
            + self.gemm_us(tokens)
            + self.pointwise_us(tokens)
            + self.all_reduce_us(tokens)
            + attention
            + self._kv_read_us * decode_context_tokens
            + self.head_us(decode_sequences + len(chunks))
        )

    def step_parts(
        self, decode_sequences: int, decode_context_tokens: int, chunks: Sequence[tuple[int, int]] = ()
    ) -> StepParts:
        """The same iteration term by term."""
        tokens = decode_sequences + sum(new_tokens for new_tokens, _ in chunks)
        return StepParts(
            host_us=self._t0_us,
            gemm_us=self.gemm_us(tokens),
            pointwise_us=self.pointwise_us(tokens),
            all_reduce_us=self.all_reduce_us(tokens),
            prefill_attention_us=sum(self.prefill_attention_us(new, prefix) for new, prefix in chunks),
            decode_attention_us=self._kv_read_us * decode_context_tokens,
            head_us=self.head_us(decode_sequences + len(chunks)),
        )

    def gemm_us(self, tokens: int) -> float:
        """All layers' GEMMs: the larger of streaming the weights and multiplying `tokens` with them.

        The compute efficiency saturates as tokens / (tokens + knee); the knee scales with the device's ridge point
        FLOPS/bandwidth and is wider for the thin shards of eight-way parallelism.
        """
        if tokens <= 0:
            return 0.0
        return max(self._weight_pass_us, self._flops_us * (tokens + self._knee_tokens))

    def pointwise_us(self, tokens: int) -> float:
        """Norms, rotary embedding, activations and residuals: activation traffic of all layers."""
        if tokens <= 0:
            return 0.0
        return self._shape.layers * max(_POINTWISE_FLOOR_US, self._pointwise_us * tokens)

    def all_reduce_us(self, tokens: int) -> float:
        """Two all-reduces a layer; nothing on one device."""
        if self._tensor_parallel == 1 or tokens <= 0:
            return 0.0
        return 2 * self._shape.layers * (_ALL_REDUCE_FLOOR_US + self._reduce_us * tokens)

    def prefill_attention_us(self, new_tokens: int, prefix_tokens: int) -> float:
        """Attention of one chunk: the larger of its FLOPs and of reading the KV before it and of it once."""
        compute = self._prefill_attention_us * new_tokens * (prefix_tokens + new_tokens / 2)
        return max(compute, self._kv_read_us * (prefix_tokens + new_tokens)) if new_tokens > 0 else 0.0

    def head_us(self, rows: int) -> float:
        """The vocabulary GEMM on the sampled rows."""
        return max(self._head_read_us, self._head_row_us * rows) if rows > 0 else 0.0

    def prefill_us(self, tokens: int, *, prefix_tokens: int = 0, chunk_tokens: int | None = None) -> float:
        """One prompt alone on the engine, in chunks of `chunk_tokens` (None: in one piece)."""
        total = 0.0
        while tokens > 0:
            piece = tokens if chunk_tokens is None else min(chunk_tokens, tokens)
            total += self.step_us(0, 0, ((piece, prefix_tokens),))
            prefix_tokens += piece
            tokens -= piece
        return total
