"""Known latencies in, known figures out: two contrasting profiles, so that no offset and no factor can pass both."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from hlserve_bench.records import Client, Ended, RequestRecord, read_records, write_records
from hlserve_bench.report.assemble import ArmRun, Timing, arm_report, make_report, seed_result
from hlserve_bench.report.build import SloBounds, percentiles
from hlserve_bench.report.checks import Bounds, check_seeds
from hlserve_bench.report.html import render_html
from hlserve_bench.report.model import ArmReport, Manifest, PoolReport, Report
from hlserve_bench.report.schema import DEFAULT_PATH, main, render
from hlserve_bench.report.terminal import render as render_terminal

TIMING = Timing(warmup_seconds=10, measured_seconds=100, drain_seconds=10)
SLO = SloBounds(ttft_ms=1000, tpot_ms=20)
MANIFEST = Manifest(
    created="2026-01-01T00:00:00+00:00",
    clock="virtual",
    seed=1,
    versions={"hlserve-bench": "0.1.0"},
    commit=None,
    uncommitted_changes=None,
    device="4 × A100-80G",
    model="llama-3.1-8b",
    machine="a test",
    workload_sha256="0" * 64,
    load={"chat_rps": 2.0, "agent_sessions": 60.0},
    rules=["none"],
    traces=["none"],
)


@dataclass(frozen=True)
class Profile:
    """A server with fixed latencies, in milliseconds."""

    ttft_ms: float
    tpot_ms: float
    tokens: int


FAST = Profile(ttft_ms=120.0, tpot_ms=7.0, tokens=101)
SLOW = Profile(ttft_ms=2345.0, tpot_ms=31.0, tokens=11)


def reply(profile: Profile, at: float, client: Client = Client.CHAT, **fields: object) -> RequestRecord:
    """A request scheduled at `at` that a server of `profile` answered."""
    first = at + profile.ttft_ms / 1000
    last = first + profile.tpot_ms / 1000 * (profile.tokens - 1)
    base = RequestRecord(
        client=client,
        request=f"{client}-{at}",
        scheduled_seconds=at,
        sent_seconds=at + 0.003,
        first_token_seconds=first,
        last_token_seconds=last,
        end_seconds=last,
        ended=Ended.OK,
        input_tokens=1000,
        output_tokens=profile.tokens,
        wanted_tokens=profile.tokens,
        pool="chat" if client is Client.CHAT else "agents",
        cached_tokens=250,
        session_rounds=10,
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def arm(records: list[RequestRecord], name: str = "HlServe") -> ArmReport:
    pools = {"chat": PoolReport(mode="Interactive", replicas=1, flags=["--enable-mixed-chunk"])}
    return arm_report(
        ArmRun(name=name, description="A test.", pools=pools, records=records, real_client=True), TIMING, SLO
    )


def traffic(profile: Profile) -> list[RequestRecord]:
    chat = [reply(profile, 10 + index * 0.5) for index in range(180)]
    agents = [reply(profile, 10 + index * 0.5, Client.AGENT) for index in range(180)]
    return [*chat, *agents]


@pytest.mark.parametrize("profile", [pytest.param(FAST, id="fast server"), pytest.param(SLOW, id="slow server")])
def test_known_latencies_come_out_as_they_went_in(profile: Profile) -> None:
    classes = arm(traffic(profile)).classes
    for figures in (classes.interactive, classes.agent):
        assert figures.requests == figures.ok == 180
        assert figures.ttft_ms is not None
        assert figures.tpot_ms is not None
        assert figures.e2e_ms is not None
        e2e = profile.ttft_ms + profile.tpot_ms * (profile.tokens - 1)
        for values, expected in (
            (figures.ttft_ms, profile.ttft_ms),
            (figures.tpot_ms, profile.tpot_ms),
            (figures.e2e_ms, e2e),
        ):
            assert [values.p50, values.p95, values.p99] == pytest.approx([expected] * 3, rel=1e-6)
            assert (values.samples, values.lower_bounds) == (180, 0)
        assert figures.output_tokens_per_second == pytest.approx(180 * profile.tokens / 100, rel=1e-9)
        assert figures.prefix_hit_rate == 0.25
    assert classes.agent.sessions_per_hour == pytest.approx(180 / 10 * 36)
    assert classes.interactive.goodput_share == (1.0 if profile is FAST else 0.0)


def test_all_arrivals_of_the_window_are_the_denominator() -> None:
    unfinished = [
        reply(FAST, 50 + index, first_token_seconds=None, last_token_seconds=None, end_seconds=None, output_tokens=0,
              ended=Ended.UNFINISHED)
        for index in range(10)
    ]  # fmt: skip
    failed = [reply(FAST, 70, ended=Ended.FAILED, reason="queue_full", pool=None)]
    outside = [reply(FAST, 5), reply(FAST, 111)]
    good = [reply(FAST, 20 + index) for index in range(9)]
    figures = arm([*unfinished, *failed, *outside, *good]).classes.interactive
    assert (figures.requests, figures.ok, figures.failed, figures.unfinished) == (20, 9, 1, 10)
    assert figures.goodput_share == 9 / 20
    assert figures.goodput_rps == 9 / 100
    assert figures.requests_by_pool == {"chat": 19, "none": 1}
    assert figures.spill_reasons == {"queue_full": 1}


def test_unfinished_requests_enter_at_their_age_and_are_said_to_be_lower_bounds() -> None:
    waiting = reply(FAST, 20, first_token_seconds=None, last_token_seconds=None, end_seconds=None, output_tokens=0,
                    ended=Ended.UNFINISHED)  # fmt: skip
    ttft = arm([waiting, reply(FAST, 30)]).classes.interactive.ttft_ms
    assert ttft is not None
    assert ttft.lower_bounds == 1
    assert ttft.p99 == pytest.approx(100_000)  # from 20 s to the end of the drain at 120 s


@pytest.mark.parametrize(
    ("record", "good"),
    [
        pytest.param(reply(Profile(1000, 20, 11), 0), True, id="exactly at both bounds"),
        pytest.param(reply(Profile(1001, 5, 11), 0), False, id="first token late"),
        pytest.param(reply(Profile(100, 20.5, 11), 0), False, id="tokens slow"),
        pytest.param(reply(Profile(100, 0, 1), 0), True, id="one token has no TPOT to miss"),
        pytest.param(reply(FAST, 0, ended=Ended.FAILED), False, id="failed"),
    ],
)
def test_good_means_both_bounds(record: RequestRecord, good: bool) -> None:
    assert SLO.met_by(record) is good


def test_latency_counts_from_the_scheduled_time() -> None:
    late = reply(FAST, 50, sent_seconds=50.9, first_token_seconds=51.0, last_token_seconds=51.5, end_seconds=51.5)
    result = arm([late])
    assert result.classes.interactive.ttft_ms is not None
    assert result.classes.interactive.ttft_ms.p50 == pytest.approx(1000)
    assert result.client_lag_ms is not None
    assert result.client_lag_ms.p50 == pytest.approx(900)


def test_percentiles_are_nearest_rank_and_nothing_has_none() -> None:
    values = percentiles([index / 1000 for index in range(1, 11)])
    assert values is not None
    assert (values.p50, values.p95, values.p99) == pytest.approx((5, 10, 10))
    assert percentiles([]) is None
    empty = arm([]).classes
    assert empty.interactive.goodput_share is None
    assert empty.interactive.ttft_ms is None
    assert empty.agent.prefix_hit_rate is None


def test_unreported_cache_hits_are_not_zero_hits() -> None:
    records = [reply(FAST, 20, cached_tokens=None), reply(FAST, 30, cached_tokens=500)]
    assert arm(records).classes.interactive.prefix_hit_rate == 0.5


def test_tokens_count_in_the_second_in_which_they_came() -> None:
    record = reply(Profile(ttft_ms=1000, tpot_ms=100, tokens=11), 0)
    assert record.tokens_between(0, 1) == 0
    assert record.tokens_between(1, 1.5) == pytest.approx(1 + 5)
    assert sum(record.tokens_between(second, second + 1) for second in range(4)) == pytest.approx(11)


def test_records_survive_the_file(tmp_path: Path) -> None:
    records = traffic(FAST)[:3]
    write_records(tmp_path / "records.jsonl", records)
    assert read_records(tmp_path / "records.jsonl") == records


def full_report(blind: list[RequestRecord], ours: list[RequestRecord]) -> Report:
    arms = (arm(blind, "class-blind"), arm(ours))
    seeds = [seed_result(1, "0" * 64, *arms)]
    return make_report(
        class_blind=arms[0], hlserve=arms[1], timing=TIMING, slo=SLO, manifest=MANIFEST, chat_pool="chat",
        agent_pool="agents", bounds=Bounds(), seeds=seeds,
    )  # fmt: skip


def failed(report: Report) -> set[str]:
    return {check.name for check in report.checks if not check.passed}


def thinned(records: list[RequestRecord], keep_every: int) -> list[RequestRecord]:
    return [row for index, row in enumerate(records) if row.client is Client.CHAT or index % keep_every == 0]


def test_a_run_that_shows_the_claim_passes_every_check() -> None:
    assert failed(full_report(thinned(traffic(SLOW), 3), traffic(FAST))) == set()


@pytest.mark.parametrize(
    ("blind", "ours", "missed"),
    [
        pytest.param([], [], {"class_blind_ran", "hlserve_ran"}, id="nothing ran"),
        pytest.param(
            thinned(traffic(SLOW), 3),
            [replace(row, ended=Ended.FAILED) for row in traffic(FAST)],
            {"hlserve_ran", "chat_goodput"},
            id="every request failed",
        ),
        pytest.param(traffic(FAST), traffic(FAST), {"agent_output_ratio", "agent_sessions_ratio"}, id="no gain"),
        pytest.param(thinned(traffic(FAST), 3), traffic(SLOW), {"chat_goodput", "chat_not_worse"}, id="chat is worse"),
        pytest.param(
            thinned(traffic(SLOW), 3),
            [replace(row, pool="agents") for row in traffic(FAST)],
            {"chat_placed"},
            id="chat went to the agents' pool without a reason",
        ),
        pytest.param(thinned(traffic(SLOW), 2), traffic(FAST), set(), id="exactly 2x is enough for a seed"),
    ],
)
def test_a_run_that_does_not_show_it_fails(
    blind: list[RequestRecord], ours: list[RequestRecord], missed: set[str]
) -> None:
    assert missed <= failed(full_report(blind, ours))


def test_a_spill_with_a_reason_is_placed() -> None:
    ours = traffic(FAST)
    ours[0] = replace(ours[0], pool="agents", reason="queue_wait")
    assert "chat_placed" not in failed(full_report(thinned(traffic(SLOW), 3), ours))


def test_one_seed_below_the_bound_fails() -> None:
    report = full_report(thinned(traffic(SLOW), 3), traffic(FAST))
    weak = report.seeds[0].model_copy(update={"seed": 2, "agent_output_ratio": 1.49})
    assert weak.agent_output_ratio is not None
    verdicts = {check.name: check.passed for check in check_seeds([report.seeds[0], weak], Bounds())}
    assert verdicts == {"every_seed_ratio": False, "every_seed_chat": True}


def test_report_json_is_valid_by_the_published_schema() -> None:
    report = full_report(thinned(traffic(SLOW), 3), traffic(FAST))
    document = json.loads(report.model_dump_json())
    schema = json.loads(render())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema, jsonschema.Draft202012Validator)
    assert document["basis"] == "simulated"
    for arm_name in ("class_blind", "hlserve"):
        for class_name in ("interactive", "agent"):
            figures = document["arms"][arm_name]["classes"][class_name]
            assert {"requests", "ok", "goodput_rps", "output_tokens_per_second", "prefix_hit_rate", "requests_by_pool",
                    "spill_reasons"} <= figures.keys()  # fmt: skip
            for latency in ("ttft_ms", "tpot_ms", "e2e_ms"):
                assert {"p50", "p95", "p99"} <= figures[latency].keys()
    broken = {**document, "basis": "measured"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema, jsonschema.Draft202012Validator)


def test_the_published_schema_is_the_one_of_the_code() -> None:
    path = Path(__file__).resolve().parents[2] / DEFAULT_PATH
    assert path.read_text(encoding="utf-8") == render()


def test_the_schema_check_sees_an_edit(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    runner = CliRunner()
    assert runner.invoke(main, ["--out", str(path)]).exit_code == 0
    assert runner.invoke(main, ["--check", "--out", str(path)]).exit_code == 0
    path.write_text(path.read_text(encoding="utf-8").replace("simulated", "measured"), encoding="utf-8")
    result = runner.invoke(main, ["--check", "--out", str(path)])
    assert result.exit_code == 1
    assert "run: python -m hlserve_bench.report.schema" in result.output


def test_every_field_of_the_schema_is_described() -> None:
    for name, definition in json.loads(render())["$defs"].items():
        for field, schema in definition["properties"].items():
            assert schema.get("description"), f"{name}.{field}"


def test_the_page_needs_nothing_else_and_says_simulated() -> None:
    page = render_html(full_report(thinned(traffic(SLOW), 3), traffic(FAST)))
    lowered = page.lower()
    for outside in ("<script", "<link", "<img", "src=", "@import", "@font-face"):
        assert outside not in lowered
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page
    assert page.count("<svg") == 3
    assert lowered.count("simulated") >= 8
    ids = [part.split('"')[0] for part in page.split(' id="')[1:]]
    assert len(ids) == len(set(ids)), "two plots share an id, so one would draw with the other's parts"


@pytest.mark.parametrize("records", [pytest.param([], id="empty"), pytest.param(traffic(FAST)[:1], id="one request")])
def test_a_report_of_almost_nothing_still_renders(records: list[RequestRecord]) -> None:
    report = full_report(records, records)
    assert "</html>" in render_html(report)
    assert render_terminal(report) is not None
