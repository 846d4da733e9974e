"""Agentic coding sessions: one session a line, each with its rounds in order.

Row fields: `[t_s, input_tokens, output_tokens, prefix_blocks, api_s, think_s, stop]`; `prefix_blocks` is the longest common block
prefix with any of the three requests before it. Source: kv-cache-tester, Callan Fox / WEKA, Apache-2.0.
"""

from dataclasses import dataclass
from pathlib import Path

from hlserve_bench.traces.reading import (
    BrokenLineError,
    OnBrokenLine,
    Trace,
    TraceError,
    parse_json_object,
    read_rows,
    seconds,
    whole_number,
)

LOOK_BACK_ROUNDS = 3
"""`prefix_blocks` counts against any of this many requests before."""


@dataclass(frozen=True, slots=True)
class AgentRound:
    """One request of a session. `prefix_tokens` of its prompt equal the start of an earlier round's prompt."""

    input_tokens: int
    output_tokens: int
    """0 in a few real rows (a refused or cut reply); a replay asks for at least one token."""
    prefix_tokens: int
    think_seconds: float
    """Between the end of the former reply and this request: the tool's time, or the person's."""


@dataclass(frozen=True, slots=True)
class AgentSession:
    """One session. `preamble_tokens`: its tool and system prefix, the start of every prompt."""

    session_id: str
    preamble_tokens: int
    rounds: tuple[AgentRound, ...]


def load_agentic(path: Path, on_broken_line: OnBrokenLine = OnBrokenLine.FAIL) -> Trace[AgentSession]:
    """Load agent sessions, plain or gzip. Raises TraceError with one sentence on what to do."""
    trace = read_rows(path, parse_session, on_broken_line)
    seen: set[str] = set()
    for session in trace.rows:
        if session.session_id in seen:
            raise TraceError(f"{path}: the session {session.session_id} appears twice; remove one of the two lines.")
        seen.add(session.session_id)
    return trace


def parse_session(line: str) -> AgentSession:
    """One line of the format. Raises BrokenLineError."""
    raw = parse_json_object(line)
    missing = [name for name in ("id", "block", "tool", "sys", "rows") if name not in raw]
    if missing:
        raise BrokenLineError(f"the field {missing[0]} is missing")
    session_id = raw["id"]
    if not isinstance(session_id, str) or not session_id:
        raise BrokenLineError("id is not a text")
    rows = raw["rows"]
    if not isinstance(rows, list) or not rows:
        raise BrokenLineError("rows is not a list of at least one round")
    block_tokens = whole_number(raw["block"], "block", at_least=1)
    preamble = whole_number(raw["tool"], "tool", at_least=0) + whole_number(raw["sys"], "sys", at_least=0)
    rounds: list[AgentRound] = []
    for row in rows:
        rounds.append(_round(row, rounds, block_tokens))
    return AgentSession(session_id, preamble, tuple(rounds))


def _round(row: object, before: list[AgentRound], block_tokens: int) -> AgentRound:
    name = f"round {len(before) + 1}"
    if not isinstance(row, list) or len(row) != 7:
        raise BrokenLineError(f"{name} is not a list of 7 values")
    input_tokens = whole_number(row[1], f"{name}'s input_tokens", at_least=1)
    prefix_tokens = whole_number(row[3], f"{name}'s prefix_blocks", at_least=0) * block_tokens
    reachable = max((earlier.input_tokens for earlier in before[-LOOK_BACK_ROUNDS:]), default=0)
    if prefix_tokens > min(input_tokens, reachable):
        raise BrokenLineError(
            f"{name} shares {prefix_tokens} tokens with an earlier prompt, but has {input_tokens} and the three before "
            f"it at most {reachable}"
        )
    return AgentRound(
        input_tokens=input_tokens,
        output_tokens=whole_number(row[2], f"{name}'s output_tokens", at_least=0),
        prefix_tokens=prefix_tokens,
        think_seconds=seconds(row[5], f"{name}'s think_s"),
    )
