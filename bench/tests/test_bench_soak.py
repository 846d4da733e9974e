"""What a soak run tells."""

from dataclasses import replace
from pathlib import Path

import pytest

from hlserve_bench.router.soak import Rest, Sample, SoakRun, render, slope, write
from hlserve_bench.router.soaking import total


def a_sample(seconds: float, memory_mib: float, errors: int = 0, sockets: int = 2010) -> Sample:
    return Sample(seconds, memory_mib, sockets, 0.5, 100.0, 400.0, 900.0, 20_000.0, 500, errors)


RUN = SoakRun(
    streams=1000, chunk_gap_milliseconds=50, chunks_per_stream=400, before=Rest(50.0, 8, 0, 0), after=Rest(55.0, 10, 0, 3000),
    samples=[a_sample(60.0 * minute, 60.0) for minute in range(1, 9)], direct_delay_p99_us=[150.0, 250.0], engine_requests=3000,
    manifest={
        "created": "2026-11-30T20:00:00+00:00", "commit": "0123456789abcdef", "uncommitted_changes": False, "kernel": "Linux 6",
        "processor": "A processor", "cores": 2, "python": "CPython 3.11.7", "python_build": "", "load_average": 1.5,
        "scheduling": "SCHED_OTHER",
    },
)  # fmt: skip


def test_memory_of_a_stream_and_what_the_router_adds() -> None:
    assert RUN.kib_per_stream == pytest.approx(10.24)
    assert RUN.added_p99_us == 200.0
    assert RUN.growth_kib_per_minute == 0
    assert RUN.findings == []


def test_streams_that_are_still_to_open_do_not_make_the_others_cheap() -> None:
    opening = a_sample(10, 52.0, sockets=1300)
    assert replace(RUN, samples=[opening, *RUN.samples]).kib_per_stream == RUN.kib_per_stream


def test_growth_is_the_slope_once_the_run_has_settled() -> None:
    warming = [a_sample(60.0 * minute, 20.0 * minute) for minute in range(1, 4)]
    growing = [a_sample(60.0 * minute, 60.0 + 0.5 * minute) for minute in range(4, 9)]
    assert replace(RUN, samples=[*warming, *growing]).growth_kib_per_minute == pytest.approx(512)


def test_a_slope_needs_two_points() -> None:
    assert slope([]) == slope([(1.0, 2.0)]) == slope([(1.0, 2.0), (1.0, 3.0)]) == 0.0


@pytest.mark.parametrize(
    ("run", "words"),
    [
        pytest.param(replace(RUN, samples=[a_sample(60, 60, errors=2)]), "2 streams broke", id="errors"),
        pytest.param(replace(RUN, after=Rest(55, 8, 1, 3000)), "1 requests are still in flight", id="in flight"),
        pytest.param(replace(RUN, after=Rest(55, 8, 0, 2999)), "2999 outcomes for 3000 streams", id="outcomes"),
        pytest.param(replace(RUN, after=Rest(55, 508, 0, 3000)), "500 more sockets", id="sockets"),
    ],
)
def test_what_is_left_behind_is_told(run: SoakRun, words: str) -> None:
    assert words in " ".join(run.findings)
    assert words in render(run)


def test_the_file_holds_all_that_the_page_needs(tmp_path: Path) -> None:
    write(tmp_path, RUN)
    assert SoakRun.from_json((tmp_path / "router-soak.json").read_text()) == RUN
    page = (tmp_path / "router-soak.md").read_text()
    assert "| memory for each open stream, first sample with all of them | 10.2 KiB |" in page
    assert "| the same at the last sample | 10.2 KiB |" in page
    assert "keeps 5.0 MiB more after the last stream" in page
    assert "Nothing was left behind" in page
    assert "busier than it has cores" not in page


def test_memory_that_grew_meanwhile_is_in_the_second_figure_only() -> None:
    grown = replace(RUN, samples=[*RUN.samples[:-1], a_sample(480, 70.0)])
    assert (grown.kib_per_stream, grown.kib_per_stream_at_the_end) == pytest.approx((10.24, 20.48))


def test_streams_of_different_lengths_are_told() -> None:
    assert "Each stream is 400 chunks,\n50 ms apart; when" in render(RUN)
    assert "Each stream is 200 to 600 chunks,\n50 ms apart, so that they" in render(replace(RUN, chunks_spread=200))


def test_a_busy_machine_is_told() -> None:
    assert "busier than it has cores" in render(replace(RUN, manifest={**RUN.manifest, "load_average": 9.0}))


def test_a_metric_is_summed_over_its_series() -> None:
    page = '# TYPE x counter\nx{a="1"} 2.0\nx{a="2"} 3.0\nx_more{a="1"} 9.0\ny 4.0\n'
    assert (total(page, "x"), total(page, "y"), total(page, "z")) == (5.0, 4.0, 0)
