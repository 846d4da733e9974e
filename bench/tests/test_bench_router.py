"""The router's benchmark: what it reads, computes, decides and writes; and its two C programs against each other."""

import http.client
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from hlserve_api.routing import parse_keyring, parse_table
from hlserve_bench.router.__main__ import main
from hlserve_bench.router.candidates import BY_NAME, CANDIDATES, DIRECT, Kind, Site
from hlserve_bench.router.cases import CASES, ORDINARY, Case, Load
from hlserve_bench.router.figures import Estimate, Figures, estimate, inverse, lowest, ratio
from hlserve_bench.router.goals import GOALS, Goal, Verdict
from hlserve_bench.router.interpreter import environment, in_words, look
from hlserve_bench.router.manifest import Manifest, commit_in_words, load_in_words
from hlserve_bench.router.measuring import Bench, MeasurementError, Target, client_values, combine, said
from hlserve_bench.router.page import render, write_page
from hlserve_bench.router.peers import Missing, Ready, prepare
from hlserve_bench.router.processes import established, start, tree
from hlserve_bench.router.programs import HarnessError, Programs, build, free_ports
from hlserve_bench.router.rows import Row, read_rows, write_rows
from hlserve_bench.router.running import answers, shuffled, until
from hlserve_bench.router.table import AGENT_KEY, write_documents
from hlserve_bench.router.terminal import summary

ROUNDS = (
    Row("hlserve", "reply-64", 0, {"finished_per_second": 20_000, "cpu_us_per_request": 50}),
    Row("hlserve", "reply-64", 1, {"finished_per_second": 10_000, "cpu_us_per_request": 40}),
    Row("hlserve", "reply-64", 2, {"finished_per_second": 30_000, "cpu_us_per_request": 45}),
    Row("sglang-router", "reply-64", 0, {"finished_per_second": 8_000}),
    Row("sglang-router", "reply-64", 1, {"finished_per_second": 4_000}),
    Row("sglang-router", "reply-64", 2, {"finished_per_second": 20_000}),
    Row("envoy", "reply-64", 0, failure="nothing was served in time"),
)
MANIFEST = Manifest(
    created="2026-11-30T20:00:00+00:00", commit="0123456789abcdef", uncommitted_changes=False, command="python -m x run",
    kernel="Linux 6", processor="A processor", cores=2, python="CPython 3.11.7", libraries={"uvicorn": "1"},
    scheduling="SCHED_OTHER", rounds=3, candidate_core=0, load_core=1, our_table="a table", our_log_level="warning",
    candidates={"hlserve": "0.1.0", "sglang-router": "0.3.2"}, missing={"nginx": "nginx is not installed"}, load_average=1.0,
)  # fmt: skip


def test_rows_survive_their_file(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows", ROUNDS)
    assert tuple(read_rows(tmp_path / "rows")) == ROUNDS


def test_a_line_that_is_no_row_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text(f'{ROUNDS[0].to_json()}\n{{"candidate": 1}}\n')
    with pytest.raises(ValueError, match="line 2 is no row"):
        read_rows(tmp_path / "rows")


class TestFigures:
    """Medians with their range, and ratios within rounds."""

    def test_the_median_with_the_lowest_and_the_highest(self) -> None:
        found = estimate(Figures(ROUNDS).values("hlserve", "reply-64", "finished_per_second"))
        assert found == Estimate(20_000, 10_000, 30_000, 3)

    def test_a_ratio_pairs_rounds_before_it_takes_the_median(self) -> None:
        figures = Figures(ROUNDS)
        ours, theirs = (
            figures.values(name, "reply-64", "finished_per_second") for name in ("hlserve", "sglang-router")
        )
        assert ratio(ours, theirs) == Estimate(2.5, 1.5, 2.5, 3)

    def test_a_round_that_one_side_lacks_does_not_count(self) -> None:
        assert ratio({0: 4.0, 1: 100.0}, {0: 2.0}) == Estimate(2.0, 2.0, 2.0, 1)
        assert ratio({0: 1.0}, {}) is None

    def test_work_per_time_is_the_inverse(self) -> None:
        assert inverse({0: 4.0, 1: 0.0}) == {0: 0.25}

    def test_the_best_of_several_is_taken_in_each_round(self) -> None:
        assert lowest([{0: 3.0, 1: 1.0}, {0: 2.0, 1: 5.0, 2: 7.0}]) == {0: 2.0, 1: 1.0, 2: 7.0}

    def test_what_a_proxy_adds_is_over_the_direct_figure_of_the_same_round(self) -> None:
        rows = [Row(DIRECT, "ttft", k, {"ttft_p50_us": 100.0}) for k in (0, 1)]
        rows += [Row("hlserve", "ttft", 0, {"ttft_p50_us": 350.0}), Row("hlserve", "ttft", 1, {"ttft_p50_us": 90.0})]
        assert Figures(rows).added("hlserve", "ttft", "ttft_p50_us") == {0: 250.0, 1: 0.0}

    def test_errors_add_up_over_cases(self) -> None:
        rows = [
            Row("a", "reply-1", 0, {"errors": 2.0}),
            Row("a", "ttft", 1, {"errors": 1.0}),
            Row("b", "ttft", 0, {"errors": 9.0}),
        ]
        assert Figures(rows).errors("a") == 3.0


class TestGoals:
    """Verdicts."""

    @pytest.mark.parametrize(
        ("at_least", "median", "want"),
        [
            pytest.param(True, 2.0, Verdict.MET, id="exactly the least"),
            pytest.param(True, 1.99, Verdict.MISSED, id="below the least"),
            pytest.param(False, 2.0, Verdict.MET, id="exactly the most"),
            pytest.param(False, 2.01, Verdict.MISSED, id="above the most"),
        ],
    )
    def test_bounds(self, *, at_least: bool, median: float, want: Verdict) -> None:
        goal = Goal("hlserve", "f", "x", 2.0, at_least, lambda _: None)
        assert goal.verdict(Estimate(median, 0, 9, 5)) is want
        assert goal.verdict(None) is Verdict.UNKNOWN

    def test_each_goal_reads_cases_and_candidates_that_exist(self) -> None:
        """Every figure that a goal can need is there: then every goal can be told."""
        names = (
            "finished_per_second", "cpu_us_per_request", "cpu_us_per_chunk", "ttft_p50_us", "delay_p99_us", "kib_per_stream",
            "largest_share",
        )  # fmt: skip
        values = dict.fromkeys(names, 1.0)
        rows = [Row(c.name, case, 0, values) for c in CANDIDATES for case in c.cases]
        rows += [Row(DIRECT, case.name, 0, {"ttft_p50_us": 0.5}) for case in CASES]
        assert [goal.figure for goal in GOALS if goal.measured(Figures(rows)) is None] == []

    def test_the_worst_spread_of_connections_counts(self) -> None:
        rows = [Row("hlserve-2", "spread", k, {"largest_share": share}) for k, share in enumerate((0.5, 0.7, 0.5))]
        share = next(goal for goal in GOALS if "share of 64" in goal.figure)
        found = share.measured(Figures(rows))
        assert found is not None
        assert share.verdict(found) is Verdict.MISSED
        assert found.median == pytest.approx(70)


class TestReading:
    """What the programs and the kernel say."""

    LINE = json.dumps(
        {
            "finished": 500, "finished_per_second": 2.5, "chunks": 0, "chunks_per_second": 0, "broken": 1, "refused": 2, "connects": 1,
            "latency_p50_us": 8.0, "latency_p99_us": 9.0, "ttft_p50_us": None, "ttft_p99_us": None, "delay_p50_us": None,
            "delay_p99_us": None, "delay_max_us": None, "gap_p99_us": None,
        }
    )  # fmt: skip

    def test_what_the_load_client_did_not_see_is_left_out(self) -> None:
        values = client_values(self.LINE, "")
        assert values["finished_per_second"] == 2.5
        assert values["errors"] == 3
        assert "ttft_p50_us" not in values

    def test_a_run_that_served_nothing_is_no_figure(self) -> None:
        with pytest.raises(MeasurementError, match="HTTP 401") as raised:
            client_values(self.LINE.replace('"finished": 500', '"finished": 0'), "HTTP 401 no key")
        assert raised.value.errors == 3
        with pytest.raises(MeasurementError, match="without a result"):
            client_values("", "boom")

    def test_a_run_of_which_much_was_refused_is_no_figure(self) -> None:
        with pytest.raises(MeasurementError, match="6 refused or broken beside 500 served: HTTP 503, busy"):
            client_values(self.LINE.replace('"refused": 2', '"refused": 5'), 'HTTP 503 {"message": "busy"}')

    @pytest.mark.parametrize(
        ("errors", "want"),
        [
            pytest.param("", "no answer", id="nothing was said"),
            pytest.param('HTTP 503 {"error":{"code":"x","message":"All are \\"down\\"","pa', 'HTTP 503, All are \\"down\\"', id="cut JSON"),
            pytest.param("HTTP 502 bad | gateway\nHTTP 502 other", "HTTP 502 bad / gateway", id="plain text, of which the first line"),
        ],
    )  # fmt: skip
    def test_a_refusal_is_told_in_words(self, errors: str, want: str) -> None:
        assert said(errors) == want

    def test_repeats_are_averaged_but_for_shares_and_errors(self) -> None:
        runs = [{"largest_share": 0.5, "errors": 1.0, "rate": 2.0}, {"largest_share": 0.7, "errors": 2.0, "rate": 4.0}]
        assert combine(runs) == {"largest_share": 0.7, "errors": 3.0, "rate": 3.0, "mean_share": pytest.approx(0.6)}

    def test_established_connections_of_one_port(self) -> None:
        text = (
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
            "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0\n"
            "   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 12 1 0 20 4 30 10 -1\n"
            "   2: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0 20 4 30 10 -1\n"
        )
        assert established(8080, text) == {"12"}


class TestCandidates:
    """How the others are started."""

    @pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda candidate: candidate.name)
    def test_each_listens_on_its_port_and_knows_both_engines(self, candidate: object, tmp_path: Path) -> None:
        site = Site(21_001, 21_002, (21_003, 21_004), tmp_path)
        chosen = next(each for each in CANDIDATES if each is candidate)
        launch = chosen.launch(site, "/a/program")
        told = " ".join([*launch.command, *launch.environment.values()])
        told += "".join(path.read_text() for path in tmp_path.iterdir())
        assert all(port in told for port in ("21001", "21003", "21004"))
        assert not any(mark in told for mark in ("@PORT@", "@ENGINE", "@FOLDER@"))

    def test_cases_of_a_candidate_exist(self) -> None:
        names = {case.name for case in CASES}
        assert {name for candidate in CANDIDATES for name in candidate.cases} <= names
        assert names >= ORDINARY

    def test_what_is_not_installed_is_reported(self, tmp_path: Path) -> None:
        absent = replace(BY_NAME["nginx"], program="no-such-server")
        assert prepare(absent, tmp_path) == Missing(
            absent, "no-such-server is not installed (apt install no-such-server)"
        )

    def test_what_cannot_be_installed_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "logs").mkdir()
        absent = replace(BY_NAME["smg"], requirement="smg==1.13.0")
        found = prepare(absent, tmp_path, "/no/such/python")
        assert isinstance(found, Missing)
        assert "/no/such/python: No such file" in found.reason

    def test_ours_is_there(self, tmp_path: Path) -> None:
        ours = [c for c in CANDIDATES if c.kind is not Kind.PEER and not c.compiled]
        assert all(isinstance(prepare(candidate, tmp_path), Ready) for candidate in ours)


class TestOrder:
    """Whose turn it is."""

    def test_all_take_their_turn_in_every_case(self) -> None:
        assert sorted(shuffled(range(9), 3, "ttft")) == list(range(9))

    def test_a_run_can_be_repeated(self) -> None:
        assert shuffled(range(9), 3, "ttft") == shuffled(range(9), 3, "ttft")

    def test_rounds_and_cases_differ(self) -> None:
        orders = {tuple(shuffled(range(9), number, case)) for number in range(5) for case in ("ttft", "reply-1")}
        assert len(orders) == 10


class TestManifest:
    """What it says in words."""

    @pytest.mark.parametrize(
        ("known", "want"),
        [
            pytest.param({"commit": None}, "an unknown commit", id="no repository"),
            pytest.param({"commit": "c" * 40, "uncommitted_changes": False}, "commit `cccccccccccc`", id="clean"),
            pytest.param(
                {"commit": "c" * 40, "uncommitted_changes": True}, "commit `cccccccccccc` with uncommitted changes",
                id="of before there was a list",
            ),
            pytest.param(
                {"commit": "c" * 40, "uncommitted_changes": True, "uncommitted": ["docs/x.md", *(f"bench/{k}" for k in range(8))]},
                "commit `cccccccccccc` with uncommitted changes in "
                "`bench/0`, `bench/1`, `bench/2`, `bench/3`, `bench/4`, `bench/5` and 2 more",
                id="many",
            ),
            pytest.param(
                {"commit": "c" * 40, "uncommitted_changes": True, "uncommitted": ["docs/x.md", "operator/y.py"]},
                "commit `cccccccccccc` with uncommitted changes in 2 files, none of them of router or benchmark",
                id="elsewhere",
            ),
        ],
    )  # fmt: skip
    def test_what_was_not_committed(self, known: dict[str, object], want: str) -> None:
        assert commit_in_words(known) == want

    def test_how_busy_the_machine_was(self) -> None:
        assert load_in_words({"load_average": 2.04}) == "load average 2.0"
        assert (
            load_in_words({"load_average": 2.04, "load_average_before": 0.1})
            == "load average 0.1 before the run, 2.0 at its end"
        )


class TestInterpreter:
    """Ours may run by another Python of the same version."""

    @pytest.mark.parametrize(
        ("said_of_itself", "want"),
        [
            pytest.param((True, True, False, False), "built with profile-guided and with link-time", id="official image"),
            pytest.param((False, False, True, True), "built without profile-guided and without link-time", id="pyenv"),
            pytest.param((False, False, False, True), "nothing tells whether", id="Debian"),
        ],
    )  # fmt: skip
    def test_its_build_is_told_in_words(self, said_of_itself: tuple[bool, ...], want: str) -> None:
        assert want in in_words(dict(zip(("optimised", "lto", "shared", "other"), said_of_itself, strict=True)))

    def test_another_one_lends_our_packages(self, tmp_path: Path) -> None:
        found = environment(sys.executable, tmp_path)
        assert found != sys.executable
        subprocess.run([found, "-c", "import hlserve_router, uvicorn"], check=True)
        assert look(found).name.startswith("CPython 3.")

    def test_none_is_our_own(self, tmp_path: Path) -> None:
        assert environment("", tmp_path) == sys.executable

    @pytest.mark.parametrize("program", ["/no/such/python", "/bin/false"], ids=["absent", "no Python"])
    def test_what_is_none_is_said(self, tmp_path: Path, program: str) -> None:
        with pytest.raises(HarnessError, match=program):
            environment(program, tmp_path)


def test_our_documents_are_what_a_router_reads(tmp_path: Path) -> None:
    table, keyrings = write_documents(tmp_path, ("http://127.0.0.1:1", "http://127.0.0.1:2"))
    assert {route.name for route in parse_table(table.read_text()).classes} == {"interactive", "agent", "batch"}
    entries = [entry for path in keyrings for entry in parse_keyring(path.read_text()).keys]
    assert [e.class_name for e in entries if e.digest == sha256(AGENT_KEY.encode()).hexdigest()] == ["agent"]
    assert len(entries) > 1000


class TestPage:
    """What is published."""

    def test_it_tells_figures_goals_and_what_is_missing(self) -> None:
        page = render(ROUNDS, MANIFEST)
        assert "| `hlserve` | – | 20,000 (10,000–30,000) | – | 45.0 (40.0–50.0) |" in page
        assert "| `hlserve` | requests/s, 64 connections | sglang-router | ≥ 2× | 2.50 (1.50–2.50) | met |" in page
        assert "| `hlserve` | requests/s, 64 connections | envoy | ≥ 1× | – | not measured |" in page
        assert "Not measured: `nginx`: nginx is not installed." in page
        assert "`envoy` in `reply-64`, 1 of 3 rounds (nothing was served in time)" in page
        assert "0123456789ab" in page

    def test_a_figure_of_fewer_rounds_says_so(self) -> None:
        page = render(ROUNDS[:-2], MANIFEST)
        assert "| `sglang-router` | – | 6,000 (4,000–8,000), 2 of 3 |" in page

    def test_a_page_that_was_edited_is_noticed(self, tmp_path: Path) -> None:
        write_rows(tmp_path / "router.jsonl", ROUNDS)
        (tmp_path / "router.manifest.json").write_text(MANIFEST.to_json())
        call = CliRunner().invoke
        assert call(main, ["page", str(tmp_path)]).exit_code == 0
        assert call(main, ["page", "--check", str(tmp_path)]).exit_code == 0
        page = tmp_path / "router.md"
        page.write_text(page.read_text().replace("20,000", "25,000"))
        assert call(main, ["page", "--check", str(tmp_path)]).exit_code == 1
        assert write_page(page, ROUNDS, MANIFEST, check=True) is False

    def test_the_terminal_shows_only_what_was_measured(self) -> None:
        text = summary(ROUNDS)
        assert "CPU µs/request" in text
        assert "added TTFT" not in text


def test_an_unknown_candidate_is_refused_with_the_names_of_all() -> None:
    done = CliRunner().invoke(main, ["run", "--only", "hlserve,apache"])
    assert done.exit_code == 2
    assert "there is no apache" in done.output
    assert "sglang-router" in done.output


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Both C programs, compiled once."""
    return build(tmp_path_factory.mktemp("programs"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler is needed: apt install gcc libc6-dev")
@pytest.mark.parametrize(
    "case",
    [
        Case("reply", Load.REPLY, 8, 0.1, 0.3),
        Case("large", Load.REPLY, 2, 0.1, 0.3, body_bytes=1024 * 1024),
        Case("short", Load.STREAM, 8, 0.1, 0.3, chunks=5, gap_microseconds=5_000),
        Case("back to back", Load.STREAM, 8, 0.1, 0.3, chunks=50),
    ],
    ids=lambda case: case.name,
)
def test_the_load_client_and_the_mock_engine_agree(case: Case, programs: Programs, tmp_path: Path) -> None:
    port, other = free_ports(2)
    engine = start([str(programs.engine), str(port), str(other)], (0,), tmp_path / "log", {}, tmp_path)
    try:
        assert until(lambda: answers(port), 5)
        bench = Bench(port, engine.process.pid, programs.client, (0,), AGENT_KEY, real_time=False)
        values = bench.measure(case, Target(port))
        stats = bench.stats()
    finally:
        engine.end()
    assert not tree(engine.process.pid)
    assert values["errors"] == 0
    assert values["finished_per_second"] > 5
    assert stats["requests"] >= values["finished_per_second"] * case.seconds
    if case.load is Load.STREAM:
        assert 0 < values["chunks_per_second"] * case.seconds <= stats["chunks"]
        assert values["delay_p99_us"] >= values["delay_p50_us"] >= 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler is needed: apt install gcc libc6-dev")
def test_streams_have_the_lengths_that_the_engine_was_set_to(programs: Programs, tmp_path: Path) -> None:
    port, other = free_ports(2)
    engine = start([str(programs.engine), str(port), str(other)], (0,), tmp_path / "log", {}, tmp_path)
    try:
        assert until(lambda: answers(port), 5)
        bench = Bench(port, engine.process.pid, programs.client, (0,), AGENT_KEY, real_time=False)
        bench.set_engine(Case("spread", Load.STREAM, 1, 0, 0, chunks=20, chunks_spread=10))
        lengths = [chunks_of_a_stream(port) for _ in range(20)]
        bench.set_engine(Case("one length", Load.STREAM, 1, 0, 0, chunks=20))
        alike = {chunks_of_a_stream(port) for _ in range(5)}
    finally:
        engine.end()
    assert alike == {20}
    assert min(lengths) < 13
    assert max(lengths) > 27
    assert set(lengths) <= set(range(10, 31))


def chunks_of_a_stream(port: int) -> int:
    """How many timed chunks one stream has."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", "/v1/chat/completions", b'{"stream":true}')
        return connection.getresponse().read().count(b'"content":"@')
    finally:
        connection.close()


@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler is needed: apt install gcc libc6-dev")
def test_a_refusal_is_never_counted_as_served(programs: Programs, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            command = [str(programs.client), "reply", f"127.0.0.1:{server.server_port}", "2", "0", "0.5", "100"]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env={"BENCH_KEY": "x"})
        finally:
            server.shutdown()
            thread.join()
    told = json.loads(done.stdout)
    assert told["refused"] > 0
    assert told["finished"] == 0
    with pytest.raises(MeasurementError, match="nothing was served in time: HTTP 503, no workers"):
        client_values(done.stdout, done.stderr)


class Refusing(BaseHTTPRequestHandler):
    """Answers 503 to every request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = b'{"error":{"message":"no workers"}}'
        self.send_response(503)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""
