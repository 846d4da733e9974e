"""What the slot timeline shows of a run."""

import pytest

from hlserve_bench.lab_plot import Span, timeline
from hlserve_capacity.lab.batching import Chunked, Continuous, Static
from hlserve_capacity.lab.golden import GoldenRun, requests
from hlserve_capacity.lab.scheduler import run_open_loop
from hlserve_capacity.lab.workload import LabRequest
from hlserve_capacity.linear import batching_lab


def total_s(spans: tuple[Span, ...]) -> float:
    return sum(span.length_s for span in spans)


def test_static_batching_shows_finished_replies_that_hold_their_slot() -> None:
    """Two replies of 1 and 11 tokens: the short one is held for ten steps of 8.6 ms."""
    run = run_open_loop([LabRequest(0, 0, 1), LabRequest(0, 0, 11)], Static(2), batching_lab())
    lines = timeline(run, 60)
    (held,) = lines.held
    assert held.slot == 0
    assert (held.start_s, held.length_s) == pytest.approx((0.0086, 0.086))
    (decoding,) = lines.decoding
    assert decoding.slot == 1
    assert decoding.length_s == pytest.approx(0.086)


def test_continuous_batching_holds_nothing() -> None:
    lines = timeline(run_open_loop(requests(GoldenRun.MIXED_LENGTHS), Continuous(16), batching_lab()), 60)
    assert lines.held == ()
    assert len(lines.prefill) == len(lines.decoding) == 64


def test_prefill_in_chunks_is_a_long_span() -> None:
    load = requests(GoldenRun.LONG_PROMPT)
    longest = max(span.length_s for span in timeline(run_open_loop(load, Chunked(16, 512), batching_lab()), 60).prefill)
    assert longest == pytest.approx(0.51, abs=0.01)


def test_spans_end_where_the_picture_ends() -> None:
    run = run_open_loop(requests(GoldenRun.MIXED_LENGTHS), Static(16), batching_lab())
    lines = timeline(run, 2.0)
    ends = [span.start_s + span.length_s for span in (*lines.prefill, *lines.decoding, *lines.held)]
    assert max(ends) == pytest.approx(2.0)
    assert total_s(lines.decoding) + total_s(lines.held) + total_s(lines.prefill) == pytest.approx(16 * 2.0)


def test_the_queue_is_counted_from_arrival_to_admission() -> None:
    """One slot, three requests at once, 83 ms each."""
    run = run_open_loop([LabRequest(0, 0, 10)] * 3, Continuous(1), batching_lab())
    waiting = dict(timeline(run, 60).waiting)
    assert waiting[0.0] == 2
    assert waiting[0.083] == 1
    assert waiting[0.166] == 0
