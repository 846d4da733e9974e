"""Clients of a run on the clock: closed-loop agent sessions of several keys, over HTTP, in engine time."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

import httpx

from hlserve_bench.load.call import prompt_text
from hlserve_bench.traces.workload import AgentRun, LoadSpec, Workload, draw_workload, load_sample
from hlserve_local.policy.arms import CODERS
from hlserve_local.policy.load import AGENT_MAX_TOKENS, RETRY_US, key_of

SCALE = 3.0
"""Engine seconds in one second: think times and durations shrink with it."""
WARM_UP_SECONDS = 60.0
"""Engine seconds. The contexts that sessions bring along are computed meanwhile."""
WINDOW_SECONDS = 120.0
FIRST_TURN_TOKENS = 400


@dataclass(slots=True)
class Round:
    """One request as its client saw it. Engine seconds since the start."""

    due: float
    sent: float
    ended: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    session_rounds: int
    status: int


def loopback_client() -> httpx.AsyncClient:
    """For loopback: no proxy, no certificates."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.AsyncClient(timeout=600, trust_env=False, verify=tls, limits=limits)


class _Clock:
    """Engine seconds since it was made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()

    def now(self) -> float:
        """Engine seconds."""
        return (self._loop.time() - self._started) * SCALE

    async def until(self, due: float) -> None:
        """Waits; at once if `due` is past."""
        await asyncio.sleep(max(0.0, due - self.now()) / SCALE)


Seen = TypeVar("Seen")


async def drive(
    url: str, sessions: int, seed: int, look: Callable[[httpx.AsyncClient], Awaitable[Seen]]
) -> tuple[list[Round], Seen, Seen]:
    """Its requests, and what `look` saw when the window began and when it ended."""
    seconds = WARM_UP_SECONDS + WINDOW_SECONDS
    spec = LoadSpec(chat_rps=0.0, agent_sessions=sessions, ramp_seconds=5.0, duration_seconds=seconds)
    workload = draw_workload(load_sample(), spec, seed)
    rounds: list[Round] = []
    # All begin within the ramp: bodies that were made then would be late.
    runs = [workload.agent_run(slot, 0) for slot in range(sessions)]
    bodies = [_body(run, run.first_round) for run in runs]
    async with loopback_client() as client:
        clock = _Clock()
        slots = [
            asyncio.create_task(_Slot(client, url, workload, slot, clock, rounds).run(bodies[slot]))
            for slot in range(sessions)
        ]
        await clock.until(WARM_UP_SECONDS)
        before = await look(client)
        await clock.until(seconds)
        after = await look(client)
        for task in slots:
            task.cancel()
        await asyncio.gather(*slots, return_exceptions=True)
    return rounds, before, after


@dataclass(slots=True, eq=False)
class _Slot:
    """One session after the other."""

    client: httpx.AsyncClient
    url: str
    workload: Workload
    slot: int
    clock: _Clock
    rounds: list[Round]

    async def run(self, body: bytes) -> None:
        """Until cancelled. `body`: that of the first request."""
        due = self.workload.start_seconds[self.slot]
        for position in count():
            run = self.workload.agent_run(self.slot, position)
            for index in range(run.first_round, len(run.session.rounds)):
                if index > run.first_round:
                    due += run.session.rounds[index].think_seconds
                if position or index > run.first_round:
                    body = _body(run, index)
                while not await self._round(run, body, due):
                    due = self.clock.now() + RETRY_US / 1e6
                due = self.clock.now()

    async def _round(self, run: AgentRun, body: bytes, due: float) -> bool:
        await self.clock.until(due)
        key = key_of(CODERS[self.slot % len(CODERS)])
        headers = {
            "authorization": f"Bearer {key.decode()}",
            "content-type": "application/json",
            "x-session-id": run.affinity_key,
        }
        sent, of_session = self.clock.now(), len(run.session.rounds)
        try:
            answer = await self.client.post(f"{self.url}/v1/chat/completions", content=body, headers=headers)
        except httpx.HTTPError:
            self.rounds.append(Round(due, sent, self.clock.now(), 0, 0, 0, of_session, 0))
            return False
        usage = answer.json().get("usage", {}) if answer.status_code == httpx.codes.OK else {}
        details = usage.get("prompt_tokens_details") or {}
        self.rounds.append(
            Round(
                due, sent, self.clock.now(), usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0),
                details.get("cached_tokens", 0), of_session, answer.status_code,
            )
        )  # fmt: skip
        return answer.status_code == httpx.codes.OK


def _body(run: AgentRun, index: int) -> bytes:
    tokens = run.prompt(index)
    turns = (("user", tokens[:FIRST_TURN_TOKENS]), ("assistant", tokens[FIRST_TURN_TOKENS:]))
    body = {
        "model": "m1",
        "messages": [{"role": role, "content": prompt_text(said)} for role, said in turns if said],
        "max_tokens": min(run.session.rounds[index].output_tokens, AGENT_MAX_TOKENS),
        "ignore_eos": True,
        "temperature": 0,
    }
    return json.dumps(body).encode()
