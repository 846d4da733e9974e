"""A seeded workload: chat arrivals on a fixed schedule, and agent slots that replay sessions one after the other.

Both arms of a comparison get the same workload: everything is decided by the seed before the run, also which session follows in
which slot, so nothing depends on how fast an arm is.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from hlserve_bench.traces.agentic import AgentSession, load_agentic
from hlserve_bench.traces.azure import AzureRequest, load_azure
from hlserve_bench.traces.replay import ReplayRules, ReplaySession, scale_session, unique_tokens
from hlserve_bench.traces.sample import AGENT_FILE, CHAT_FILE, DATA

_CHAT_NAMESPACE = 1_000_000
"""Chat prompts take namespaces from here up, agent sessions from 0: the two never meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """How much load: `chat_rps` open-loop arrivals (Poisson), `agent_sessions` closed-loop slots that start over `ramp_seconds`."""

    chat_rps: float = 2.0
    agent_sessions: int = 60
    ramp_seconds: float = 5.0
    duration_seconds: float = 90.0
    """Chat arrivals are scheduled and agent rounds sent until then."""
    rules: ReplayRules = field(default_factory=ReplayRules)

    def __post_init__(self) -> None:
        if self.chat_rps < 0 or self.agent_sessions < 0 or self.ramp_seconds < 0 or not self.duration_seconds > 0:
            raise ValueError(f"{self}: rates, sessions and ramp must be at least 0, and the duration above 0")


@dataclass(frozen=True, slots=True)
class ChatArrival:
    """One chat request, due at `at_seconds` after the start of the run."""

    number: int
    at_seconds: float
    input_tokens: int
    output_tokens: int

    def prompt(self) -> list[int]:
        """Exact token ids; no other prompt of the run shares their start."""
        return unique_tokens(_CHAT_NAMESPACE + self.number, 0, self.input_tokens)


@dataclass(frozen=True, slots=True)
class AgentRun:
    """One session in one slot. `first_round` > 0: it starts mid-session, with its context cold."""

    session: ReplaySession
    namespace: int
    first_round: int

    @property
    def affinity_key(self) -> str:
        """What the client sends as its session."""
        return f"{self.session.session_id}-{self.namespace}"

    def prompt(self, round_index: int) -> list[int]:
        """Exact token ids of one round."""
        return self.session.prompt(round_index, self.namespace)


@dataclass(frozen=True, slots=True)
class Workload:
    """All of one run's load. `digest` tells two workloads apart and goes into the report."""

    seed: int
    spec: LoadSpec
    chat: tuple[ChatArrival, ...]
    sessions: tuple[ReplaySession, ...]
    """In replay order."""
    first_rounds: tuple[int, ...]
    start_seconds: tuple[float, ...]
    digest: str

    def agent_run(self, slot: int, position: int) -> AgentRun:
        """The `position`-th session of a slot (0: the one it starts with). Sessions repeat, in a new namespace, once all were used."""
        number = position * self.spec.agent_sessions + slot
        return AgentRun(
            session=self.sessions[number % len(self.sessions)],
            namespace=number,
            first_round=self.first_rounds[slot] if position == 0 else 0,
        )


@dataclass(frozen=True, slots=True)
class TraceSample:
    """Rows of both kinds to draw from."""

    chat: tuple[AzureRequest, ...]
    agents: tuple[AgentSession, ...]


def load_sample(folder: Path = DATA) -> TraceSample:
    """The sample that ships with this package."""
    return TraceSample(load_azure(folder / CHAT_FILE).rows, load_agentic(folder / AGENT_FILE).rows)


def draw_workload(sample: TraceSample, spec: LoadSpec, seed: int) -> Workload:
    """The workload of one seed."""
    chat = _draw_chat(sample.chat, spec, Random(f"chat-{seed}"))
    agents = Random(f"agents-{seed}")
    sessions = [scale_session(session, spec.rules) for session in sample.agents]
    agents.shuffle(sessions)
    slots = range(spec.agent_sessions)
    first_rounds = tuple(agents.randrange(len(sessions[slot % len(sessions)].rounds)) for slot in slots)
    starts = tuple(spec.ramp_seconds * slot / max(1, spec.agent_sessions) for slot in slots)
    content = [
        seed,
        asdict(spec),
        [asdict(row) for row in chat],
        [asdict(row) for row in sessions],
        first_rounds,
        starts,
    ]
    digest = hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()
    return Workload(seed, spec, chat, tuple(sessions), first_rounds, starts, digest)


def _draw_chat(rows: tuple[AzureRequest, ...], spec: LoadSpec, random: Random) -> tuple[ChatArrival, ...]:
    if spec.chat_rps <= 0:
        return ()
    arrivals: list[ChatArrival] = []
    at = random.expovariate(spec.chat_rps)
    while at < spec.duration_seconds:
        row = rows[random.randrange(len(rows))]
        arrivals.append(
            ChatArrival(
                number=len(arrivals),
                at_seconds=at,
                input_tokens=min(row.input_tokens, spec.rules.max_context_tokens),
                output_tokens=min(row.output_tokens, spec.rules.max_output_tokens),
            )
        )
        at += random.expovariate(spec.chat_rps)
    return tuple(arrivals)
