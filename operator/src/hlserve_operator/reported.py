"""What routers and engines say of themselves when the operator asks. Pure: the asking is in `reports`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterReport:
    """One router pod's `GET /v1/report`, or why it gave none."""

    pod: str
    """Name of the pod."""
    problem: str | None = None
    """Why there is no report, in one sentence; None: the rest holds."""
    table: str | None = None
    """Generation of the routing table in force; None: none yet."""
    keyrings: Mapping[str, str] = field(default_factory=dict)
    """Generation of each keyring shard in force, by the name of its Secret."""
    draining: Mapping[str, int] = field(default_factory=dict)
    """Requests that the router still has at each endpoint that drains, by pod UID. A UID that is listed is acknowledged: nothing new
    goes there."""
    backlog_tokens: Mapping[str, int] = field(default_factory=dict)
    """Tokens that wait or run, by pool."""
    last_used: Mapping[str, datetime] = field(default_factory=dict)
    """Last request, by pool."""
    keys_last_used: Mapping[str, datetime] = field(default_factory=dict)
    """Last request, by ClientKey."""
    leaving: bool = False
    """The router itself drains: it takes no new requests."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why a source's newest content is not in force, by source."""

    @property
    def answered(self) -> bool:
        """Whether the router gave a report."""
        return self.problem is None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAnswer:
    """What one engine pod said to a drain call or of its load, or why it said nothing."""

    pod_uid: str
    problem: str | None = None
    """Why there is no answer, in one sentence; None: the rest holds."""
    draining: bool = False
    """The engine fails its readiness probe on purpose."""
    running: int = 0
    """Requests in the running batch."""
    queued: int = 0
    """Requests that wait inside the engine."""

    @property
    def idle(self) -> bool:
        """The engine answered, and holds no request."""
        return self.problem is None and self.running + self.queued == 0


class _Generations(BaseModel):
    table: str | None = None
    keyrings: dict[str, str | None] = Field(default_factory=dict)


class _ReportDocument(BaseModel):
    """`GET /v1/report` of a router: a field that is not there, as in an older router, says nothing."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", hide_input_in_errors=True)

    generations: _Generations = _Generations()
    draining: dict[str, int] = Field(default_factory=dict)
    backlog_tokens: dict[str, int] = Field(default_factory=dict)
    last_used: dict[str, float | None] = Field(default_factory=dict)
    keys_last_used: dict[str, float | None] = Field(default_factory=dict)
    router_draining: bool = False
    problems: dict[str, str] = Field(default_factory=dict)


def parse_report(pod: str, body: bytes) -> RouterReport:
    """The report of the router pod with this name. A body that is none becomes the report's problem; nothing raises."""
    try:
        document = _ReportDocument.model_validate_json(body)
        return RouterReport(
            pod=pod,
            table=document.generations.table,
            # On a cluster a router names its sources as people do: `Secret hlserve-keyring-0`.
            keyrings={
                name.rpartition(" ")[2]: generation
                for name, generation in document.generations.keyrings.items()
                if generation
            },
            draining=document.draining,
            backlog_tokens=document.backlog_tokens,
            last_used=_times(document.last_used),
            keys_last_used=_times(document.keys_last_used),
            leaving=document.router_draining,
            problems=document.problems,
        )
    except (ValidationError, ValueError, OverflowError, OSError) as error:
        return RouterReport(pod=pod, problem=f"its report cannot be read: {type(error).__name__}")


def _times(seconds: Mapping[str, float | None]) -> dict[str, datetime]:
    return {name: datetime.fromtimestamp(value, UTC) for name, value in seconds.items() if value is not None}


class _DrainDocument(BaseModel):
    draining: bool
    running: int = Field(ge=0)
    queued: int = Field(ge=0)


def parse_drain(pod_uid: str, body: bytes) -> EngineAnswer:
    """What an engine answers to `POST /hlserve/drain`; nothing raises."""
    try:
        document = _DrainDocument.model_validate_json(body)
    except ValidationError:
        return EngineAnswer(pod_uid=pod_uid, problem="its answer to the drain call cannot be read")
    return EngineAnswer(pod_uid=pod_uid, draining=document.draining, running=document.running, queued=document.queued)


_LOAD: Final = re.compile(
    r"^sglang:(num_running_reqs|num_queue_reqs)(?:\{[^}]*\})?\s+([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)\s*$",
    re.MULTILINE,
)


def parse_load(pod_uid: str, page: str) -> EngineAnswer:
    """An engine's load by its metrics page, summed over its schedulers; nothing raises.

    A page without the running count is no idle engine: it may be of another version, or still start.
    """
    sums: dict[str, float] = {}
    for name, value in _LOAD.findall(page):
        sums[name] = sums.get(name, 0.0) + float(value)
    if "num_running_reqs" not in sums:
        return EngineAnswer(pod_uid=pod_uid, problem="its metrics do not say how many requests run")
    running, queued = (int(sums.get(name, 0.0)) for name in ("num_running_reqs", "num_queue_reqs"))
    return EngineAnswer(pod_uid=pod_uid, running=running, queued=queued)
