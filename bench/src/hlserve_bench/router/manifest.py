"""What a run ran on: commit, versions, kernel, Python, scheduling. Without it a figure means nothing."""

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from hlserve_bench.report.provenance import collect as provenance
from hlserve_bench.router.interpreter import look
from hlserve_bench.router.peers import Missing
from hlserve_bench.router.running import ORDER_SEED, Plan
from hlserve_bench.router.table import DESCRIPTION

OWN_OUTPUT: Final = "docs/benchmarks/router"
MEASURED: Final = ("router/src/", "crds/src/", "bench/", "locks/router.txt", "tools/compile_router.py")
"""Where a change can change a figure."""
SHOWN_PATHS: Final = 6
_LIBRARIES: Final = ("uvicorn", "uvloop", "httptools", "fastapi", "msgspec", "prometheus-client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Of one run."""

    created: str
    commit: str | None
    uncommitted_changes: bool | None
    uncommitted: Sequence[str] = ()
    """Paths of files that differ from the commit, but for what runs themselves write."""
    command: str
    kernel: str
    processor: str
    cores: int
    python: str
    python_build: str = ""
    python_loop_milliseconds: float = 0.0
    """See `interpreter.Interpreter`."""
    libraries: Mapping[str, str]
    scheduling: str
    rounds: int
    candidate_core: int
    load_core: int
    our_table: str
    our_log_level: str
    candidates: Mapping[str, str]
    """Name → version."""
    missing: Mapping[str, str]
    """Name → why it was not measured."""
    load_average: float
    """Over the five minutes before the run's end, its own load (two at most) included."""
    load_average_before: float | None = None
    """Over the minute before it began."""
    order_seed: int | None = None
    """See `running.shuffled`."""

    def to_json(self) -> str:
        """For people too."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """What `to_json` made. Raises ValueError or TypeError."""
        return cls(**json.loads(text))


def collect(plan: Plan, missing: Sequence[Missing], arguments: Sequence[str], load_before: float) -> Manifest:
    """Looks at the machine as it is. `load_before`: its load average when the run began."""
    return Manifest(
        **machine(real_time=plan.real_time, python=plan.python, load_before=load_before),
        order_seed=ORDER_SEED,
        command=" ".join(["python -m hlserve_bench.router", *arguments]),
        rounds=plan.rounds,
        candidate_core=plan.candidate_core,
        load_core=plan.load_core,
        our_table=DESCRIPTION,
        our_log_level="warning",
        candidates={ready.candidate.name: ready.version for ready in plan.candidates},
        missing={each.candidate.name: each.reason for each in missing},
    )


def commit_in_words(manifest: Mapping[str, Any]) -> str:
    """Which source ran, and what of router and benchmark was not committed."""
    commit = manifest["commit"]
    if not commit:
        return "an unknown commit"
    changed = manifest.get("uncommitted") or ()
    if not changed:
        return f"commit `{commit[:12]}`" + (" with uncommitted changes" if manifest["uncommitted_changes"] else "")
    paths = [f"`{path}`" for path in changed if path.startswith(MEASURED)]
    if not paths:
        return f"commit `{commit[:12]}` with uncommitted changes in {len(changed)} files, none of them of router or benchmark"
    more = f" and {len(paths) - SHOWN_PATHS} more" if len(paths) > SHOWN_PATHS else ""
    return f"commit `{commit[:12]}` with uncommitted changes in {', '.join(paths[:SHOWN_PATHS])}{more}"


def load_in_words(manifest: Mapping[str, Any]) -> str:
    """How busy the machine was: before the run that is others' doing, at its end mostly the run's own."""
    after = f"{manifest['load_average']:.1f}"
    before = manifest.get("load_average_before")
    return (
        f"load average {after}" if before is None else f"load average {before:.1f} before the run, {after} at its end"
    )


def machine(*, real_time: bool, python: str = sys.executable, load_before: float) -> dict[str, Any]:
    """The part of a manifest that says where and with what something ran. Raises HarnessError."""
    interpreter = look(python)
    source = provenance(Path(__file__).parent)
    changed = [path for path in source.uncommitted if not path.startswith(OWN_OUTPUT)]
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": source.commit,
        "uncommitted_changes": bool(changed) if source.commit else None,
        "uncommitted": changed,
        "kernel": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "python": interpreter.name,
        "python_build": interpreter.build,
        "python_loop_milliseconds": interpreter.loop_milliseconds,
        "libraries": {name: metadata.version(name) for name in _LIBRARIES},
        "load_average": os.getloadavg()[1],
        "load_average_before": load_before,
        "scheduling": "SCHED_FIFO while it is measured" if real_time else "SCHED_OTHER",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
