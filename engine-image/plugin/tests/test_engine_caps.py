"""The cap table: latency and chunk caps are lifted, hardware and memory caps never."""

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_engine.caps import CAPS, CapClass, CapValue, cap_log, prefill_ceiling_tokens

STOCK: dict[str, CapValue] = {
    "enable_prefill_delayer": True,
    "prefill_decode_interval": 22,
    "prefill_max_requests": 8,
    "scheduling_chunk_size": 8192,
    "max_prefill_tokens": 16_384,
    "pp_max_micro_batch_size": 4,
    "max_running_requests": 256,
    "max_total_num_tokens": 431_000,
}


def test_engine_caps_lift_latency_and_chunk_and_keep_the_rest() -> None:
    after = {entry.cap.name: entry.after for entry in cap_log(STOCK, prefill_ceiling_tokens=40_000)}
    assert after == {
        "enable_prefill_delayer": False,
        "prefill_decode_interval": 0,
        "prefill_max_requests": None,
        "scheduling_chunk_size": None,
        "max_prefill_tokens": 40_000,
        "pp_max_micro_batch_size": 4,
        "max_running_requests": 256,
        "max_total_num_tokens": 431_000,
    }


@given(st.dictionaries(st.sampled_from([cap.name for cap in CAPS]), st.integers(0, 10**6)))
def test_engine_caps_of_hardware_and_memory_are_never_touched(current: dict[str, CapValue]) -> None:
    for entry in cap_log(current, prefill_ceiling_tokens=1):
        if entry.cap.cap_class in {CapClass.HARDWARE, CapClass.MEMORY}:
            assert entry.after == entry.before


def test_engine_caps_cover_all_four_classes_once_a_name() -> None:
    assert {cap.cap_class for cap in CAPS} == set(CapClass)
    assert len({cap.name for cap in CAPS}) == len(CAPS)


def test_engine_caps_log_says_what_changed_and_why() -> None:
    lines = [entry.line() for entry in cap_log(STOCK, prefill_ceiling_tokens=40_000)]
    assert "cap prefill_decode_interval class a: 22 -> 0; it forces decode passes between two prefills" in lines
    assert "cap max_running_requests class d: 256 (unchanged); it bounds the rows of the request table" in lines


@pytest.mark.parametrize(
    ("context", "free_mebibytes", "want"),
    [
        pytest.param(131_072, 60_000.0, 40_000, id="memory binds"),
        pytest.param(32_768, 60_000.0, 32_768, id="the context binds"),
        pytest.param(32_768, -3.0, 0, id="nothing is free"),
    ],
)
def test_engine_caps_prefill_ceiling(context: int, free_mebibytes: float, want: int) -> None:
    assert prefill_ceiling_tokens(context, free_mebibytes) == want


def test_engine_caps_refuse_a_ceiling_of_nothing() -> None:
    with pytest.raises(ValueError, match="Lower mem-fraction-static"):
        cap_log(STOCK, prefill_ceiling_tokens=0)


def test_engine_leaves_the_standard_librarys_operator_alone() -> None:
    assert operator.add(1, 1) == 2
