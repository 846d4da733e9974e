"""The demo in virtual time: what it claims, that it can fail, and that its arms are the manifests' arms."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from hlserve_bench.records import Client, Ended
from hlserve_bench.report.assemble import Timing
from hlserve_bench.report.model import Report
from hlserve_bench.traces.workload import TraceSample, draw_workload, load_sample
from hlserve_capacity.engine.types import SchedulePolicy
from hlserve_local.demo_arms import DemoArm, demo_arm
from hlserve_local.demo_cell import CLASS_BLIND, QUICKSTART, DemoCell, ExamplesMissingError, find_examples
from hlserve_local.demo_command import demo
from hlserve_local.demo_losses import LOSS_CELLS, LossCell
from hlserve_local.demo_search import _largest
from hlserve_local.demo_seeds import VirtualTask, run_task
from hlserve_local.demo_variants import causes, others, shedding
from hlserve_local.demo_virtual import run_virtual, to_virtual

SHORT = Timing(warmup_seconds=20.0, measured_seconds=40.0, drain_seconds=5.0)


@pytest.fixture(scope="module")
def sample() -> TraceSample:
    return load_sample()


@pytest.fixture(scope="module")
def blind() -> DemoArm:
    return demo_arm(CLASS_BLIND)


@pytest.fixture(scope="module")
def ours() -> DemoArm:
    return demo_arm(QUICKSTART)


def test_the_class_blind_arm_is_the_searched_one(blind: DemoArm) -> None:
    (pool,) = blind.arm.pools
    engine = pool.engine
    assert (pool.replicas, engine.max_running_requests, engine.chunked_prefill_size) == (4, 5, 96)
    assert (engine.mixed_chunk, engine.schedule_policy, engine.throughput_mode) == (True, SchedulePolicy.FCFS, False)
    assert blind.arm.chat_pool == blind.arm.agent_pool == "shared"


def test_the_hlserve_arm_has_the_flags_that_its_manifests_lead_to(ours: DemoArm) -> None:
    pools = {pool.name: pool for pool in ours.arm.pools}
    chat, agents = pools["chat"], pools["agents"]
    assert (chat.replicas, chat.engine.max_running_requests, chat.engine.chunked_prefill_size) == (1, 21, 128)
    assert (chat.engine.mixed_chunk, chat.engine.schedule_policy) == (True, SchedulePolicy.FCFS)
    assert (agents.replicas, agents.engine.max_running_requests) == (3, 11)
    assert (agents.engine.throughput_mode, agents.engine.kv_aware_admission) == (True, True)
    assert (agents.engine.schedule_policy, agents.engine.session_idle_us) == (SchedulePolicy.LPM, 5_000_000)
    assert (ours.arm.chat_pool, ours.arm.agent_pool) == ("chat", "agents")
    assert "--enable-throughput-mode" in ours.pools["agents"].flags
    assert ours.device == "4 × A100-80G"


def test_the_virtual_load_is_the_benchs_load(sample: TraceSample) -> None:
    workload = draw_workload(sample, DemoCell().load(SHORT), seed=5)
    there = to_virtual(workload)
    assert len(there.chat) == len(workload.chat)
    assert len(there.slot_start_us) == 60
    run = there.run_of(3, 0)
    mine = workload.agent_run(3, 0)
    for index in range(len(mine.session.rounds)):
        assert len(run.prompt(index)) == len(mine.prompt(index))


def test_the_same_seed_gives_the_same_records(sample: TraceSample, ours: DemoArm) -> None:
    workload = draw_workload(sample, DemoCell().load(SHORT), seed=5)
    first = run_virtual(ours.arm, workload, SHORT, ours.cost)
    assert first == run_virtual(ours.arm, workload, SHORT, ours.cost)
    chat = [record for record in first if record.client is Client.CHAT]
    assert len(chat) == len(workload.chat)
    for record in first:
        if record.ended is Ended.OK:
            assert record.output_tokens == record.wanted_tokens


def test_splitting_by_class_serves_chat_and_agents_better(blind: DemoArm, ours: DemoArm) -> None:
    for seed in (11, 12):
        low, high = (run_task(VirtualTask(DemoCell(), SHORT, arm, seed)).classes for arm in (blind, ours))
        assert high.interactive.goodput_share is not None
        assert high.interactive.goodput_share >= 0.9
        assert low.interactive.goodput_share is not None
        assert low.interactive.goodput_share < 0.5
        assert high.agent.output_tokens_per_second > 1.2 * low.agent.output_tokens_per_second
        assert high.interactive.requests_by_pool.keys() == {"chat"}
        assert high.agent.requests_by_pool.keys() == {"agents"}


def test_the_causes_lead_from_class_blind_to_hlserve(blind: DemoArm, ours: DemoArm) -> None:
    steps = causes(blind, ours)
    last = {pool.name: pool.engine for pool in steps[-1].arm.arm.pools}
    wanted = {pool.name: pool.engine for pool in ours.arm.pools}
    assert last == wanted
    assert [step.key for step in steps] == [
        f"cause_{name}" for name in ("split", "chat_flags", "admission", "kv_batch", "greedy", "lpm")
    ]
    configurations = [tuple(pool.engine for pool in step.arm.arm.pools) for step in steps]
    assert len(set(configurations)) == len(steps), "each step must change something"


def test_variants_have_names_of_their_own(blind: DemoArm, ours: DemoArm) -> None:
    keys = [item.key for item in (*causes(blind, ours), *others(blind, ours))]
    assert len(keys) == len(set(keys))
    assert shedding(blind, 3).arm.shedding is not None
    assert shedding(blind, 3).arm.pools[0].engine.max_running_requests == 3


@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.title) for cell in LOSS_CELLS])
def test_cells_where_hlserve_loses_come_from_the_same_manifests(cell: LossCell) -> None:
    ours, blind = cell.ours(), cell.blind()
    assert (
        sum(pool.replicas for pool in ours.arm.pools) == sum(pool.replicas for pool in blind.arm.pools) == cell.engines
    )
    assert cell.accelerator in ours.device
    assert ours.model == blind.model == cell.shape


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        pytest.param(0, 3, id="none holds: the smallest"),
        pytest.param(3, 3, id="only the smallest holds"),
        pytest.param(17, 17, id="in the middle"),
        pytest.param(40, 40, id="all hold"),
        pytest.param(400, 40, id="more would hold"),
    ],
)
def test_the_search_finds_the_largest_size_that_holds(limit: int, expected: int) -> None:
    assert _largest(range(3, 41), lambda size: size <= limit) == expected


def test_the_command_writes_a_report_of_every_seed(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        demo,
        [
            "--virtual",
            "--seeds",
            "2",
            "--jobs",
            "1",
            "--warmup-seconds",
            "60",
            "--window-seconds",
            "60",
            "--out",
            str(tmp_path),
        ],
    )
    assert result.exit_code == 0, result.output
    assert "What bought what (simulated)" in result.output
    report = Report.model_validate_json((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert [seed.seed for seed in report.seeds] == [11, 12]
    assert all(check.passed for check in report.checks)
    assert {check.name for check in report.checks} >= {
        "every_seed_ratio",
        "chat_placed",
        "agents_placed",
        "hlserve_ran",
    }
    assert report.manifest.clock == "virtual"
    assert report.manifest.flags is not None
    assert set(report.manifest.flags) == {"class_blind", "hlserve"}
    assert report.manifest.flags["hlserve"]["chat"] == report.arms.hlserve.pools["chat"].flags
    assert "--max-running-requests 21" in report.manifest.flags["hlserve"]["chat"]
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_window_too_short_to_judge_fails_with_sentences_and_still_writes_the_report(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        demo, ["--virtual", "--jobs", "1", "--warmup-seconds", "0", "--window-seconds", "2", "--out", str(tmp_path)]
    )
    assert result.exit_code == 1
    assert "The demo does not show what it should." in result.output
    assert (tmp_path / "report.json").is_file()


@pytest.mark.parametrize("options", [["--seeds", "5"], ["--variants"]], ids=" ".join)
def test_what_takes_hours_in_real_time_is_refused(options: list[str]) -> None:
    result = CliRunner().invoke(demo, options)
    assert result.exit_code == 2
    assert "need --virtual" in result.output


def test_outside_a_clone_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ExamplesMissingError, match="run it inside a clone"):
        find_examples(tmp_path)
