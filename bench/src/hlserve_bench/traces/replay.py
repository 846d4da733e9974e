"""From trace rows to prompts of exact token ids.

A session's prompt of round k starts with as many tokens of an earlier round's prompt as the trace's block ids say, and goes on with
tokens that occur nowhere else: so prefix equality is exact, the reply enters the next prompt as the trace has it and not as an engine
worded it, and sessions share nothing. Lengths are exact; replies have forced lengths.
"""

from dataclasses import dataclass

from hlserve_bench.traces.agentic import LOOK_BACK_ROUNDS, AgentRound, AgentSession

FILLER_TOKENS = 1000
"""Tokens 0 to 999 fill prompts. Small, so that a prompt as text stays near five bytes a token."""

SEGMENTS_PER_NAMESPACE = 256
"""Rounds that one namespace can hold. With it the ids of a run stay below 10⁹, which the simulator reads as they are."""


@dataclass(frozen=True, slots=True)
class ReplayRules:
    """How sessions are cut and scaled before replay. All of it is stated in the report."""

    max_rounds: int = 12
    max_context_tokens: int = 32_768
    """Prompt and reply of the largest round, after scaling."""
    max_output_tokens: int = 2_048
    max_think_seconds: float = 2.0

    def __post_init__(self) -> None:
        if not 1 <= self.max_rounds <= SEGMENTS_PER_NAMESPACE:
            raise ValueError(f"max_rounds is {self.max_rounds} but must be 1 to {SEGMENTS_PER_NAMESPACE}")
        if not 1 <= self.max_output_tokens < self.max_context_tokens:
            raise ValueError(
                "max_output_tokens must be at least 1 and below max_context_tokens: a prompt needs room too"
            )

    def describe(self) -> tuple[str, ...]:
        """The rules as sentences for a report."""
        return (
            f"Agent sessions are cut to their first {self.max_rounds} rounds.",
            f"A session whose largest round exceeds {self.max_context_tokens:,} tokens has its prompts scaled down to fit; "
            "prefixes scale with them, replies do not.",
            f"Replies are forced to the trace's length, at most {self.max_output_tokens:,} tokens.",
            f"Think time is capped at {self.max_think_seconds:g} s.",
            "Each session has a system and tool prefix of its own.",
            "A reply enters the next prompt as the trace's block ids say, not as the engine worded it.",
        )


@dataclass(frozen=True, slots=True)
class ReplayRound:
    """One request of a replay. The first `prefix_tokens` of the prompt are those of round `parent` (None: nothing is shared)."""

    input_tokens: int
    output_tokens: int
    prefix_tokens: int
    parent: int | None
    think_seconds: float


@dataclass(frozen=True, slots=True)
class ReplaySession:
    """One session as it is replayed."""

    session_id: str
    rounds: tuple[ReplayRound, ...]

    def prompt(self, round_index: int, namespace: int) -> list[int]:
        """Token ids of one round's prompt. `namespace` tells this replay of the session from every other prompt of the run."""
        current = self.rounds[round_index]
        if current.parent is None:
            return unique_tokens(namespace, round_index, current.input_tokens)
        shared = self.prompt(current.parent, namespace)[: current.prefix_tokens]
        return shared + unique_tokens(namespace, round_index, current.input_tokens - len(shared))


def unique_tokens(namespace: int, segment: int, count: int) -> list[int]:
    """`count` token ids that open with one no other (namespace, segment) has, so that no two segments share a prefix."""
    if count <= 0:
        return []
    marker = FILLER_TOKENS + namespace * SEGMENTS_PER_NAMESPACE + segment
    start = (namespace * 7 + segment * 131) % FILLER_TOKENS
    return [marker, *((start + position) % FILLER_TOKENS for position in range(count - 1))]


def scale_session(session: AgentSession, rules: ReplayRules) -> ReplaySession:
    """Cut and scale one session by `rules`."""
    rounds = session.rounds[: rules.max_rounds]
    outputs = [min(max(1, row.output_tokens), rules.max_output_tokens) for row in rounds]
    scale = min(
        1.0,
        min(
            (rules.max_context_tokens - output) / row.input_tokens for row, output in zip(rounds, outputs, strict=True)
        ),
    )
    scaled: list[ReplayRound] = []
    for index, (row, output) in enumerate(zip(rounds, outputs, strict=True)):
        input_tokens = max(1, int(row.input_tokens * scale))
        parent, prefix = _parent(rounds, index)
        # The last token of a prompt is always new: an engine computes at least one.
        prefix_tokens = min(int(prefix * scale), input_tokens - 1)
        if parent is not None:
            prefix_tokens = min(prefix_tokens, scaled[parent].input_tokens)
        scaled.append(
            ReplayRound(
                input_tokens=input_tokens,
                output_tokens=output,
                prefix_tokens=prefix_tokens if parent is not None else 0,
                parent=parent if prefix_tokens > 0 else None,
                think_seconds=min(row.think_seconds, rules.max_think_seconds),
            )
        )
    return ReplaySession(session.session_id, tuple(scaled))


def _parent(rounds: tuple[AgentRound, ...], index: int) -> tuple[int | None, int]:
    """The latest of the rounds before whose prompt is long enough for this round's prefix, and the prefix length."""
    prefix = rounds[index].prefix_tokens
    if prefix == 0:
        return None, 0
    for earlier in range(index - 1, max(-1, index - 1 - LOOK_BACK_ROUNDS), -1):
        if rounds[earlier].input_tokens >= prefix:
            return earlier, prefix
    return None, 0
