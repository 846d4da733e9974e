"""`hlserve lab` on the command line."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hlserve_bench.lab_command import lab
from hlserve_bench.lab_loads import parse_burst, parse_length
from hlserve_capacity.lab.workload import Burst


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(lab, arguments)


def rows(*arguments: str) -> list[dict[str, Any]]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert document["basis"] == "simulated"
    found: list[dict[str, Any]] = document["rows"]
    return found


def test_static_and_continuous_are_compared_by_default() -> None:
    static, continuous = rows("--golden", "g1")
    assert (static["scheduler"], continuous["scheduler"]) == ("static", "continuous")
    assert static["tokens_per_second"]["mean"] == pytest.approx(662.41, abs=0.01)
    assert continuous["tokens_per_second"]["mean"] == pytest.approx(1102.89, abs=0.01)
    assert static["duration_ms"]["mean"] == pytest.approx(20531.2)


def test_a_budget_removes_the_stall() -> None:
    whole, chunked = rows("continuous", "chunked", "--golden", "g3", "--budget", "2048")
    assert (whole["stall_count"]["mean"], chunked["stall_count"]["mean"]) == (8, 0)
    assert whole["itl_max_ms"]["mean"] == pytest.approx(90.7)
    assert chunked["ttft_p95_ms"]["mean"] > whole["ttft_p95_ms"]["mean"]
    assert (whole["budget_tokens"], chunked["budget_tokens"]) == (None, 2048)


def test_rates_and_batches_make_one_row_each() -> None:
    found = rows(
        *(
            "continuous",
            "--rate",
            "2",
            "--rate",
            "12",
            "--batch",
            "8",
            "--batch",
            "16",
            "--seeds",
            "2",
            "--seconds",
            "20",
        )
    )
    assert [(row["load"], row["max_batch"]) for row in found] == [
        ("2 rps", 8),
        ("2 rps", 16),
        ("12 rps", 8),
        ("12 rps", 16),
    ]
    assert all(row["seeds"] == 2 for row in found)
    assert found[0]["tokens_per_second"]["low"] <= found[0]["tokens_per_second"]["mean"]
    assert found[3]["ttft_p95_ms"]["mean"] > 20 * found[1]["ttft_p95_ms"]["mean"]


def test_a_cut_run_counts_the_unfinished_as_missed() -> None:
    options = ("continuous", "--rate", "12", "--seeds", "2")
    (drained,), (cut,) = rows(*options), rows(*options, "--cut")
    assert drained["finished"]["mean"] == drained["arrivals"]["mean"]
    assert cut["finished"]["mean"] < cut["arrivals"]["mean"] == drained["arrivals"]["mean"]
    assert cut["duration_ms"]["mean"] == pytest.approx(60_000, abs=30)


def test_a_closed_loop_holds_its_throughput() -> None:
    few, many = rows("continuous", "--clients", "16", "--clients", "64", "--seeds", "3")
    assert few["tokens_per_second"]["mean"] == pytest.approx(1244, rel=0.03)
    assert many["tokens_per_second"]["mean"] == pytest.approx(1244, rel=0.03)
    assert many["ttft_p95_ms"]["mean"] > 100 * few["ttft_p95_ms"]["mean"]


def test_a_burst_raises_the_wait() -> None:
    options = ("continuous", "--seeds", "5")
    (calm,), (burst,) = rows(*options), rows(*options, "--burst", "20,30,2.5")
    assert burst["ttft_p95_ms"]["mean"] > 3 * calm["ttft_p95_ms"]["mean"]


def test_the_engine_can_be_changed() -> None:
    (slow,) = rows("continuous", "--golden", "g0", "--step-ms", "16", "--sequence-ms", "0.6", "--prompt-token-us", "8")
    assert slow["duration_ms"]["mean"] == pytest.approx(2 * 6604.8)


def test_the_table_fits_80_columns_and_says_simulated() -> None:
    result = invoke("static", "continuous", "chunked", "--rate", "4", "--seeds", "2", "--seconds", "20")
    assert result.exit_code == 0
    assert "simulated" in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80
    assert "…" not in result.output
    assert "chunked 512" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate", "4", "--golden", "g1"), "three kinds of load"),
        (("--golden", "g9"), "'g9' is not one of"),
        (("rolling",), "'rolling' is not one of"),
        (("--rate", "0"), "0.0 is not in the range"),
        (("--rate", "nan"), "nan is no finite number"),
        (("--seconds", "inf", "--seeds", "1"), "inf is no finite number"),
        (("--think-ms", "nan"), "nan is no finite number"),
        (("--prompts", "many"), "'many' is no length: write 200, 50-350, exp:200"),
        (("--prompts", "exp:nan"), "'exp:nan' is no length: 'nan' is no number of tokens"),
        (("--prompts", "lognormal:150,inf"), "'inf' is no number of tokens"),
        (("--outputs", "exp:-1"), "'exp:-1' is no length"),
        (("--outputs", "normal:5"), "write 200, 50-350, exp:200"),
        (("--burst", "20,30"), "write START,END,FACTOR"),
        (("--burst", "20,10,2", "--rate", "4"), "'20,10,2' is no burst: a burst needs 0 <= start < end"),
        (("--burst", "20,nan,2", "--rate", "4"), "its numbers must be finite"),
        (("--burst", "20,30,2", "--clients", "4"), "needs an open loop"),
        (("--outputs", "0", "--seeds", "1"), "at least one token"),
        (("--golden", "g1", "--plot", "timeline.gif"), "ends in .png, .svg, .pdf"),
        (("--golden", "g1", "--plot", "/nowhere/timeline.png"), "cannot be drawn"),
    ],
)
def test_bad_input_gets_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code in {1, 2}
    assert words in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("200", 200, 200), ("50-350", 50, 350), ("exp:200", 1, 4000), ("lognormal:150,1500", 1, 20_000)],
)
def test_lengths_as_they_are_written(text: str, low: int, high: int) -> None:
    random, draw = Random(0), parse_length(text)
    drawn = [draw(random) for _ in range(500)]
    assert low <= min(drawn)
    assert max(drawn) <= high
    assert (len(set(drawn)) == 1) == (low == high)


def test_a_burst_as_it_is_written() -> None:
    assert parse_burst("20,30,2.5") == Burst(20, 30, 2.5)


def test_the_timeline_is_drawn_as_a_png(tmp_path: Path) -> None:
    picture = tmp_path / "timeline.png"
    result = invoke("static", "continuous", "--golden", "g1", "--plot", str(picture))
    assert result.exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "timeline.png" in "".join(result.output.split())


def test_the_timeline_is_drawn_as_an_svg(tmp_path: Path) -> None:
    picture = tmp_path / "timeline.svg"
    assert invoke("static", "--golden", "g1", "--plot", str(picture)).exit_code == 0
    assert ET.fromstring(picture.read_text(encoding="utf-8")).tag.endswith("svg")
