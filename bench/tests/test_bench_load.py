"""The load clients against a server whose latencies are known. Lower bounds are strict, upper ones generous: a test machine is slow."""

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from hlserve_bench.load.plan import LoadPlan, read_plan, write_plan
from hlserve_bench.load.run import Progress, run_load
from hlserve_bench.records import Client, Ended, RequestRecord
from hlserve_bench.testing import ScriptedServer
from hlserve_bench.traces.agentic import AgentRound, AgentSession
from hlserve_bench.traces.azure import AzureRequest
from hlserve_bench.traces.replay import ReplayRules
from hlserve_bench.traces.workload import LoadSpec, TraceSample, Workload, draw_workload

RULES = ReplayRules(max_context_tokens=500, max_output_tokens=40)
SAMPLE = TraceSample(
    chat=(AzureRequest(0.0, 30, 11),),
    agents=tuple(
        AgentSession(
            f"s{number}", 0, (AgentRound(40, 6, 0, 0.0), AgentRound(60, 6, 35, 0.05), AgentRound(80, 6, 60, 0.05))
        )
        for number in range(4)
    ),
)
SPEC = LoadSpec(chat_rps=8.0, agent_sessions=2, ramp_seconds=0.1, duration_seconds=1.5, rules=RULES)


def workload(spec: LoadSpec = SPEC) -> Workload:
    return draw_workload(SAMPLE, spec, seed=4)


def plan(server: ScriptedServer, spec: LoadSpec = SPEC, drain_seconds: float = 5.0) -> LoadPlan:
    return LoadPlan(
        base_url=server.base_url, model="m", chat_key="k1", agent_key="k2", seed=4, spec=spec,
        drain_seconds=drain_seconds, progress_seconds=0.1,
    )  # fmt: skip


async def run(server: ScriptedServer, spec: LoadSpec = SPEC, drain_seconds: float = 5.0) -> list[RequestRecord]:
    return await run_load(plan(server, spec, drain_seconds), workload(spec), lambda _: None)


def of(records: list[RequestRecord], client: Client) -> list[RequestRecord]:
    return [record for record in records if record.client is client]


@pytest.mark.parametrize(
    ("ttft", "itl"), [pytest.param(0.02, 0.005, id="fast server"), pytest.param(0.3, 0.03, id="slow server")]
)
async def test_the_client_sees_the_latencies_that_the_server_has(ttft: float, itl: float) -> None:
    shown = {"x-hlserve-pool": "chat", "x-hlserve-class": "interactive"}
    async with ScriptedServer(ttft_seconds=ttft, itl_seconds=itl, headers=shown) as server:
        records = await run(server)
    chat = of(records, Client.CHAT)
    assert len(chat) == len(workload().chat) > 3
    for record in chat:
        assert (record.ended, record.output_tokens, record.cached_tokens) == (Ended.OK, 11, 16)
        assert (record.pool, record.class_name, record.status) == ("chat", "interactive", 200)
        assert record.ttft_seconds is not None
        assert record.e2e_seconds is not None
        assert record.lag_seconds is not None
        assert record.lag_seconds >= 0
        assert record.ttft_seconds - record.lag_seconds >= ttft
        assert record.e2e_seconds >= ttft + 10 * itl
    best = min(
        record.ttft_seconds - record.lag_seconds for record in chat if record.ttft_seconds and record.lag_seconds
    )
    assert best < ttft + 0.25
    tpots = sorted(record.tpot_seconds for record in chat if record.tpot_seconds is not None)
    assert itl * 0.8 < tpots[len(tpots) // 2] < itl + 0.02


async def test_a_round_is_sent_after_the_former_reply_and_its_think_time() -> None:
    async with ScriptedServer(ttft_seconds=0.03, itl_seconds=0.002) as server:
        records = await run(server, replace(SPEC, chat_rps=0.0))
    agents = of(records, Client.AGENT)
    by_session: dict[str, list[RequestRecord]] = {}
    for record in agents:
        by_session.setdefault(record.session or "", []).append(record)
    assert len(agents) > 8
    for rounds in by_session.values():
        for before, after in itertools.pairwise(rounds):
            assert before.end_seconds is not None
            assert after.sent_seconds is not None
            assert after.sent_seconds >= before.end_seconds + 0.05


async def test_prompts_replies_and_sessions_are_the_traces() -> None:
    async with ScriptedServer() as server:
        await run(server, replace(SPEC, chat_rps=2.0, duration_seconds=1.0))
    texts = [request["messages"] for request in server.requests]
    lengths = {len(str(text[0]["content"]).split()) for text in texts if isinstance(text, list)}
    assert lengths <= {30, 40, 60, 80}
    assert {40, 60, 80} <= lengths
    assert all(request["ignore_eos"] is True and request["stream"] is True for request in server.requests)
    sessions = {request["session"] for request in server.requests}
    assert None in sessions, "chat has no session"
    assert len(sessions) > 2


async def test_what_has_not_ended_is_unfinished_and_still_counted() -> None:
    async with ScriptedServer(stall_after=3) as server:
        records = await run(server, replace(SPEC, duration_seconds=0.6), drain_seconds=0.3)
    chat = of(records, Client.CHAT)
    assert len(chat) == len(workload(replace(SPEC, duration_seconds=0.6)).chat) > 0
    assert {record.ended for record in chat} == {Ended.UNFINISHED}
    assert {record.output_tokens for record in chat} == {3}
    assert all(record.end_seconds is None for record in chat)


async def test_agents_come_again_after_a_refusal_and_chat_does_not() -> None:
    async with ScriptedServer(refusals=1) as server:
        records = await run(server, replace(SPEC, chat_rps=0.0, agent_sessions=1, duration_seconds=1.6))
    first, second = records[:2]
    assert (first.ended, first.status, first.reason) == (Ended.FAILED, 503, "queue_full")
    assert second.ended is Ended.OK
    assert first.end_seconds is not None
    assert second.sent_seconds is not None
    assert second.sent_seconds >= first.end_seconds + 1.0, "the server said Retry-After: 1"
    async with ScriptedServer(refusals=10_000) as server:
        records = await run(server, replace(SPEC, agent_sessions=0, duration_seconds=0.8))
    assert {record.ended for record in records} == {Ended.FAILED}
    assert len(records) == len(server.requests), "the SDK must not retry by itself"


async def test_a_stream_that_ends_in_an_error_has_failed() -> None:
    async with ScriptedServer(error_after=2) as server:
        records = await run(server, replace(SPEC, agent_sessions=0, duration_seconds=0.8))
    assert {(record.ended, record.reason) for record in records} == {(Ended.FAILED, "engine_reset")}


async def test_a_server_that_is_gone_fails_requests_and_not_the_run() -> None:
    async with ScriptedServer() as server:
        target = plan(server, replace(SPEC, agent_sessions=0, duration_seconds=0.5))
    records = await run_load(target, workload(target.spec), lambda _: None)
    assert {record.ended for record in records} == {Ended.FAILED}
    assert all(record.error and "APIConnectionError" in record.error for record in records)


async def test_progress_counts_up() -> None:
    seen: list[Progress] = []
    async with ScriptedServer(ttft_seconds=0.02) as server:
        await asyncio.wait_for(run_load(plan(server), workload(), seen.append), 60)
    assert len(seen) > 3
    tokens = [one.chat_tokens for one in seen]
    assert tokens == sorted(tokens)
    assert tokens[-1] == 11 * len(workload().chat)


def test_a_plan_survives_its_file_which_only_its_owner_may_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    written = LoadPlan(base_url="http://x/v1", model="m", chat_key="a", agent_key="b", seed=3, spec=SPEC)
    write_plan(path, written)
    assert read_plan(path) == written
    assert path.stat().st_mode & 0o077 == 0
