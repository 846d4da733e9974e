"""`hlserve size` on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hlserve_bench.size_command import size
from hlserve_bench.size_inputs import peak_minute_rps

A100 = ("--device", "A100-80G", "--model", "llama-3.1-8b")
CHAT = ("--input-p95", "4000", "--output-p95", "800", "--peak-rps", "6")
LAB = ("--lab", "--whole-prompts", "--margin", "0", "--input-mean", "200", "--output-mean", "200")
SLO = ("--ttft-ms", "1000", "--tpot-ms", "20")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(size, arguments)


def answer(*arguments: str) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.output)
    return document


def test_a_chat_pool_gets_the_batch_and_chunk_that_derivation_gives_it() -> None:
    found = answer(*A100, *CHAT, *SLO, "--seeds", "2", "--seconds", "120")
    assert (found["batch"], found["chunk_tokens"], found["batch_limit"]) == (21, 128, "tpot")
    assert found["capacity_rps"] < found["decode_capacity_rps"]
    assert found["capacity_limit"] == "ttft_queue"
    assert found["replicas"] >= 2
    assert "A100-80G" in found["basis"]


def test_the_lab_needs_three_replicas_of_sixteen_slots() -> None:
    found = answer(*LAB, "--ttft-ms", "1000", "--tpot-ms", "16", "--peak-rps", "10", "--max-batch", "16")
    assert (found["batch"], found["batch_limit"], found["replicas"]) == (16, "engine", 3)
    assert found["kv_ceiling"] is None


def test_without_the_queue_check_the_lab_seems_to_need_two() -> None:
    found = answer(
        *LAB, "--ttft-ms", "1000", "--tpot-ms", "16", "--peak-rps", "10", "--batch", "16", "--no-queue-check"
    )
    assert (found["replicas"], found["queue_capacity_rps"]) == (2, None)


def test_a_human_less_pool_is_bound_by_memory() -> None:
    found = answer(*A100, "--human-less", "--input-p95", "32000", "--output-p95", "768", "--peak-rps", "1")
    assert (found["batch"], found["batch_limit"], found["chunk_tokens"]) == (11, "kv_pool", None)
    assert found["sessions_per_replica"] > 11


def test_the_text_names_what_binds() -> None:
    result = invoke(*A100, *CHAT, *SLO, "--no-queue-check")
    assert result.exit_code == 0
    words = " ".join(result.output.replace("│", " ").split())
    assert "bound by TPOT: mean step 18.0 ms within 90 % of TPOT 20 ms" in words
    assert "replicas 2" in words
    assert max(len(line) for line in result.output.splitlines()) <= 80


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*A100, *CHAT, "--tpot-ms", "10"), "one request alone takes 12.7 ms a token"),
        (
            (*A100, "--input-p95", "40000", "--output-p95", "500", "--peak-rps", "1", "--ttft-ms", "1000"),
            "5316 ms alone",
        ),
        ((*A100, "--input-p95", "500000", "--output-p95", "500", "--peak-rps", "1", "--tpot-ms", "50"), "KV tokens"),
        (("--device", "H100", "--model", "llama-3.1-70b", *CHAT, "--tpot-ms", "50"), "do not fit"),
    ],
    ids=["TPOT", "TTFT", "memory", "weights"],
)
def test_infeasible_is_exit_code_3_and_a_sentence(arguments: tuple[str, ...], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr.startswith("Infeasible: ")
    assert words in result.stderr


def test_infeasible_as_json_has_its_floor() -> None:
    result = invoke(*A100, *CHAT, "--tpot-ms", "10", "--json")
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    assert (document["feasible"], document["reason"]) == (False, "tpot")
    assert document["floor"] == pytest.approx(12.7, abs=0.05)


@pytest.mark.parametrize("option", ["--ttft-ms", "--input-p95", "--peak-rps", "--utilisation", "--seconds", "--t0-ms"])
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_number_that_is_not_finite_is_refused(option: str, number: str) -> None:
    result = invoke(*A100, *CHAT, *SLO, option, number)
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': {number} is no finite number." in result.output


def write_azure(path: Path) -> Path:
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for index in range(240):
        minute, second = divmod(index // 2, 60)
        lines.append(f"2023-11-16 18:{minute:02d}:{second:02d}.0000000,{100 + index},{10 + index % 20}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_trace_gives_lengths_and_peak(tmp_path: Path) -> None:
    trace = write_azure(tmp_path / "trace.csv")
    found = answer(*A100, *SLO, "--trace", str(trace), "--no-queue-check")
    assert found["lengths"]["input_mean"] == pytest.approx(100 + 239 / 2)
    assert found["peak_rps"] == 2.0


def test_sessions_bring_their_reuse_but_no_rate(tmp_path: Path) -> None:
    trace = tmp_path / "sessions.jsonl"
    session = {
        "id": "a",
        "block": 64,
        "tool": 10,
        "sys": 10,
        "rows": [[0, 1000, 50, 0, 1, 0, "tool_use"], [9, 2000, 50, 15, 1, 1, "end_turn"]],
    }
    trace.write_text(json.dumps(session) + "\n", encoding="utf-8")
    options = (*A100, "--human-less", "--trace", str(trace), "--trace-format", "agentic")
    assert answer(*options, "--peak-rps", "1")["lengths"]["prefix_hit_rate"] == pytest.approx(960 / 3000)
    refused = invoke(*options)
    assert refused.exit_code == 2
    assert "give --peak-rps" in refused.output


def test_the_peak_is_the_99th_percentile_of_the_minutes() -> None:
    arrivals = [minute * 60 + second for minute in range(200) for second in range(10 if minute % 50 else 60)]
    assert peak_minute_rps(arrivals) == 1.0
    assert peak_minute_rps([0.0, *range(60, 120)]) == 1.0
    assert peak_minute_rps([]) is None


def test_a_calibration_takes_the_place_of_names(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    document = {
        "schemaVersion": 1,
        "engine": "sglang 0.5.23",
        "device": "H200",
        "model": "mine",
        "t0Us": 2000,
        "weightPassUs": 6000,
        "sequenceUs": 300,
        "contextTokenUs": 0,
        "prefillTokenUs": 4,
        "chunkBoundaryUs": 0,
        "poolTokens": 1_000_000,
        "fitErrors": {"medianPercent": 2, "maxPercent": 7},
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    options = ("--calibration", str(path), *LAB[1:], "--tpot-ms", "16", "--peak-rps", "1", "--no-queue-check")
    found = answer(*options)
    assert found["batch"] == 26
    assert "calibration of sglang 0.5.23, mine on 1 × H200" in found["basis"]
    path.write_text("{}", encoding="utf-8")
    broken = invoke(*options)
    assert broken.exit_code == 1
    assert "hlserve bench calibrate" in broken.output


def test_the_list_names_devices_and_shapes() -> None:
    result = invoke("--list")
    assert result.exit_code == 0
    assert all(name in result.output for name in ("A100-80G", "H20", "llama-3.1-8b", "qwen3-32b"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*A100, *CHAT), "give --ttft-ms or --tpot-ms"),
        ((*A100, *CHAT, *SLO, "--human-less"), "has no latency targets"),
        ((*CHAT, *SLO), "name one engine"),
        ((*A100, "--lab", *CHAT, *SLO), "name one engine"),
        (("--device", "A100", *CHAT, *SLO), "go together"),
        (("--device", "B200", "--model", "llama-3.1-8b", *CHAT, *SLO), "unknown device 'B200'"),
        (("--device", "H200", "--model", "gpt-9", *CHAT, *SLO), "unknown model shape 'gpt-9'"),
        ((*A100, *SLO, "--output-p95", "100", "--peak-rps", "1"), "the input lengths are missing"),
        ((*A100, *SLO, *CHAT, "--input-mean", "9000"), "far below --input-mean"),
        ((*A100, *SLO, "--input-mean", "100", "--output-mean", "100"), "peak rate is missing"),
        ((*A100, *SLO, *CHAT, "--tensor-parallel", "3"), "use one of 1, 2, 4, 8"),
        ((*A100, *SLO, *CHAT, "--utilisation", "2"), "at most 1"),
        ((*A100, *SLO, "--trace", "nowhere.csv"), "does not exist"),
    ],
)
def test_bad_input_gets_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code in {1, 2}
    assert words in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_a_trace_of_another_format_is_said(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("when,what\n1,2\n", encoding="utf-8")
    result = invoke(*A100, *SLO, "--trace", str(trace))
    assert result.exit_code == 1
    assert "header" in result.output
