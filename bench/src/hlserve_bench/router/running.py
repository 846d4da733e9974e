"""The run: engine and candidates up, then round by round, case by case, every candidate in turn."""

import http.client
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, TypeVar

from hlserve_bench.router.candidates import DIRECT, Cores, Site
from hlserve_bench.router.cases import BY_NAME, Case
from hlserve_bench.router.measuring import Bench, MeasurementError, Target
from hlserve_bench.router.peers import Missing, Ready, last_line
from hlserve_bench.router.processes import Started, start, wait_until_quiet
from hlserve_bench.router.programs import HarnessError, Programs, free_ports
from hlserve_bench.router.rows import Row
from hlserve_bench.router.table import AGENT_KEY, MODEL

T = TypeVar("T")
ORDER_SEED: Final = 16
"""Of the order in which candidates take their turn."""
FRESH_SECONDS: Final = 30.0
"""What a candidate that is started anew has to come up."""
_WARM = Case("warm", BY_NAME["reply-64"].load, 64, 0.1, 0.3)
_WARM_STREAMS = Case("warm", BY_NAME["ttft"].load, 64, 0.1, 0.4, chunks=10, gap_microseconds=5_000)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and where."""

    rounds: int
    cases: Sequence[Case]
    candidates: Sequence[Ready]
    candidate_core: int
    load_core: int
    real_time: bool
    python: str = sys.executable
    """Of ours and of the control."""

    def cores_of(self, ready: Ready) -> Sequence[int]:
        """Where a candidate may run."""
        return (self.candidate_core,) if ready.candidate.cores is Cores.ONE else (self.candidate_core, self.load_core)


@dataclass(slots=True)
class Live:
    """A candidate with its place on this machine."""

    ready: Ready
    site: Site
    started: Started | None = None

    @property
    def name(self) -> str:
        """Of the candidate."""
        return self.ready.candidate.name

    @property
    def target(self) -> Target:
        """What the clients talk to."""
        return Target(self.site.port, self.started.pids() if self.started is not None else ())


@dataclass(slots=True)
class Run:
    """A run in progress. Rows come out of `rows()`; `missing` tells who did not come up."""

    plan: Plan
    programs: Programs
    cache: Path
    say: Callable[[str], None]
    missing: list[Missing] = field(default_factory=list)
    _live: list[Live] = field(default_factory=list)

    def rows(self) -> Iterator[Row]:
        """Runs everything. Raises HarnessError if the engine does not start."""
        allow_many_files()
        plan = self.plan
        engine_ports = free_ports(2 + 2 * len(plan.candidates))
        one, two, *others = engine_ports
        with ExitStack() as stack:
            engine = self._engine(stack, (one, two))
            bench = Bench(one, engine.process.pid, self.programs.client, (plan.load_core,), AGENT_KEY, plan.real_time)
            for index, ready in enumerate(plan.candidates):
                folder = self.cache / "run" / ready.candidate.name
                folder.mkdir(exist_ok=True)
                site = Site(others[2 * index], others[2 * index + 1], (one, two), folder)
                self._live.append(Live(ready, site))
            stack.callback(self._end_all)
            for number in range(plan.rounds):
                self._start_all(bench, first=number == 0)
                for case in plan.cases:
                    yield from self._case(bench, case, number)
                    self.say(f"{time.strftime('%H:%M:%S')} round {number + 1} of {plan.rounds}, {case.name}")

    def _engine(self, stack: ExitStack, ports: tuple[int, int]) -> Started:
        command = [str(self.programs.engine), *map(str, ports)]
        engine = start(command, (self.plan.load_core,), self.cache / "logs" / "engine.log", {}, self.cache)
        stack.callback(engine.end)
        if not until(lambda: answers(ports[0]), 5):
            raise HarnessError(f"The mock engine did not start: {last_line(engine.log)}")
        return engine

    def _case(self, bench: Bench, case: Case, number: int) -> Iterator[Row]:
        if case.name != "spread":
            yield _row(bench, case, DIRECT, number, Target(bench.engine_port))
        able = [live for live in self._live if case.name in live.ready.candidate.cases]
        for live in shuffled(able, number, case.name):
            self._revive(live, case)
            row = _row(bench, case, live.name, number, live.target)
            if row.failure is not None:
                self.say(f"{live.name}, {case.name}: {row.failure}")
            yield row
            time.sleep(0.1)

    def _revive(self, live: Live, case: Case) -> None:
        """Starts a candidate anew that refuses a plain request, as a circuit breaker that opened in the case before would."""
        status = _chat_status(live.site.port)
        if status == http.client.OK or not live.ready.candidate.restarts:
            return
        self.say(f"{live.name} answers {status or 'nothing'} before {case.name}: started anew")
        self._end(live)
        self._start(live)
        until(partial(serves, live.site.port), FRESH_SECONDS)
        wait_until_quiet(live.target.pids)

    def _start_all(self, bench: Bench, *, first: bool) -> None:
        for live in tuple(self._live):
            if live.started is not None:
                if not live.ready.candidate.restarts:
                    continue
                live.started.end()
            self._start(live)
        waiting = list(self._live)
        for live in waiting:
            if not until(partial(serves, live.site.port), 60 if first else 30):
                log = live.started.log if live.started is not None else self.cache
                status = _chat_status(live.site.port) or "nothing"
                reason = f"it did not come up (it answers {status}): {last_line(log)}"
                self.missing.append(Missing(live.ready.candidate, reason))
                self.say(f"{live.name}: {reason}; see {log}")
                self._end(live)
                self._live.remove(live)
        for live in self._live:
            wait_until_quiet(live.target.pids)
            for case in (_WARM, _WARM_STREAMS):
                _row(bench, case, live.name, 0, live.target)

    def _start(self, live: Live) -> None:
        launch = live.ready.candidate.launch(live.site, live.ready.executable)
        log = self.cache / "logs" / f"{live.name}.log"
        live.started = start(launch.command, self.plan.cores_of(live.ready), log, launch.environment, live.site.folder)

    def _end(self, live: Live) -> None:
        if live.started is not None:
            live.started.end()
            live.started = None

    def _end_all(self) -> None:
        for live in self._live:
            self._end(live)


def _row(bench: Bench, case: Case, name: str, number: int, target: Target) -> Row:
    try:
        return Row(name, case.name, number, bench.measure(case, target))
    except MeasurementError as error:
        return Row(name, case.name, number, {"errors": error.errors} if error.errors else {}, failure=str(error))


def shuffled(items: Sequence[T], number: int, case_name: str) -> list[T]:
    """The order of one case in one round: nobody always has the same neighbour before it, and a run can be repeated."""
    order = list(items)
    Random(f"{ORDER_SEED} {number} {case_name}").shuffle(order)
    return order


def allow_many_files() -> None:
    """A thousand streams need two thousand sockets in a proxy."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def until(check: Callable[[], bool], seconds: float) -> bool:
    """True as soon as `check` holds, False if it does not in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if check():
            return True
        time.sleep(0.2)
    return False


def answers(port: int) -> bool:
    """The engine there is up."""
    return _status(port, "GET", "/health", None) == http.client.OK


def serves(port: int) -> bool:
    """A chat request there gets its reply."""
    return _chat_status(port) == http.client.OK


def _chat_status(port: int) -> int:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
    return _status(port, "POST", "/v1/chat/completions", json.dumps(body).encode())


def _status(port: int, method: str, path: str, body: bytes | None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        headers = {"content-type": "application/json", "authorization": f"Bearer {AGENT_KEY}"}
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
