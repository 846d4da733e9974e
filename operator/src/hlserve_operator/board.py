"""What the routers last said, for everything that depends on it: asked for in one place, at one pace."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from hlserve_operator.copies import Copies
from hlserve_operator.keys import ACCESS, Key, pool_key
from hlserve_operator.pools.observed import RouterView
from hlserve_operator.reported import RouterReport
from hlserve_operator.reports import Reports, RouterPod

_log = logging.getLogger("hlserve_operator.board")
URGENT_ROUNDS: Final = 30
"""Rounds at the fast pace after somebody asked for it: a router that never answers must not keep it up for ever."""


@dataclass(slots=True, eq=False)
class Board:
    """The newest report of each ready router pod."""

    copies: Copies
    reports_of: Reports
    add: Callable[[Key], None]
    port: int
    calm_seconds: float
    urgent_seconds: float
    reports: tuple[RouterReport, ...] = ()
    urged: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by whoever wants a round at once: a router came or went."""
    stored_generation: str | None = None
    """Of the routing table as it is stored."""
    _shown: dict[str, "_Summary"] = field(default_factory=dict)
    """What each pool's plan was last told of the routers, by pool."""
    _current: "tuple[_Summary, float] | None" = None
    """The summary of the last round, and since when it is so."""
    _urgent_rounds: int = 0

    def urge(self) -> None:
        """Asks at the fast pace for a while: something waits for the routers."""
        if not self._urgent_rounds:
            self.urged.set()
        self._urgent_rounds = URGENT_ROUNDS

    def saw_table(self, text: str | None) -> None:
        """Takes note of the stored routing table."""
        try:
            self.stored_generation = None if text is None else json.loads(text).get("generation")
        except (ValueError, AttributeError):
            self.stored_generation = None

    def view(self, pool: str) -> RouterView:
        """What a pool's plan needs of it. The pool is due again when that changes, until `forget`."""
        view = self._view()
        self._shown[pool] = _summary(view)
        return view

    def forget(self, pool: str) -> None:
        """The pool is gone."""
        self._shown.pop(pool, None)

    def _view(self) -> RouterView:
        answered = [report for report in self.reports if report.answered]
        in_flight: dict[str, int] = {}
        for report in answered:
            for uid, requests in report.draining.items():
                in_flight[uid] = in_flight.get(uid, 0) + requests
        return RouterView(
            routers=len(self.copies.routers.objects),
            answering=len(answered),
            synced=sum(1 for r in answered if self.stored_generation and r.table == self.stored_generation),
            in_flight=in_flight,
            acknowledged=self._acknowledged(),
        )

    def _acknowledged(self) -> frozenset[str]:
        """Draining pods that every router which may hold requests leaves alone. One that does not answer has not said so."""
        if len(self.reports) < len(self.copies.routers.objects):
            return frozenset()
        listed = [frozenset(report.draining) for report in self.reports]
        return frozenset.intersection(*listed) if listed else frozenset()

    async def run(self) -> None:
        """Asks again and again until cancelled."""
        while True:
            await self.ask()
            self._urgent_rounds = max(0, self._urgent_rounds - 1)
            pause = self.urgent_seconds if self._urgent_rounds else self.calm_seconds
            try:
                async with asyncio.timeout(pause):
                    await self.urged.wait()
            except TimeoutError:
                continue
            self.urged.clear()

    async def ask(self) -> None:
        """One round. A change in what routers know makes access due."""
        pods = [
            RouterPod(name=name, ip=copy.ip, port=self.port)
            for name, copy in sorted(self.copies.routers.objects.items())
            if copy.ready
        ]
        before, self.reports = self.reports, await self.reports_of.of_routers(pods)
        if _known(before) != _known(self.reports):
            self.add(ACCESS)
        self._tell_pools(asyncio.get_running_loop().time())
        for report in self.reports:
            if report.problem is not None:
                _log.debug("a router gives no report", extra={"fields": {"pod": report.pod, "error": report.problem}})

    def _tell_pools(self, now: float) -> None:
        """Makes those pools due whose plan was told something else.

        A table that is on its way, or another number of routers, is told only after a while: both happen to every pool at once, and
        pass within a second at each change of any pool.
        """
        summary = _summary(self._view())
        if self._current is None or self._current[0] != summary:
            self._current = (summary, now)
        lasted = now - self._current[1] >= self.calm_seconds
        for pool, shown in self._shown.items():
            passing = summary.state is _State.SYNCING or summary.state is shown.state
            if shown != summary and (lasted or not passing):
                self.add(pool_key(pool))


class _State(Enum):
    """What routers can be, as far as a condition tells it."""

    NONE = auto()
    SILENT = auto()
    SYNCING = auto()
    SYNCED = auto()


@dataclass(frozen=True, slots=True)
class _Summary:
    """What a pool's conditions are made from."""

    state: _State
    routers: int
    answering: int


def _summary(view: RouterView) -> _Summary:
    state = _State.SYNCED
    if not view.routers:
        state = _State.NONE
    elif not view.answering:
        state = _State.SILENT
    elif view.synced < view.answering:
        state = _State.SYNCING
    return _Summary(state, view.routers, view.answering)


def _known(reports: tuple[RouterReport, ...]) -> list[tuple[str, bool, str | None, Mapping[str, str], list[str]]]:
    """What statuses are made from: not the figures that change all the time."""
    return [(r.pod, r.answered, r.table, r.keyrings, sorted(r.draining)) for r in reports]
