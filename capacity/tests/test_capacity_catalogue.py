"""The device table and the model catalogue."""

import pytest

from hlserve_capacity import devices, shapes
from hlserve_capacity.lookup import UnknownNameError


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("A100-80G", "A100-80G"),
        ("a100_80g", "A100-80G"),
        ("NVIDIA-A100-SXM4-80GB", "A100-80G"),
        ("h100", "H100"),
        ("NVIDIA-H100-80GB-HBM3", "H100"),
        ("H200", "H200"),
        ("H20", "H20"),
    ],
)
def test_devices_are_found_by_their_spellings(asked: str, found: str) -> None:
    assert devices.by_name(asked).name == found


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen2.5-32B", "qwen2.5-32b"),
        ("Qwen3-32B", "qwen3-32b"),
    ],
)
def test_shapes_are_found_by_their_spellings(asked: str, found: str) -> None:
    assert shapes.by_name(asked).name == found


def test_an_unknown_device_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="A100-80G, H100, H20, H200") as refused:
        devices.by_name("B200")
    assert "did you mean H200?" in str(refused.value)


def test_an_unknown_shape_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown model shape 'gpt-9': known are .*qwen-72b"):
        shapes.by_name("gpt-9")


@pytest.mark.parametrize(
    ("name", "teraflops", "terabytes_per_second", "gigabytes", "efficiencies"),
    [
        ("A100-80G", 312, 2.039, 80, (0.75, 0.78, 0.65, 0.62, 0.50)),
        ("H100", 989, 3.35, 80, (0.75, 0.86, 0.70, 0.75, 0.55)),
        ("H200", 989, 4.8, 141, (0.75, 0.86, 0.70, 0.75, 0.55)),
        ("H20", 148, 4.0, 96, (0.88, 0.86, 0.70, 0.75, 0.70)),
    ],
)
def test_devices_have_the_figures_that_the_model_was_checked_with(
    name: str, teraflops: float, terabytes_per_second: float, gigabytes: float, efficiencies: tuple[float, ...]
) -> None:
    """GEMM plateau, weight streaming on one and on eight devices, KV reads, prefill attention."""
    device = devices.by_name(name)
    assert device.flops_per_second == pytest.approx(teraflops * 1e12)
    assert device.hbm_bytes_per_second == pytest.approx(terabytes_per_second * 1e12)
    assert device.memory_bytes == pytest.approx(gigabytes * 1e9)
    assert (
        device.gemm_mfu,
        device.weight_stream_efficiency_tp1,
        device.weight_stream_efficiency_tp8,
        device.kv_read_efficiency,
        device.prefill_attention_mfu,
    ) == efficiencies


@pytest.mark.parametrize("name", devices.names())
def test_every_device_says_what_its_figures_rest_on(name: str) -> None:
    device = devices.by_name(name)
    assert device.basis
    assert device.default_chunk_tokens == 8192


@pytest.mark.parametrize(
    ("name", "billion", "kv_kib"),
    [
        ("llama-3.1-8b", 8.03, 128),
        ("llama-3.1-70b", 70.55, 320),
        ("qwen2.5-32b", 32.76, 256),
        ("qwen3-32b", 32.76, 256),
        ("opt-13b", 13.1, 800),
    ],
)
def test_shapes_have_the_published_sizes(name: str, billion: float, kv_kib: float) -> None:
    shape = shapes.by_name(name)
    assert shape.parameters / 1e9 == pytest.approx(billion, rel=0.01)
    assert shape.kv_bytes_per_token / 1024 == kv_kib


def test_a_shape_given_by_numbers_equals_the_catalogue_entry() -> None:
    known = shapes.by_name("llama-3.1-8b")
    given = shapes.custom(
        "mine", parameters=known.parameters, layers=32, hidden_size=4096, heads=32, kv_heads=8, head_dim=128
    )
    assert given.intermediate_size == known.intermediate_size
    assert given.parameters == known.parameters
    assert given.kv_bytes_per_token == known.kv_bytes_per_token


def test_too_few_parameters_for_the_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="too few for 32 layers"):
        shapes.custom("mine", parameters=10**9, layers=32, hidden_size=4096, heads=32, kv_heads=8, head_dim=128)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "message"),
    [(0, 8, "heads is 0"), (32, 0, "kv_heads is 0"), (32, 5, "multiple of kv_heads")],
    ids=["no heads", "no KV heads", "heads that do not divide"],
)
def test_impossible_dimensions_are_refused(heads: int, kv_heads: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shapes.ModelShape(
            name="mine",
            layers=2,
            hidden_size=64,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=16,
            intermediate_size=128,
            vocabulary=1000,
        )
