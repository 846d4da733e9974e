"""What a load process has to do: small enough for one JSON file, because the workload follows from seed and sample."""

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from hlserve_bench.traces.workload import LoadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """One run against one base URL. Keys carry the class, so the two kinds of client differ in nothing else."""

    base_url: str
    """With the `/v1`."""
    model: str
    chat_key: str
    agent_key: str
    seed: int
    spec: LoadSpec = field(default_factory=LoadSpec)
    drain_seconds: float = 10.0
    """How long open chat requests may still end after the last arrival."""
    progress_seconds: float = 0.5


_ADAPTER: TypeAdapter[LoadPlan] = TypeAdapter(LoadPlan)


def write_plan(path: Path, plan: LoadPlan) -> None:
    """The plan as JSON. It holds keys: only the owner may read it."""
    path.touch(mode=0o600)
    path.write_bytes(_ADAPTER.dump_json(plan))


def read_plan(path: Path) -> LoadPlan:
    """What `write_plan` wrote."""
    return _ADAPTER.validate_json(path.read_bytes())
