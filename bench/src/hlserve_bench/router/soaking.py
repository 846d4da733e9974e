"""The soak run: one router, many open streams, for minutes. Writes what `soak` makes of it."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hlserve_bench.router.candidates import BY_NAME, Site
from hlserve_bench.router.cases import Case, Load
from hlserve_bench.router.manifest import machine
from hlserve_bench.router.measuring import Bench, client_values
from hlserve_bench.router.processes import (
    Started,
    cpu_seconds,
    pinned,
    pss_bytes,
    real_time,
    sockets,
    start,
    wait_until_quiet,
)
from hlserve_bench.router.programs import HarnessError, Programs, free_ports
from hlserve_bench.router.running import allow_many_files, answers, serves, until
from hlserve_bench.router.soak import SPARE_SOCKETS, Rest, Sample, SoakRun
from hlserve_bench.router.table import AGENT_KEY

GAP_MILLISECONDS: Final = 50
CHUNKS: Final = 400
CHUNKS_SPREAD: Final = 200
"""Streams of 10 to 30 seconds: with one length for all, all would end and begin in the same two seconds again and again."""
WARM_SECONDS: Final = 3.0
IDLE_SECONDS: Final = 120.0
"""By then the router has closed the connections that it keeps to the engines for the next request."""
DIRECT_INTERVALS: Final = 2
ENGINE_CORE, ROUTER_CORE = 1, 0


@dataclass(frozen=True, slots=True)
class Soak:
    """How long, how many, and with what."""

    seconds: float
    streams: int
    interval_seconds: float
    programs: Programs
    cache: Path
    say: Callable[[str], None]
    in_real_time: bool = False

    def run(self) -> SoakRun:
        """Raises HarnessError."""
        allow_many_files()
        load_before = os.getloadavg()[0]
        engine_1, engine_2, port, admin_port = free_ports(4)
        with ExitStack() as stack:
            command = [str(self.programs.engine), str(engine_1), str(engine_2)]
            engine = start(command, (ENGINE_CORE,), self.cache / "logs" / "engine.log", {}, self.cache)
            stack.callback(engine.end)
            folder = self.cache / "run" / "soak"
            folder.mkdir(exist_ok=True)
            site = Site(port, admin_port, (engine_1, engine_2), folder)
            launch = BY_NAME["hlserve"].launch(site, sys.executable)
            log = self.cache / "logs" / "soak.log"
            router = start(launch.command, (ROUTER_CORE,), log, launch.environment, folder)
            stack.callback(router.end)
            if not until(lambda: answers(engine_1) and serves(port), 30):
                raise HarnessError(f"The router did not come up, see {log}.")
            bench = Bench(
                engine_1, engine.process.pid, self.programs.client, (ENGINE_CORE,), AGENT_KEY, self.in_real_time
            )
            return self._measured(bench, router, port, admin_port, load_before)

    def _measured(self, bench: Bench, router: Started, port: int, admin_port: int, load_before: float) -> SoakRun:
        case = Case(
            "soak", Load.STREAM, self.streams, WARM_SECONDS, self.seconds, chunks=CHUNKS,
            chunks_spread=CHUNKS_SPREAD, gap_microseconds=GAP_MILLISECONDS * 1000,
        )  # fmt: skip
        bench.set_engine(case)
        self.say(f"{DIRECT_INTERVALS * self.interval_seconds:.0f} s without a router")
        with self._scheduled(bench.engine_pid):
            lines = list(self._client(bench, bench.engine_port, DIRECT_INTERVALS * self.interval_seconds))
        direct = [json.loads(line)["delay_p99_us"] for line in lines]
        wait_until_quiet(router.pids())
        asked_before = bench.stats()["requests"]
        before = rest(router, admin_port)
        with self._scheduled(bench.engine_pid, *router.pids()):
            samples = self._samples(bench, router, port)
        if not until(lambda: rest(router, admin_port).in_flight == 0, 30):
            self.say("requests are still in flight half a minute after the last client left")
        self.say("waiting for idle connections to close")
        until(lambda: sockets(router.pids()) <= before.sockets + SPARE_SOCKETS, IDLE_SECONDS)
        after = rest(router, admin_port)
        return SoakRun(
            streams=self.streams,
            chunk_gap_milliseconds=GAP_MILLISECONDS,
            chunks_per_stream=CHUNKS,
            chunks_spread=CHUNKS_SPREAD,
            before=before,
            after=Rest(after.memory_mib, after.sockets, after.in_flight, after.outcomes - before.outcomes),
            samples=samples,
            direct_delay_p99_us=direct,
            engine_requests=bench.stats()["requests"] - asked_before,
            manifest=machine(real_time=self.in_real_time, load_before=load_before),
        )

    def _scheduled(self, *pids: int) -> AbstractContextManager[None]:
        return real_time(pids) if self.in_real_time else nullcontext()

    def _client(self, bench: Bench, port: int, seconds: float) -> Iterator[str]:
        """Runs the streams; a line for each interval as it ends."""
        command = [
            str(bench.client), Load.STREAM.value, f"127.0.0.1:{port}", str(self.streams), str(WARM_SECONDS), str(seconds), "1024",
        ]  # fmt: skip
        process = subprocess.Popen(
            pinned(bench.load_cores, command, in_real_time=bench.real_time), stdout=subprocess.PIPE, text=True,
            env={"BENCH_KEY": bench.key, "BENCH_INTERVAL_SECONDS": str(self.interval_seconds)},
        )  # fmt: skip
        with process:
            yield from process.stdout or ()

    def _samples(self, bench: Bench, router: Started, port: int) -> list[Sample]:
        samples: list[Sample] = []
        cpu = cpu_seconds(router.pids())
        # One interval more than is told of: at the end of the last one the clients leave.
        for number, line in enumerate(self._client(bench, port, self.seconds + self.interval_seconds), 1):
            if number * self.interval_seconds > self.seconds:
                continue
            values = client_values(line, "")
            spent, cpu = cpu_seconds(router.pids()) - cpu, cpu_seconds(router.pids())
            sample = Sample(
                seconds=number * self.interval_seconds,
                memory_mib=pss_bytes(router.pids()) / 2**20,
                sockets=sockets(router.pids()),
                cores_used=spent / self.interval_seconds,
                delay_p50_us=values["delay_p50_us"],
                delay_p99_us=values["delay_p99_us"],
                delay_max_us=values["delay_max_us"],
                chunks_per_second=values["chunks_per_second"],
                streams_finished=round(values["finished_per_second"] * self.interval_seconds),
                errors=round(values["errors"]),
            )
            samples.append(sample)
            self.say(f"{sample.seconds:.0f} s: {sample.memory_mib:.1f} MiB, p99 {sample.delay_p99_us:,.0f} µs")
        return samples


def rest(router: Started, admin_port: int) -> Rest:
    """What the router holds."""
    url = f"http://127.0.0.1:{admin_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        page = answer.read().decode()
    return Rest(
        pss_bytes(router.pids()) / 2**20,
        sockets(router.pids()),
        total(page, "hlserve_router_in_flight_requests"),
        total(page, "hlserve_router_requests_total"),
    )


def total(page: str, name: str) -> float:
    """The sum of a metric's series on a page."""
    return sum(
        float(line.rpartition(" ")[2]) for line in page.splitlines() if line.partition("{")[0].partition(" ")[0] == name
    )
