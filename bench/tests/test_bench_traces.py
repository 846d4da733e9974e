"""Loaders: what they read, and the one sentence they say about a broken line."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from hlserve_bench.traces.agentic import load_agentic
from hlserve_bench.traces.azure import load_azure
from hlserve_bench.traces.mooncake import load_mooncake
from hlserve_bench.traces.reading import OnBrokenLine, Trace, TraceError

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
AZURE_ROW = "2023-11-16 18:17:03.9799600,4808,10"
MOONCAKE_ROW = '{"timestamp": 40, "input_length": 700, "output_length": 3, "hash_ids": [0, 1]}'
AGENT_ROW = '{"id":"a","block":64,"tool":10,"sys":5,"rows":[[0,640,5,0,1,0,"x"],[9,704,6,10,1,2.5,"x"]]}'


def write(folder: Path, *lines: str) -> Path:
    path = folder / "trace.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_azure_rows_carry_time_and_lengths(tmp_path: Path) -> None:
    trace = load_azure(write(tmp_path, AZURE, AZURE_ROW, "2023-11-16 18:17:04.0319600,3180,8"))
    assert [(row.input_tokens, row.output_tokens) for row in trace.rows] == [(4808, 10), (3180, 8)]
    assert trace.rows[1].at_seconds - trace.rows[0].at_seconds == pytest.approx(0.052)


def test_mooncake_rows_carry_blocks(tmp_path: Path) -> None:
    (row,) = load_mooncake(write(tmp_path, MOONCAKE_ROW)).rows
    assert (row.at_seconds, row.input_tokens, row.output_tokens, row.block_ids) == (0.04, 700, 3, (0, 1))


def test_agent_rows_carry_prefixes_in_tokens(tmp_path: Path) -> None:
    (session,) = load_agentic(write(tmp_path, AGENT_ROW)).rows
    assert session.preamble_tokens == 15
    assert [(row.input_tokens, row.output_tokens, row.prefix_tokens, row.think_seconds) for row in session.rounds] == [
        (640, 5, 0, 0.0),
        (704, 6, 640, 2.5),
    ]


def test_gzip_is_read_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(f"{AZURE}\n{AZURE_ROW}\n".encode()))
    assert load_azure(path).rows[0].input_tokens == 4808


Loader = Callable[[Path, OnBrokenLine], Trace[object]]

BROKEN = [
    pytest.param(load_azure, [AZURE, "2023-11-16 18:17:03.9,4808"], 2, "2 fields", id="azure: a field is missing"),
    pytest.param(load_azure, [AZURE, "yesterday,4808,10"], 2, 'TIMESTAMP is "yesterday"', id="azure: no time"),
    pytest.param(load_azure, [AZURE, "2023-11-16 18:17:03.9,many,10"], 2, "ContextTokens", id="azure: no number"),
    pytest.param(load_azure, [AZURE, "2023-11-16 18:17:03.9,0,10"], 2, "at least 1", id="azure: an empty prompt"),
    pytest.param(load_mooncake, ["{"], 1, "not JSON", id="mooncake: half a line"),
    pytest.param(load_mooncake, ["[1]"], 1, "not an object", id="mooncake: a list"),
    pytest.param(load_mooncake, ['{"timestamp": 1}'], 1, "input_length is missing", id="mooncake: a field is missing"),
    pytest.param(
        load_mooncake, [MOONCAKE_ROW.replace("[0, 1]", "[0]")], 1, "1 hash_ids", id="mooncake: too few block ids"
    ),
    pytest.param(
        load_mooncake, [MOONCAKE_ROW.replace("40", "-4")], 1, "timestamp is -4", id="mooncake: before the start"
    ),
    pytest.param(
        load_mooncake, [MOONCAKE_ROW.replace(": 3", ": true")], 1, "output_length is true", id="mooncake: a boolean"
    ),
    pytest.param(load_agentic, ['{"id": "a"}'], 1, "block is missing", id="agentic: a field is missing"),
    pytest.param(load_agentic, [AGENT_ROW.replace('"a"', '""')], 1, "id is not a text", id="agentic: no id"),
    pytest.param(
        load_agentic,
        ['{"id":"a","block":64,"tool":1,"sys":1,"rows":[]}'],
        1,
        "at least one round",
        id="agentic: a session without rounds",
    ),
    pytest.param(
        load_agentic,
        [AGENT_ROW.replace("[9,704,6,10,", "[9,704,6,99,")],
        1,
        "round 2 shares 6336 tokens",
        id="agentic: a prefix longer than any prompt",
    ),
    pytest.param(load_agentic, [AGENT_ROW.replace("2.5", "-1")], 1, "think_s is -1", id="agentic: negative think time"),
    pytest.param(
        load_agentic, [AGENT_ROW.replace("2.5", "NaN")], 1, "think_s", id="agentic: think time that is no number"
    ),
]


@pytest.mark.parametrize(("loader", "lines", "number", "what"), BROKEN)
def test_a_broken_line_is_named_with_file_line_and_remedy(
    tmp_path: Path, loader: Loader, lines: list[str], number: int, what: str
) -> None:
    path = write(tmp_path, *lines)
    with pytest.raises(TraceError) as caught:
        loader(path, OnBrokenLine.FAIL)
    message = str(caught.value)
    assert message.startswith(f"{path}: line {number}: ")
    assert what in message
    assert message.endswith("; correct or remove the line.")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("loader", "good", "bad"),
    [
        pytest.param(load_azure, [AZURE, AZURE_ROW], "x,y,z", id="azure"),
        pytest.param(load_mooncake, [MOONCAKE_ROW], "{", id="mooncake"),
        pytest.param(load_agentic, [AGENT_ROW], "{", id="agentic"),
    ],
)
def test_skipping_keeps_the_good_rows_and_counts_the_bad(
    tmp_path: Path, loader: Loader, good: list[str], bad: str
) -> None:
    trace = loader(write(tmp_path, *good, bad, bad), OnBrokenLine.SKIP)
    assert (len(trace.rows), trace.skipped) == (1, 2)


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        pytest.param([], "no rows", id="an empty file"),
        pytest.param(["a,b,c"], "the header is", id="another format"),
        pytest.param([AZURE, AZURE_ROW, "2023-11-16 18:17:02.0000000,1,1"], "sort the file", id="times out of order"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, lines: list[str], what: str) -> None:
    with pytest.raises(TraceError, match=what):
        load_azure(write(tmp_path, *lines))


def test_only_broken_lines_are_no_trace_even_when_skipped(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no usable row"):
        load_mooncake(write(tmp_path, "{"), OnBrokenLine.SKIP)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        load_azure(tmp_path / "nothing.csv")


def test_a_cut_gzip_says_so(tmp_path: Path) -> None:
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(gzip.compress(f"{AZURE}\n{AZURE_ROW}\n".encode() * 50)[:-20])
    with pytest.raises(TraceError, match="cut off or damaged"):
        load_azure(path)


def test_a_session_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="the session a appears twice"):
        load_agentic(write(tmp_path, AGENT_ROW, AGENT_ROW))
