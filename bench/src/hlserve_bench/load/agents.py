"""The closed loop: a slot sends a round once the former reply has ended and its think time has passed."""

import asyncio

import openai

from hlserve_bench.load.call import stream_chat
from hlserve_bench.load.observation import Observation, RunClock
from hlserve_bench.records import Client, Ended
from hlserve_bench.traces.workload import AgentRun, Workload

RETRY_SECONDS = 2.0
"""Wait after a refusal that names none."""


async def run_agents(
    client: openai.AsyncOpenAI, model: str, workload: Workload, seen: list[Observation], clock: RunClock
) -> None:
    """Keep every slot busy until cancelled."""
    async with asyncio.TaskGroup() as group:
        for slot in range(workload.spec.agent_sessions):
            group.create_task(_run_slot(client, model, workload, slot, seen, clock))


async def _run_slot(
    client: openai.AsyncOpenAI, model: str, workload: Workload, slot: int, seen: list[Observation], clock: RunClock
) -> None:
    due = workload.start_seconds[slot]
    position = 0
    while True:
        run = workload.agent_run(slot, position)
        for round_index in range(run.first_round, len(run.session.rounds)):
            due = await _run_round(client, model, run, round_index, due, seen, clock)
        position += 1


async def _run_round(
    client: openai.AsyncOpenAI,
    model: str,
    run: AgentRun,
    round_index: int,
    due: float,
    seen: list[Observation],
    clock: RunClock,
) -> float:
    """Send one round, again after a refusal, until it has its reply. Returns when the next one is due."""
    row = run.session.rounds[round_index]
    if round_index > run.first_round:
        due += row.think_seconds
    prompt = run.prompt(round_index)
    attempt = 0
    while True:
        await asyncio.sleep(max(0.0, due - clock.now()))
        observation = Observation(
            client=Client.AGENT,
            request=f"{run.affinity_key}-{round_index}-{attempt}",
            scheduled_seconds=due,
            input_tokens=row.input_tokens,
            wanted_tokens=row.output_tokens,
            session=run.affinity_key,
            session_rounds=len(run.session.rounds),
        )
        seen.append(observation)
        await stream_chat(client, model, prompt, observation, clock, session=run.affinity_key)
        due = clock.now()
        if observation.ended is Ended.OK:
            return due
        due += observation.retry_after_seconds or RETRY_SECONDS
        attempt += 1
