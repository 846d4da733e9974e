"""The demo's cell: load, SLO, durations, and where its manifests are.

Four modelled A100-80G with Llama-3.1-8B. The load was found by simulation: it is past what one shared pool can serve inside the SLO,
and its agents' contexts do not fit the KV pools at once.
"""

from dataclasses import dataclass, field
from pathlib import Path

from hlserve_bench.report.assemble import Timing
from hlserve_bench.report.build import SloBounds
from hlserve_bench.traces.workload import LoadSpec

QUICKSTART = "quickstart"
CLASS_BLIND = "class-blind"
CHAT_CLIENT = "chat-app"
AGENT_CLIENT = "coding-agent"
DEFAULT_SEED = 11


class ExamplesMissingError(FileNotFoundError):
    """The manifests of the demo are nowhere. The message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCell:
    """What is run, in both arms alike."""

    chat_rps: float = 2.0
    agent_sessions: int = 60
    ramp_seconds: float = 5.0
    slo: SloBounds = field(default_factory=lambda: SloBounds(ttft_ms=1000.0, tpot_ms=20.0))

    def load(self, timing: Timing) -> LoadSpec:
        """The load of a run of that length."""
        return LoadSpec(
            chat_rps=self.chat_rps,
            agent_sessions=self.agent_sessions,
            ramp_seconds=self.ramp_seconds,
            duration_seconds=timing.load_seconds,
        )


LIVE_TIMING = Timing(warmup_seconds=30.0, measured_seconds=60.0, drain_seconds=10.0)
VIRTUAL_TIMING = Timing(warmup_seconds=120.0, measured_seconds=300.0, drain_seconds=10.0)
"""Longer, because it costs no waiting: the advantage of HlServe still grows after two minutes."""


def find_examples(start: Path | None = None) -> Path:
    """The folder `examples` of the source tree: above this file, or above the working directory.

    Raises ExamplesMissingError.
    """
    for origin in (start,) if start is not None else (Path(__file__).resolve(), Path.cwd()):
        for folder in (origin, *origin.parents):
            examples = folder / "examples"
            if (examples / QUICKSTART).is_dir() and (examples / CLASS_BLIND).is_dir():
                return examples
    raise ExamplesMissingError(
        f"The demo needs the folders examples/{QUICKSTART} and examples/{CLASS_BLIND} of the source tree: run it inside a clone."
    )
