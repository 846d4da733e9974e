"""The demo's live path with a small load and short windows: real router, real simulator processes, real SDK client."""

import json
from pathlib import Path

import pytest

from hlserve_bench.load.plan import LoadPlan
from hlserve_bench.load.run import Progress
from hlserve_bench.records import Client, Ended, RequestRecord
from hlserve_bench.report.assemble import Timing
from hlserve_bench.report.checks import Bounds
from hlserve_bench.traces.replay import ReplayRules
from hlserve_bench.traces.workload import LoadSpec, draw_workload, load_sample
from hlserve_local.demo_arms import demo_arm
from hlserve_local.demo_cell import CLASS_BLIND, QUICKSTART, DemoCell, find_examples
from hlserve_local.demo_live import LoadFailedError, run_live, run_load_process
from hlserve_local.demo_report import DemoRun, figures, report, write_report

TIMING = Timing(warmup_seconds=1.0, measured_seconds=4.0, drain_seconds=8.0)
LOAD = LoadSpec(
    chat_rps=4.0,
    agent_sessions=3,
    ramp_seconds=0.5,
    duration_seconds=TIMING.load_seconds,
    rules=ReplayRules(max_context_tokens=3000, max_output_tokens=60, max_think_seconds=0.1),
)
SEED = 11


async def run(folder: str, seen: list[Progress]) -> list[RequestRecord]:
    _, records = await run_live(find_examples() / folder, LOAD, TIMING, SEED, seen.append)
    return records


def of(records: list[RequestRecord], client: Client) -> list[RequestRecord]:
    return [record for record in records if record.client is client]


async def test_the_quickstart_sends_each_class_to_its_pool(tmp_path: Path) -> None:
    seen: list[Progress] = []
    records = await run(QUICKSTART, seen)
    chat, agents = of(records, Client.CHAT), of(records, Client.AGENT)
    workload = draw_workload(load_sample(), LOAD, SEED)
    assert len(chat) == len(workload.chat) > 5
    assert {record.ended for record in chat} == {Ended.OK}
    assert {(record.pool, record.class_name) for record in chat} == {("chat", "interactive")}
    done = [record for record in agents if record.ended is Ended.OK]
    assert len(done) > 5
    assert {(record.pool, record.class_name) for record in done} == {("agents", "agent")}
    assert all(record.output_tokens == record.wanted_tokens for record in (*chat, *done))
    later = [record for record in done if record.cached_tokens]
    assert later, "a later round finds its session's prefix in the cache of the engine that it was sent to before"
    assert seen[-1].chat_ok == len(chat)

    demo = DemoRun(cell=DemoCell(), timing=TIMING, workload=workload, clock="real")
    arm = demo_arm(QUICKSTART)
    result = figures(demo, arm, records)
    json_path, html_path = write_report(report(demo, arm, result, result, Bounds()), tmp_path)
    document = json.loads(json_path.read_text(encoding="utf-8"))
    assert document["manifest"]["clock"] == "real"
    assert document["arms"]["hlserve"]["client_lag_ms"]["samples"] == len(records)
    assert document["arms"]["hlserve"]["classes"]["agent"]["prefix_hit_rate"] > 0
    assert html_path.stat().st_size > 20_000


async def test_the_class_blind_example_serves_both_from_one_pool() -> None:
    records = await run(CLASS_BLIND, [])
    done = [record for record in records if record.ended is Ended.OK]
    assert {record.client for record in done} == {Client.CHAT, Client.AGENT}
    assert {record.pool for record in done} == {"shared"}


async def test_a_load_process_that_cannot_start_says_so() -> None:
    plan = LoadPlan(base_url="http://127.0.0.1:9/v1", model="m", chat_key="a", agent_key="b", seed=1)
    object.__setattr__(plan.spec, "duration_seconds", -1.0)
    with pytest.raises(LoadFailedError, match="The load process ended with status 1"):
        await run_load_process(plan, lambda _: None)
