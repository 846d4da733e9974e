"""The chaos run: engines that fail in every way, clients that come and go, documents that change, and then nothing may be left.

What is asked and what goes wrong follows from the seed. When things happen follows from the event loop, so a run with the same seed
is much alike, not the same.
"""

import asyncio
import gc
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from hlserve_api.routing import KeyLimits, Keyring, QueueRule, RoutingTable, Target, TargetRole
from hlserve_router.testing.chaos_client import Fate, Seen, play_client
from hlserve_router.testing.chaos_engine import ChaosPlay
from hlserve_router.testing.chaos_script import Conduct, ask
from hlserve_router.testing.documents import a_class, a_key, a_keyring, a_pool, a_table, some_timeouts
from hlserve_router.testing.engine import ScriptedEngine
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.stage import Stage

KEYS: Final = tuple(f"hls_chaos_{name}_0123456789abcdef0123456789" for name in ("web", "coder", "limited", "nightly"))
CLIENTS: Final = ("web", "coder", "limited", "nightly")
_LOGGERS: Final = ("hlserve_router", "uvicorn", "asyncio")
PROBES_PER_ENGINE: Final = 4
"""Most connections that its probes keep."""
AT_ONCE: Final = 30
"""Clients at a time."""
_NEVER_ARRIVES: Final = frozenset({Conduct.LEAVES_IN_HEAD})
_MAY_ARRIVE: Final = frozenset({Conduct.LEAVES_IN_BODY, Conduct.LEAVES_AT_ONCE, Conduct.LEAVES_UNANSWERED})
_GOES_WITH: Final = {
    Fate.COMPLETE: {"ok"},
    Fate.MARKED: {"truncated", "engine_error", "timeout", "shed", "engine_rejected"},
    Fate.ANSWERED: {"truncated", "engine_error", "engine_rejected", "rejected", "shed", "timeout"},
}
"""Outcomes that fit what a client saw. Who left may have any."""


class Book(logging.Handler):
    """Reads the router's log: outcomes by request, and everything that must not be there."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.outcomes: dict[str, list[str]] = {}
        self.reasons: Counter[str] = Counter()
        self.lines = 0
        """Requests that the log tells of."""
        self.faults: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """One record."""
        if "without completing response" in record.getMessage():
            return  # uvicorn of a reply that is cut on purpose: `logs.set_up` leaves it out
        if record.levelno >= logging.ERROR or record.exc_info:
            text = self.format(record)
            self.faults.append(text[-1500:])
        if record.name != "hlserve_router.request" or record.getMessage() != "request":
            return
        fields: dict[str, Any] = getattr(record, "fields", {})
        self.reasons[f"{fields['outcome']} {fields['reason']}".strip()] += 1
        self.lines += 1
        if "request_id" in fields:
            self.outcomes.setdefault(fields["request_id"], []).append(fields["outcome"])


@dataclass(slots=True)
class ChaosRun:
    """A run in progress."""

    seed: int
    stage: Stage
    play: ChaosPlay = field(init=False)
    book: Book = field(default_factory=Book)
    engines: list[ScriptedEngine] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    fates: Counter[str] = field(default_factory=Counter)
    first_number: int = 0
    """Of the storm in progress."""
    next_number: int = 0

    def __post_init__(self) -> None:
        self.play = ChaosPlay(self.seed)

    async def start(self) -> RunningRouter:
        """Engines and router, with everything that can be bounded bounded tightly."""
        self.engines = [await self.stage.engine(self.play) for _ in range(4)]
        router = await self.stage.router(self.table(0), self.keyring(0), body_timeout_seconds=3.0)
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            logger.addHandler(self.book)
            logger.propagate = False  # a test run keeps every record that reaches the root
            logger.setLevel(logging.INFO)
        asyncio.get_running_loop().set_exception_handler(self._loop_failed)
        return router

    def stop(self) -> None:
        """Takes the log's reader out."""
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            logger.removeHandler(self.book)
            logger.propagate = True
            logger.setLevel(logging.NOTSET)

    def _loop_failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.book.faults.append(f"{context.get('message')}: {context.get('exception')!r}")

    def table(self, variant: int) -> RoutingTable:
        """The table in force at times: with all engines, without one, with other bounds."""
        urls = [engine.url for engine in self.engines]
        agents = urls[: 1 + (variant + 1) % 2]
        queue = QueueRule(max_depth=(12, 6, 30)[variant % 3], ttl_milliseconds=(1500, 600, 2500)[variant % 3])
        timeouts = some_timeouts(
            total_seconds=6, silence_seconds=1, peek_milliseconds=150, ping_seconds=1, start_seconds=1
        )
        spill = Target(pool="agents", role=TargetRole.SPILL)
        return a_table(
            a_pool("agents", *agents, max_in_flight=5, in_flight_tokens=12_000),
            a_pool("chat", *urls[2:], max_in_flight=4 + variant % 3),
            a_class("interactive", "chat", queue=queue, timeouts=timeouts, targets=(Target(pool="chat"), spill)),
            a_class("agent", "agents", queue=queue, timeouts=timeouts),
            a_class("batch", "agents", "chat", queue=queue, timeouts=timeouts),
            generation=f"chaos-{variant}",
        )

    def keyring(self, variant: int) -> Keyring:
        """All keys, or without the last one."""
        limits = KeyLimits(requests_per_minute=100, tokens_per_minute=100_000, max_concurrent=4)
        classes = ("interactive", "agent", "agent", "batch")
        entries = [
            a_key(key, client, class_name, limits=limits if client == "limited" else KeyLimits(max_concurrent=50))
            for key, client, class_name in zip(KEYS, CLIENTS, classes, strict=True)
        ]
        return a_keyring(*entries[: 4 - variant % 2], generation=f"chaos-{variant}")

    async def storm(self, router: RunningRouter, requests: int) -> None:
        """So many requests while everything fails; returns when the last client is done."""
        self.play.calm = False
        trouble = asyncio.create_task(self._trouble(router, Random(f"{self.seed} trouble {self.next_number}")))
        self.first_number = self.next_number
        numbers = iter(range(self.next_number, self.next_number + requests))
        self.next_number += requests
        try:
            await asyncio.gather(*(self._client(router.url, numbers) for _ in range(AT_ONCE)))
        finally:
            trouble.cancel()
            await asyncio.gather(trouble, return_exceptions=True)
        await self._mend(router)

    async def _client(self, url: str, numbers: Iterator[int]) -> None:
        for number in numbers:
            seen = await play_client(url, KEYS, ask(self.seed, number))
            self._judge(seen)

    def _judge(self, seen: Seen) -> None:
        self.fates[seen.fate] += 1
        if seen.wrong:
            self.problems.append(f"{seen.asked.name} ({seen.asked.form}, {seen.asked.conduct}): {seen.wrong}")
        outcomes = self.book.outcomes.get(seen.asked.name, [])
        expected = _GOES_WITH.get(seen.fate)
        if expected is not None and outcomes and outcomes[-1] not in expected:
            self.problems.append(
                f"{seen.asked.name}: the client saw it {seen.fate} ({seen.status}), the router says {outcomes}"
            )

    async def _trouble(self, router: RunningRouter, random: Random) -> None:
        """Engines die and come back, turn sick, documents change or are broken."""
        turn = 0
        while True:
            await asyncio.sleep(0.05 + 0.1 * random.random())
            turn += 1
            match random.randrange(6):
                case 0:
                    engine = random.choice(self.engines)
                    await engine.stop()
                    await asyncio.sleep(0.1 * random.random())
                    await engine.start()
                case 1:
                    random.choice(self.engines).health_status = random.choice((200, 503))
                case 2:
                    router.write("table.json", self.table(turn))
                case 3:
                    router.write("keyring.json", self.keyring(turn))
                case 4:
                    router.write(
                        random.choice(("table.json", "keyring.json")), random.choice(("", "{", '{"schemaVersion": 99}'))
                    )
                case 5:
                    router.write("table.json", self.table(0))

    async def _mend(self, router: RunningRouter) -> None:
        """Everything works again."""
        self.play.calm = True
        for engine in self.engines:
            engine.health_status = 200
        router.write("table.json", self.table(0))
        router.write("keyring.json", self.keyring(0))
        tables = router.router.tables
        await router.until(lambda: not tables.problems and tables.ready)
        await self._settled(router, lambda: left_over(router))
        await self._settled(router, lambda: self.strays(router))
        self.problems += self.accounts(router)
        self.book.outcomes.clear()
        self.play.attempts.clear()
        for engine in self.engines:  # ends the connections that are kept for the next request
            await engine.stop()
            engine.probes.clear()
            engine.aborts.clear()
            await engine.start()
        await router.until(lambda: all(len(engine.probes) >= PROBES_PER_ENGINE for engine in self.engines))

    async def _settled(self, router: RunningRouter, what: Callable[[], list[str]]) -> None:
        try:
            await router.until(lambda: not what(), timeout_seconds=8)
        except TimeoutError:
            self.problems += what()

    def strays(self, router: RunningRouter) -> list[str]:
        """Connections to engines that neither wait for a request nor belong to a probe."""
        idle = sum(len(link.idle) for link in {endpoint.link for endpoint in router.router.proxy.pools.endpoints()})
        more = sum(engine.open_connections for engine in self.engines) - idle - PROBES_PER_ENGINE * len(self.engines)
        return [f"{more} connections to engines are left"] if more > 0 else []

    def accounts(self, router: RunningRouter) -> list[str]:
        """What is wrong about the outcomes of this storm: each request that arrived has exactly one."""
        problems = []
        counted = router.count("hlserve_router_requests_total")
        if counted != self.book.lines:
            problems.append(f"{counted:.0f} outcomes were counted, the log tells of {self.book.lines}")
        for number in range(self.first_number, self.next_number):
            asked = ask(self.seed, number)
            times = len(self.book.outcomes.get(asked.name, []))
            if asked.conduct is Conduct.STRANGER:
                continue  # counted, but a request without a valid key is not looked at any further
            if asked.conduct in _NEVER_ARRIVES and times:
                problems.append(f"{asked.name} never arrived, and has outcomes {self.book.outcomes[asked.name]}")
            elif times > 1 or (
                times == 0 and asked.conduct not in _MAY_ARRIVE | _NEVER_ARRIVES and not self._revocable(asked.client)
            ):
                problems.append(f"{asked.name} ({asked.conduct}) has {times} outcomes")
        return problems

    @staticmethod
    def _revocable(client: int) -> bool:
        """Its key comes and goes: a request without a valid key is counted, and its name not looked at."""
        return client == 3

    def told(self) -> str:
        """What happened, in numbers."""
        counts: tuple[Counter[str], ...] = (
            self.fates,
            self.book.reasons,
            Counter(map(str, self.play.played.elements())),
        )
        return "; ".join(", ".join(f"{name} {count}" for name, count in found.most_common()) for found in counts)

    def verdict(self, router: RunningRouter) -> list[str]:
        """Everything that was wrong so far."""
        internal = router.count("hlserve_router_internal_errors_total")
        return [
            *self.problems,
            *left_over(router),
            *([f"{internal:.0f} internal errors"] if internal else []),
            *(f"in the log: {fault}" for fault in self.book.faults),
        ]


def left_over(router: RunningRouter) -> list[str]:
    """What is still held although nobody asks for anything."""
    inside = router.router
    proxy = inside.proxy
    held = {
        "requests at engines": sum(endpoint.in_flight for endpoint in proxy.pools.endpoints()),
        "tokens at engines": sum(endpoint.in_flight_tokens for endpoint in proxy.pools.endpoints()),
        "work at engines": sum(endpoint.work_tokens for endpoint in proxy.pools.endpoints()),
        "requests by class": sum(sum(pool.in_flight_by_class.values()) for pool in proxy.pools.pools.values()),
        "tokens by class": sum(sum(pool.tokens_by_class.values()) for pool in proxy.pools.pools.values()),
        "permits": sum(proxy.limits.concurrent(client) for client in CLIENTS),
        "waiting": proxy.admission.waiting,
        "queued bytes": sum(proxy.admission.depth(name).size_bytes for name in ("interactive", "agent", "batch")),
        "relays": len(inside.intake.relays),
    }
    return [f"{count} {name} are left" for name, count in held.items() if count]


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the process holds."""

    sockets: int
    tasks: int
    blocks: int
    """Allocations of Python objects: what grows with every leak, however small."""


async def footprint() -> Footprint:
    """The least of several moments, garbage collected: in some of them a probe is under way."""
    moments = []
    for _ in range(8):
        gc.collect()
        moments.append((_sockets(), len(asyncio.all_tasks()), sys.getallocatedblocks()))
        await asyncio.sleep(0.03)
    return Footprint(*map(min, zip(*moments, strict=True)))


def _sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            continue
    return count
