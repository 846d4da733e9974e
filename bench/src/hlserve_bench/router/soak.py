"""What a soak run tells: samples of one router under many open streams, and what they amount to. Pure, but for reading and writing."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from hlserve_bench.router.manifest import commit_in_words, load_in_words

SPARE_SOCKETS: Final = 4
"""Those of probes come and go."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One interval of the run, and what the router's process held at its end."""

    seconds: float
    """Since the streams began."""
    memory_mib: float
    """Proportional set size (PSS)."""
    sockets: int
    cores_used: float
    delay_p50_us: float
    delay_p99_us: float
    delay_max_us: float
    chunks_per_second: float
    streams_finished: int
    errors: int


@dataclass(frozen=True, slots=True)
class Rest:
    """What the process holds while no stream is open."""

    memory_mib: float
    sockets: int
    in_flight: float
    """As its metrics say."""
    outcomes: float
    """Requests that ended, as its metrics say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakRun:
    """A whole run."""

    streams: int
    chunk_gap_milliseconds: int
    chunks_per_stream: int
    chunks_spread: int = 0
    """So many more or less, evenly."""
    before: Rest
    after: Rest
    samples: Sequence[Sample]
    direct_delay_p99_us: Sequence[float]
    """The same load without a router, by interval: the floor."""
    engine_requests: int
    """Streams that the engine was asked for."""
    manifest: Mapping[str, Any]

    def to_json(self) -> str:
        """The file that is kept."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "SoakRun":
        """What `to_json` made. Raises ValueError, KeyError or TypeError."""
        raw = json.loads(text)
        return cls(
            **{
                **raw, "before": Rest(**raw["before"]), "after": Rest(**raw["after"]),
                "samples": [Sample(**sample) for sample in raw["samples"]],
            }
        )  # fmt: skip

    @property
    def kib_per_stream(self) -> float:
        """Memory over that before the streams, for each of them, at the first sample when all were open."""
        whole = self.before.sockets + 2 * self.streams
        first = next((sample for sample in self.samples if sample.sockets >= whole), self.samples[-1])
        return (first.memory_mib - self.before.memory_mib) * 1024 / self.streams

    @property
    def kib_per_stream_at_the_end(self) -> float:
        """The same at the last sample."""
        return (self.samples[-1].memory_mib - self.before.memory_mib) * 1024 / self.streams

    @property
    def growth_kib_per_minute(self) -> float:
        """Slope of memory over time in the second half of the run (least squares): what a leak would show as."""
        settled = self.samples[len(self.samples) // 2 :]
        return slope([(sample.seconds, sample.memory_mib) for sample in settled]) * 1024 * 60

    @property
    def added_p99_us(self) -> float:
        """Median over the intervals of the p99 chunk delay, minus that without a router."""
        return median(sample.delay_p99_us for sample in self.samples) - median(self.direct_delay_p99_us)

    @property
    def findings(self) -> list[str]:
        """What must not be; empty: nothing."""
        errors = sum(sample.errors for sample in self.samples)
        told = {
            f"{errors} streams broke or were refused": errors,
            f"{self.after.in_flight:g} requests are still in flight after the last client left": self.after.in_flight,
            f"{self.after.outcomes:g} outcomes for {self.engine_requests} streams": self.after.outcomes
            != self.engine_requests,
            f"{self.after.sockets - self.before.sockets} more sockets than before": self.after.sockets
            > self.before.sockets + SPARE_SOCKETS,
        }
        return [text for text, wrong in told.items() if wrong]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line nearest to the points (least squares); 0 for fewer than two."""
    if len(points) < 2:
        return 0.0
    x_mean, y_mean = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread if spread else 0.0


def render(run: SoakRun) -> str:
    """The page."""
    environment = Environment(
        loader=PackageLoader("hlserve_bench.router"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False,  # noqa: S701 - Markdown of our own figures
    )  # fmt: skip
    every = max(1, len(run.samples) // 10)
    return environment.get_template("router-soak.md.j2").render(
        run=run, manifest=run.manifest, shown=run.samples[::every], finished=sum(s.streams_finished for s in run.samples),
        p99=median(s.delay_p99_us for s in run.samples), worst=max(s.delay_p99_us for s in run.samples),
        cores=median(s.cores_used for s in run.samples), minutes=run.samples[-1].seconds / 60,
        direct=median(run.direct_delay_p99_us), commit=commit_in_words(run.manifest), load=load_in_words(run.manifest),
    )  # fmt: skip


def write(folder: Path, run: SoakRun) -> None:
    """The run and its page."""
    (folder / "router-soak.json").write_text(run.to_json(), encoding="utf-8")
    (folder / "router-soak.md").write_text(render(run), encoding="utf-8")
