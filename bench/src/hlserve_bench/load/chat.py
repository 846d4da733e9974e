"""The open loop: each request is sent at its time, whatever became of the ones before."""

import asyncio
from collections.abc import Sequence

import openai

from hlserve_bench.load.call import stream_chat
from hlserve_bench.load.observation import Observation, RunClock
from hlserve_bench.records import Client
from hlserve_bench.traces.workload import ChatArrival


async def run_chat(
    client: openai.AsyncOpenAI, model: str, arrivals: Sequence[ChatArrival], seen: list[Observation], clock: RunClock
) -> None:
    """Send all arrivals and wait until each has ended. Cancelled: what is open stays unfinished in `seen`."""
    # All arrivals are in the denominator from the start, also those that a run cut short would never send.
    observations = [
        Observation(
            client=Client.CHAT,
            request=f"chat-{arrival.number}",
            scheduled_seconds=arrival.at_seconds,
            input_tokens=arrival.input_tokens,
            wanted_tokens=arrival.output_tokens,
        )
        for arrival in arrivals
    ]
    seen.extend(observations)
    async with asyncio.TaskGroup() as group:
        for arrival, observation in zip(arrivals, observations, strict=True):
            await asyncio.sleep(max(0.0, arrival.at_seconds - clock.now()))
            group.create_task(stream_chat(client, model, arrival.prompt(), observation, clock))
