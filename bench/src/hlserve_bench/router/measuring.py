"""One case on one candidate: sets the engine, runs the clients, reads CPU and memory beside them."""

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from hlserve_bench.router.cases import LEFT_IN, Case, Load
from hlserve_bench.router.processes import connections_by_process, cpu_seconds, pinned, pss_bytes, real_time

_KEPT: Final = (
    "finished_per_second", "chunks_per_second", "latency_p50_us", "latency_p99_us", "ttft_p50_us", "ttft_p99_us",
    "delay_p50_us", "delay_p99_us", "delay_max_us", "gap_p99_us",
)  # fmt: skip
"""What is taken over from the load client as it is."""
LEAVING_SECONDS: Final = 0.5
MOST_REFUSED: Final = 0.01
"""Share of the replies that may be refused or broken; with more the figures would be those of an error page."""
_MESSAGE: Final = re.compile(r'"message"\s*:\s*"((?:[^"\\]|\\.)*)')


class MeasurementError(Exception):
    """A case that gave no figures; the message says why. `errors`: requests that broke or were refused."""

    def __init__(self, message: str, errors: float = 0) -> None:
        super().__init__(message)
        self.errors = errors


@dataclass(frozen=True, slots=True)
class Target:
    """What the clients talk to. Without processes: the engine itself."""

    port: int
    pids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Bench:
    """The load side: engine and clients."""

    engine_port: int
    engine_pid: int
    client: Path
    load_cores: Sequence[int]
    key: str
    real_time: bool

    def measure(self, case: Case, target: Target) -> dict[str, float]:
        """Runs the case. Raises MeasurementError."""
        self.set_engine(case)
        with real_time([*target.pids, self.engine_pid]) if self.real_time else nullcontext():
            runs = [self._run(case, target) for _ in range(case.repeats)]
        if case.name == LEFT_IN:
            runs[0]["chunks_after_leaving"] = self._left_behind()
        elif case.endless:
            # Later than the clients: else a proxy that is still busy with their leaving takes it for a fault of the engine.
            time.sleep(LEAVING_SECONDS)
            _get(f"http://127.0.0.1:{self.engine_port}/_abort")
        return combine(runs)

    def stats(self) -> Mapping[str, int]:
        """The engine's counters."""
        answer: dict[str, int] = json.loads(_get(f"http://127.0.0.1:{self.engine_port}/_stats"))
        return answer

    def set_engine(self, case: Case) -> None:
        """How the engine streams from here on."""
        settings = f"chunks={case.chunks}&spread={case.chunks_spread}&gap_us={case.gap_microseconds}"
        _get(f"http://127.0.0.1:{self.engine_port}/_set?{settings}")

    def _run(self, case: Case, target: Target) -> dict[str, float]:
        command = [
            str(self.client), case.load.value, f"127.0.0.1:{target.port}", str(case.connections), str(case.warm_seconds),
            str(case.seconds), str(case.body_bytes),
        ]  # fmt: skip
        memory_before = pss_bytes(target.pids) if case.endless else 0
        window = Window(self.stats, lambda: cpu_seconds(target.pids))
        process = subprocess.Popen(
            pinned(self.load_cores, command, in_real_time=self.real_time), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={"BENCH_KEY": self.key},
        )  # fmt: skip
        values: dict[str, float] = {}
        if case.endless and target.pids:
            time.sleep(case.warm_seconds + 0.2)
            window = Window(self.stats, lambda: cpu_seconds(target.pids))
            time.sleep(case.seconds - 0.6)
            window.close()
            values["pss_mib"] = pss_bytes(target.pids) / 2**20
            values["kib_per_stream"] = (pss_bytes(target.pids) - memory_before) / 1024 / case.connections
        elif case.repeats > 1:
            time.sleep(case.warm_seconds + case.seconds / 2)
            counts = connections_by_process(target.pids, target.port)
            values["largest_share"] = max(counts, default=0) / max(1, sum(counts))
        output, errors = process.communicate(timeout=case.warm_seconds + case.seconds + 30)
        window.close()
        values |= client_values(output, errors)
        if target.pids:
            values |= window.values(case.load)
        return values

    def _left_behind(self) -> float:
        """Chunks that still flow half a second after the clients left: an engine that works for nobody."""
        time.sleep(LEAVING_SECONDS)
        before = self.stats()["chunks"]
        time.sleep(0.2)
        after = self.stats()["chunks"]
        _get(f"http://127.0.0.1:{self.engine_port}/_abort")
        return after - before


class Window:
    """CPU time of a candidate and the engine's counters between two moments; closed once."""

    def __init__(self, stats: Callable[[], Mapping[str, int]], cpu: Callable[[], float]) -> None:
        self._stats, self._cpu = stats, cpu
        self._began = time.monotonic()
        self._first, self._cpu_first = stats(), cpu()
        self._spent: tuple[float, float, Mapping[str, int]] | None = None

    def close(self) -> None:
        """Reads both again."""
        if self._spent is None:
            cpu = self._cpu() - self._cpu_first
            self._spent = time.monotonic() - self._began, cpu, self._stats()

    def values(self, load: Load) -> dict[str, float]:
        """Microseconds of CPU for each request or chunk that the engine wrote, and the share of one core."""
        if self._spent is None:
            return {}
        seconds, cpu, last = self._spent
        unit = "requests" if load is Load.REPLY else "chunks"
        units = last[unit] - self._first[unit]
        if units <= 0:
            return {}
        return {f"cpu_us_per_{unit[:-1]}": cpu / units * 1e6, "cores_used": cpu / seconds}


def client_values(output: str, errors: str) -> dict[str, float]:
    """The load client's line. Raises MeasurementError if there is none, or nothing was served."""
    if not output:
        raise MeasurementError(f"the load client ended without a result: {errors.strip()[:200]}")
    raw: dict[str, float | None] = json.loads(output)
    values = {name: value for name in _KEPT if (value := raw[name]) is not None}
    wrong = values["errors"] = (raw["broken"] or 0) + (raw["refused"] or 0)
    served = (raw["finished"] or 0) + (raw["chunks"] or 0)
    if not served:
        raise MeasurementError(f"nothing was served in time: {said(errors)}", wrong)
    if wrong > MOST_REFUSED * (served + wrong):
        raise MeasurementError(f"{wrong:,.0f} refused or broken beside {served:,.0f} served: {said(errors)}", wrong)
    return values


def said(errors: str) -> str:
    """The first answer that the load client complained of, in words: its status, and the message if its JSON has one."""
    lines = errors.strip().splitlines()
    if not lines:
        return "no answer"
    found = _MESSAGE.search(lines[0])
    status = re.match(r"HTTP \d+", lines[0])
    return f"{status[0]}, {found[1]}" if found and status else lines[0].replace("|", "/")[:120]


def combine(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """One row out of repeats: means, but the worst of shares and the sum of errors."""
    merged: dict[str, float] = {}
    for name in runs[0]:
        found = [run[name] for run in runs if name in run]
        merged[name] = max(found) if name == "largest_share" else sum(found) if name == "errors" else fmean(found)
    if "largest_share" in merged:
        merged["mean_share"] = fmean(run["largest_share"] for run in runs)
    return merged


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310 - our own engine on loopback
        content: bytes = answer.read()
    return content
