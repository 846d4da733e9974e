"""The load of a virtual run, decided before it starts: the same for every arm that is compared."""

from array import array
from dataclasses import dataclass

CHAT_NAMESPACE = 1 << 40
"""Chat prompts take ids from here up, agent prompts below: the two never share a prefix."""
ROUNDS_PER_SESSION = 1 << 12
"""Rounds that one session's ids leave room for."""


@dataclass(frozen=True, slots=True)
class ChatArrival:
    """One open-loop chat request. Its prompt shares nothing with any other."""

    at_us: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class AgentRound:
    """One round of a session. The first `prefix_tokens` of its prompt are those of round `parent`'s; None: nothing is shared."""

    input_tokens: int
    output_tokens: int
    think_us: int = 0
    """Between the end of the former reply and this request."""
    parent: int | None = None
    prefix_tokens: int = 0


@dataclass(frozen=True, slots=True)
class AgentSession:
    """One closed-loop session: a round is sent after the former reply ended."""

    id: str
    rounds: tuple[AgentRound, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.rounds) <= ROUNDS_PER_SESSION:
            raise ValueError(f"session {self.id} has {len(self.rounds)} rounds; it needs 1 to {ROUNDS_PER_SESSION}")
        for index, current in enumerate(self.rounds):
            if current.parent is None:
                continue
            if not 0 <= current.parent < index:
                raise ValueError(
                    f"session {self.id}: round {index} continues round {current.parent}, not an earlier one"
                )
            if current.prefix_tokens > min(current.input_tokens, self.rounds[current.parent].input_tokens):
                raise ValueError(f"session {self.id}: round {index} shares more tokens than one of the prompts has")


@dataclass(frozen=True, slots=True)
class Workload:
    """Chat arrivals in order of time, and agent slots that replay `sessions` one after the other, for ever.

    Slot s starts at `slot_start_us[s]` with round `first_rounds[s]` of its first session (mid-session, context cold); its n-th
    session is number n·slots + s. Past the end of the list sessions repeat as new ones that share nothing with the former.
    """

    chat: tuple[ChatArrival, ...] = ()
    sessions: tuple[AgentSession, ...] = ()
    slot_start_us: tuple[int, ...] = ()
    first_rounds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.slot_start_us) != len(self.first_rounds):
            raise ValueError(f"{len(self.slot_start_us)} slot starts but {len(self.first_rounds)} first rounds")
        if self.slot_start_us and not self.sessions:
            raise ValueError("agent slots need at least one session to replay")
        for slot, first in enumerate(self.first_rounds):
            rounds = len(self.sessions[slot % len(self.sessions)].rounds)
            if not 0 <= first < rounds:
                raise ValueError(f"slot {slot} starts at round {first}, but its session has {rounds} rounds")

    def run_of(self, slot: int, position: int) -> "SessionRun":
        """The `position`-th session of a slot."""
        number = position * len(self.slot_start_us) + slot
        first = self.first_rounds[slot] if position == 0 else 0
        return SessionRun(self.sessions[number % len(self.sessions)], number, slot, position, first)


class SessionRun:
    """One replay of a session, with the exact token ids of its prompts."""

    __slots__ = ("_prompts", "number", "position", "round_index", "session", "slot")

    def __init__(self, session: AgentSession, number: int, slot: int, position: int, first_round: int) -> None:
        self.session = session
        self.number = number
        self.slot = slot
        self.position = position
        self.round_index = first_round
        self._prompts: dict[int, array[int]] = {}

    @property
    def key(self) -> str:
        """What the client sends as its session."""
        return f"{self.session.id}#{self.number}"

    @property
    def current(self) -> AgentRound:
        return self.session.rounds[self.round_index]

    def prompt(self, index: int | None = None) -> "array[int]":
        """Token ids of a round's prompt (the current one's by default): its parent's prefix, then ids that occur nowhere else."""
        index = self.round_index if index is None else index
        if index not in self._prompts:
            spec = self.session.rounds[index]
            shared = array("q") if spec.parent is None else self.prompt(spec.parent)[: spec.prefix_tokens]
            own = array("q", [self.number * ROUNDS_PER_SESSION + index])
            self._prompts[index] = shared + own * (spec.input_tokens - len(shared))
        return self._prompts[index]


def chat_prompt(number: int, tokens: int) -> "array[int]":
    """Token ids of the `number`-th chat request."""
    return array("q", [CHAT_NAMESPACE + number]) * tokens
