"""Golden runs without random numbers: exact to 0.1 ms and 0.01 tokens a second."""

import pytest

from hlserve_capacity.lab.batching import Batching, Chunked, Continuous, Static
from hlserve_capacity.lab.golden import GOLDEN_MAX_BATCH, GoldenRun, requests
from hlserve_capacity.lab.metrics import LabSummary, goodput_share, summarise
from hlserve_capacity.lab.records import LabRun
from hlserve_capacity.lab.scheduler import run_open_loop
from hlserve_capacity.linear import batching_lab

STATIC = Static(GOLDEN_MAX_BATCH)
CONTINUOUS = Continuous(GOLDEN_MAX_BATCH)


def play(run: GoldenRun, batching: Batching) -> tuple[LabRun, LabSummary]:
    result = run_open_loop(requests(run), batching, batching_lab())
    return result, summarise(result)


@pytest.mark.parametrize(
    ("golden", "batching", "steps", "duration_ms", "tokens_per_second", "useful_share"),
    [
        (GoldenRun.EQUAL_LENGTHS, STATIC, 512, 6604.8, 1240.31, 1.0),
        (GoldenRun.EQUAL_LENGTHS, CONTINUOUS, 512, 6604.8, 1240.31, 1.0),
        (GoldenRun.MIXED_LENGTHS, STATIC, 1600, 20531.2, 662.41, 0.5312),
        (GoldenRun.MIXED_LENGTHS, CONTINUOUS, 1025, 12331.2, 1102.89, 1.0),
        (GoldenRun.STEADY_ARRIVALS, STATIC, 6600, 81616.2, 624.88, 0.5353),
        (GoldenRun.STEADY_ARRIVALS, CONTINUOUS, 5840, 62253.7, 819.23, 1.0),
    ],
    ids=["g0 static", "g0 continuous", "g1 static", "g1 continuous", "g2 static", "g2 continuous"],
)
def test_throughput_of_the_golden_runs(
    golden: GoldenRun,
    batching: Batching,
    steps: int,
    duration_ms: float,
    tokens_per_second: float,
    useful_share: float,
) -> None:
    _, summary = play(golden, batching)
    assert summary.steps == steps
    assert summary.duration_ms == pytest.approx(duration_ms, abs=0.1)
    assert summary.tokens_per_second == pytest.approx(tokens_per_second, abs=0.01)
    assert summary.useful_share == pytest.approx(useful_share, abs=1e-4)


@pytest.mark.parametrize(
    ("golden", "batching", "ttft_p50_ms", "ttft_p95_ms", "tpot_p95_ms"),
    [
        (GoldenRun.MIXED_LENGTHS, STATIC, 5158.4, 15424.0, 12.8),
        (GoldenRun.MIXED_LENGTHS, CONTINUOUS, 3558.4, 8381.6, 12.857),
        (GoldenRun.STEADY_ARRIVALS, STATIC, 9292.2, 17596.9, 12.8),
        (GoldenRun.STEADY_ARRIVALS, CONTINUOUS, 16.9, 21.7, 11.671),
    ],
    ids=["g1 static", "g1 continuous", "g2 static", "g2 continuous"],
)
def test_latencies_of_the_golden_runs(
    golden: GoldenRun, batching: Batching, ttft_p50_ms: float, ttft_p95_ms: float, tpot_p95_ms: float
) -> None:
    _, summary = play(golden, batching)
    assert summary.ttft.p50_ms == pytest.approx(ttft_p50_ms, abs=0.1)
    assert summary.ttft.p95_ms == pytest.approx(ttft_p95_ms, abs=0.05)
    assert summary.tpot.p95_ms == pytest.approx(tpot_p95_ms, abs=0.001)


@pytest.mark.parametrize(("batching", "share"), [(STATIC, 0.0417), (CONTINUOUS, 1.0)], ids=["static", "continuous"])
def test_goodput_of_steady_arrivals(batching: Batching, share: float) -> None:
    run, _ = play(GoldenRun.STEADY_ARRIVALS, batching)
    assert goodput_share(run, ttft_ms=1000, tpot_ms=16) == pytest.approx(share, abs=1e-4)


@pytest.mark.parametrize(
    ("batching", "ttft_ms", "itl_p99_ms", "itl_max_ms", "stalls"),
    [
        (CONTINUOUS, 99.5, 10.70, 90.7, 8),
        (Chunked(GOLDEN_MAX_BATCH, 512), 516.8, 12.75, 12.748, 0),
        (Chunked(GOLDEN_MAX_BATCH, 2048), 195.8, 18.89, 18.892, 0),
    ],
    ids=["no budget stalls eight replies for 90 ms", "a budget of 512", "a budget of 2048"],
)
def test_a_budget_trades_the_long_prompts_ttft_for_stalls(
    batching: Batching, ttft_ms: float, itl_p99_ms: float, itl_max_ms: float, stalls: int
) -> None:
    run, summary = play(GoldenRun.LONG_PROMPT, batching)
    assert summary.ttft.max_ms == pytest.approx(ttft_ms, abs=0.05)
    assert summary.itl.p99_ms == pytest.approx(itl_p99_ms, abs=0.005)
    assert summary.itl.max_ms == pytest.approx(itl_max_ms, abs=0.001)
    assert summary.stall_count == stalls
    assert sum(run.itl_counts.values()) == 3201
