"""Both kinds of client against one base URL."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from hlserve_bench.load.agents import run_agents
from hlserve_bench.load.call import make_client
from hlserve_bench.load.chat import run_chat
from hlserve_bench.load.observation import Observation, RunClock
from hlserve_bench.load.plan import LoadPlan
from hlserve_bench.records import Client, Ended, RequestRecord
from hlserve_bench.traces.workload import Workload


@dataclass(frozen=True, slots=True)
class Progress:
    """Live figures of a run. Counts are since its start."""

    at_seconds: float
    chat_sent: int
    chat_ok: int
    chat_failed: int
    agent_rounds_ok: int
    agent_rounds_failed: int
    agent_open: int
    chat_tokens: int
    agent_tokens: int


async def run_load(plan: LoadPlan, workload: Workload, on_progress: Callable[[Progress], None]) -> list[RequestRecord]:
    """Run until all chat has ended, or the drain is over; agents go on until then, so that the load stays what it was."""
    clock = RunClock()
    seen: list[Observation] = []
    deadline = plan.spec.duration_seconds + plan.drain_seconds
    async with make_client(plan.base_url, plan.chat_key) as chat, make_client(plan.base_url, plan.agent_key) as agents:
        chat_task = asyncio.create_task(run_chat(chat, plan.model, workload.chat, seen, clock))
        others = [asyncio.create_task(_report(seen, clock, plan.progress_seconds, on_progress))]
        if workload.spec.agent_sessions:
            others.append(asyncio.create_task(run_agents(agents, plan.model, workload, seen, clock)))
        pause = asyncio.create_task(asyncio.sleep(plan.spec.duration_seconds))
        try:
            # Without chat the run still lasts its time. A loop that ends early has failed.
            await asyncio.wait([pause, *others], return_when=asyncio.FIRST_COMPLETED)
            for task in others:
                if task.done():
                    task.result()
            await asyncio.wait(
                [chat_task, *others], timeout=deadline - clock.now(), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            # Records are taken before the cancellation, which would end streams as errors.
            records = [observation.record() for observation in seen]
            for task in (chat_task, pause, *others):
                task.cancel()
            results = await asyncio.gather(chat_task, pause, *others, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
    on_progress(_progress(seen, clock))
    return records


async def _report(
    seen: list[Observation], clock: RunClock, every_seconds: float, on_progress: Callable[[Progress], None]
) -> None:
    while True:
        await asyncio.sleep(every_seconds)
        on_progress(_progress(seen, clock))


def _progress(seen: list[Observation], clock: RunClock) -> Progress:
    chat = [one for one in seen if one.client is Client.CHAT]
    agents = [one for one in seen if one.client is Client.AGENT]
    return Progress(
        at_seconds=clock.now(),
        chat_sent=sum(one.sent_seconds is not None for one in chat),
        chat_ok=sum(one.ended is Ended.OK for one in chat),
        chat_failed=sum(one.ended is Ended.FAILED for one in chat),
        agent_rounds_ok=sum(one.ended is Ended.OK for one in agents),
        agent_rounds_failed=sum(one.ended is Ended.FAILED for one in agents),
        agent_open=sum(one.ended is Ended.UNFINISHED for one in agents),
        chat_tokens=sum(one.output_tokens for one in chat),
        agent_tokens=sum(one.output_tokens for one in agents),
    )
