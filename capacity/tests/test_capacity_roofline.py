"""The roofline against published kernel profiles, latencies and decode slopes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_capacity import devices, shapes
from hlserve_capacity.roofline import Roofline

# Medians of public kernel profiles: (shape, device, tensor parallelism, tokens, GEMM + other, milliseconds a layer).
KERNEL_POINTS = [
    ("qwen-72b", "H100", 1, 1, 0.603 + 0.036),
    ("qwen-72b", "H100", 1, 64, 0.627 + 0.038),
    ("qwen-72b", "H100", 1, 256, 0.749 + 0.049),
    ("qwen-72b", "H100", 1, 1024, 2.797 + 0.179),
    ("qwen-72b", "H100", 1, 4096, 10.381 + 0.794),
    ("qwen-72b", "H100", 8, 1, 0.093 + 0.017),
    ("qwen-72b", "H100", 8, 64, 0.096 + 0.018),
    ("qwen-72b", "H100", 8, 256, 0.131 + 0.022),
    ("qwen-72b", "H100", 8, 1024, 0.365 + 0.074),
    ("qwen-72b", "H100", 8, 4096, 1.195 + 0.349),
    ("codellama-34b", "H100", 1, 1, 0.478 + 0.029),
    ("codellama-34b", "H100", 1, 64, 0.490 + 0.032),
    ("codellama-34b", "H100", 1, 256, 0.597 + 0.040),
    ("codellama-34b", "H100", 1, 1024, 2.220 + 0.152),
    ("codellama-34b", "H100", 1, 4096, 7.938 + 0.685),
    ("codellama-34b", "H100", 8, 1, 0.074 + 0.017),
    ("codellama-34b", "H100", 8, 256, 0.112 + 0.022),
    ("codellama-34b", "H100", 8, 1024, 0.286 + 0.073),
    ("codellama-34b", "H100", 8, 4096, 0.975 + 0.340),
    ("llama-3.1-8b", "A100-80G", 1, 1, 0.276 + 0.027),
    ("llama-3.1-8b", "A100-80G", 1, 256, 0.554 + 0.055),
    ("llama-3.1-8b", "A100-80G", 1, 1024, 2.175 + 0.173),
    ("llama-3.1-8b", "A100-80G", 1, 4096, 7.817 + 0.712),
    ("llama-3.1-8b", "A100-80G", 1, 32_768, 61.887 + 5.655),
    ("llama-3.1-70b", "A100-80G", 8, 1, 0.154 + 0.025),
    ("llama-3.1-70b", "A100-80G", 8, 256, 0.338 + 0.045),
    ("llama-3.1-70b", "A100-80G", 8, 1024, 1.036 + 0.144),
    ("llama-3.1-70b", "A100-80G", 8, 8192, 7.545 + 1.225),
    ("llama-3.1-70b", "A100-80G", 8, 32_768, 30.175 + 4.866),
]


def cost(shape: str, device: str, tensor_parallel: int = 1, t0_us: float = 2500) -> Roofline:
    return Roofline(shapes.by_name(shape), devices.by_name(device), tensor_parallel, t0_us)


def test_all_29_kernel_points_are_here() -> None:
    assert len(KERNEL_POINTS) == 29


@pytest.mark.parametrize(
    ("shape", "device", "tensor_parallel", "tokens", "measured_ms"),
    KERNEL_POINTS,
    ids=[f"{shape} on {tp} {device}, {tokens} tokens" for shape, device, tp, tokens, _ in KERNEL_POINTS],
)
def test_a_layer_costs_what_public_profiles_measured(
    shape: str, device: str, tensor_parallel: int, tokens: int, measured_ms: float
) -> None:
    model = cost(shape, device, tensor_parallel)
    layer_ms = (model.gemm_us(tokens) + model.pointwise_us(tokens)) / model.shape.layers / 1000
    assert layer_ms == pytest.approx(measured_ms, rel=0.15)


@pytest.mark.parametrize(
    ("shape", "tensor_parallel", "measured_ms", "model_ms"),
    [("llama-3.1-8b", 1, 833.4, 853), ("llama-3.1-70b", 4, 2077.5, 2028)],
    ids=["8B on one H200", "70B on four H200"],
)
def test_one_host_time_explains_both_published_latencies(
    shape: str, tensor_parallel: int, measured_ms: float, model_ms: float
) -> None:
    """Batch 8, 32 tokens in, 128 out."""
    model = cost(shape, "H200", tensor_parallel)
    total_ms = (model.prefill_us(8 * 32) + sum(model.step_us(8, 8 * (32 + k)) for k in range(1, 128))) / 1000
    assert total_ms == pytest.approx(measured_ms, rel=0.10)
    assert total_ms == pytest.approx(model_ms, abs=1)


@pytest.mark.parametrize(
    ("shape", "tensor_parallel", "published_ms_per_token", "tolerance"),
    [
        ("opt-13b", 1, 6.27e-4, 0.04),
        ("opt-13b", 4, 1.88e-4, 0.15),
        ("opt-66b", 4, 4.52e-4, 0.04),
        ("opt-66b", 8, 2.27e-4, 0.04),
    ],
    ids=["13B on one", "13B on four (known to be 14 % low)", "66B on four", "66B on eight"],
)
def test_decode_slopes_on_a100_match_published_fits(
    shape: str, tensor_parallel: int, published_ms_per_token: float, tolerance: float
) -> None:
    slope_ms = cost(shape, "A100-80G", tensor_parallel).kv_read_us_per_token / 1000
    assert slope_ms == pytest.approx(published_ms_per_token, rel=tolerance)


def test_an_all_reduce_of_67_mb_matches_its_measurement() -> None:
    model = cost("qwen-72b", "H100", 8)
    one_ms = model.all_reduce_us(4096) / (2 * model.shape.layers) / 1000
    assert one_ms == pytest.approx(0.341, abs=0.001)
    assert one_ms == pytest.approx(0.322, rel=0.10)


def test_kv_heads_are_replicated_where_there_are_fewer_than_devices() -> None:
    """Two KV heads on eight devices: each device reads and keeps one, so four copies exist."""
    two = shapes.custom(
        "grouped", parameters=8_000_000_000, layers=32, hidden_size=4096, heads=32, kv_heads=2, head_dim=128
    )
    on_two, on_eight = (Roofline(two, devices.by_name("H200"), ways) for ways in (2, 8))
    assert on_eight.kv_read_us_per_token == pytest.approx(on_two.kv_read_us_per_token)
    assert on_eight.pool_tokens < 1.2 * on_two.pool_tokens


def test_one_device_reduces_nothing() -> None:
    assert cost("llama-3.1-8b", "H200").all_reduce_us(4096) == 0


@pytest.mark.parametrize(
    ("shape", "device", "tensor_parallel", "pool_tokens"),
    [
        ("qwen2.5-32b", "H20", 8, 2_330_000),
        ("llama-3.1-8b", "H200", 1, 820_000),
        ("qwen2.5-32b", "H200", 1, 220_000),
        ("llama-3.1-8b", "A100-80G", 1, 414_581),
        ("llama-3.1-70b", "H100", 8, 1_290_000),
    ],
    ids=["32B on eight H20", "8B on one H200", "32B on one H200", "8B on one A100", "70B on eight H100"],
)
def test_pools_hold_the_known_numbers_of_tokens(
    shape: str, device: str, tensor_parallel: int, pool_tokens: int
) -> None:
    assert cost(shape, device, tensor_parallel).pool_tokens == pytest.approx(pool_tokens, abs=5000)


def test_weights_that_do_not_fit_leave_no_pool() -> None:
    assert cost("llama-3.1-70b", "H100", 1).pool_tokens == 0


def test_eight_h20_have_the_known_step_times() -> None:
    model = cost("qwen2.5-32b", "H20", 8, t0_us=4000)
    assert model.weight_pass_us == pytest.approx(2790, abs=10)
    assert 1000 * model.kv_read_us_per_token == pytest.approx(10.9, abs=0.05)
    assert model.step_us(1, 1024) / 1000 == pytest.approx(9.8, abs=0.05)
    assert model.step_us(64, 64 * 32_768) / 1000 == pytest.approx(35.3, abs=0.05)
    seconds = [model.prefill_us(tokens) / 1e6 for tokens in (8192, 32_768, 65_536)]
    assert seconds == pytest.approx([0.63, 3.15, 7.99], abs=0.006)


def test_one_h200_prefills_64k_of_an_8b_model_in_3_5_seconds() -> None:
    assert cost("llama-3.1-8b", "H200", t0_us=4000).prefill_us(65_536) / 1e6 == pytest.approx(3.46, abs=0.01)


@pytest.mark.parametrize(
    ("tokens", "chunk_tokens", "slowdown_percent"),
    [
        (65_536, 256, 22.6),
        (65_536, 512, 11.2),
        (65_536, 1024, 5.6),
        (65_536, 2048, 2.7),
        (65_536, 4096, 1.3),
        (65_536, 8192, 0.6),
        (8192, 256, 34.7),
        (8192, 512, 16.7),
        (8192, 1024, 7.8),
        (8192, 2048, 3.3),
        (8192, 4096, 1.1),
    ],
)
def test_small_chunks_slow_a_prefill_down(tokens: int, chunk_tokens: int, slowdown_percent: float) -> None:
    model = cost("qwen2.5-32b", "H20", 8, t0_us=4000)
    ratio = model.prefill_us(tokens, chunk_tokens=chunk_tokens) / model.prefill_us(tokens)
    assert 100 * (ratio - 1) == pytest.approx(slowdown_percent, abs=0.06)


def test_the_parts_of_a_step_add_up_to_it() -> None:
    model = cost("llama-3.1-70b", "H100", 8)
    arguments = (13, 40_000, ((512, 0), (100, 2000)))
    parts = model.step_parts(*arguments)
    assert parts.total_us == pytest.approx(model.step_us(*arguments), rel=1e-12)
    assert min(parts.gemm_us, parts.all_reduce_us, parts.prefill_attention_us, parts.head_us) > 0


def test_an_empty_step_costs_only_host_time() -> None:
    assert cost("llama-3.1-8b", "H200").step_us(0, 0) == 2500


@given(
    chunk_tokens=st.integers(64, 40_000),
    tokens=st.integers(1, 40_000),
    device=st.sampled_from(devices.names()),
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
)
def test_chunking_never_makes_a_prefill_faster(
    chunk_tokens: int, tokens: int, device: str, tensor_parallel: int
) -> None:
    model = cost("llama-3.1-8b", device, tensor_parallel)
    whole_us = model.prefill_us(tokens)
    assert model.prefill_us(tokens, chunk_tokens=chunk_tokens) >= whole_us * (1 - 1e-12)


@given(
    sequences=st.integers(0, 200),
    context_tokens=st.integers(0, 500_000),
    chunk_tokens=st.integers(0, 5000),
    prefix_tokens=st.integers(0, 50_000),
    more=st.integers(1, 1000),
)
def test_more_work_never_makes_a_step_shorter(
    sequences: int, context_tokens: int, chunk_tokens: int, prefix_tokens: int, more: int
) -> None:
    model = cost("llama-3.1-8b", "A100-80G")
    base_us = model.step_us(sequences, context_tokens, ((chunk_tokens, prefix_tokens),))
    assert model.step_us(sequences + more, context_tokens, ((chunk_tokens, prefix_tokens),)) >= base_us
    assert model.step_us(sequences, context_tokens + more, ((chunk_tokens, prefix_tokens),)) > base_us
    assert model.step_us(sequences, context_tokens, ((chunk_tokens + more, prefix_tokens),)) >= base_us
    assert model.step_us(sequences, context_tokens, ((chunk_tokens, prefix_tokens + more),)) >= base_us


@pytest.mark.parametrize("tensor_parallel", [0, 3, 16], ids=["zero", "three", "sixteen"])
def test_a_tensor_parallelism_without_constants_is_refused(tensor_parallel: int) -> None:
    with pytest.raises(ValueError, match="use one of 1, 2, 4, 8"):
        cost("llama-3.1-8b", "H200", tensor_parallel)


def test_a_negative_host_time_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        cost("llama-3.1-8b", "H200", t0_us=-1)
