"""What pools are told of routers, and when: a change that matters at once, one that passes by itself not at all."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from hlserve_operator.board import Board
from hlserve_operator.copies import RouterCopy, copies
from hlserve_operator.keys import Key, pool_key
from hlserve_operator.reports import Reports
from hlserve_operator.testing.api_server import api_of, simulated
from hlserve_operator.watching import Rhythm

CALM_SECONDS = 3600.0
CHAT = pool_key("chat")


@dataclass(slots=True, eq=False)
class World:
    """Routers that all answer alike, and a board that asks them."""

    table: str | None = "g1"
    """Generation of the routing table that the routers have; None: they do not answer."""
    port: int = 0
    due: list[Key] = field(default_factory=list)
    board: Board | None = None

    async def report(self, _: web.Request) -> web.Response:
        if self.table is None:
            return web.Response(status=500)
        return web.json_response({"generations": {"table": self.table}})

    async def round(self) -> bool:
        """One round. Whether the pool became due by it; it then looks."""
        assert self.board is not None
        self.due.clear()
        await self.board.ask()
        if told := CHAT in self.due:
            self.board.view("chat")
        return told

    def stored(self, generation: str) -> None:
        """Another table is stored."""
        assert self.board is not None
        self.board.saw_table(json.dumps({"generation": generation}))

    def routers(self, *names: str) -> None:
        """These router pods are ready."""
        assert self.board is not None
        kept = self.board.copies.routers.objects
        kept.clear()
        kept.update({name: RouterCopy("127.0.0.1", ready=True) for name in names})


@asynccontextmanager
async def a_world(calm_seconds: float = CALM_SECONDS) -> AsyncIterator[World]:
    world = World()
    application = web.Application()
    application.router.add_get("/v1/report", world.report)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    world.port = runner.addresses[0][1]
    reports = Reports()
    async with simulated() as server, api_of(server) as api:
        kept = copies(api, "hlserve", world.due.append, lambda *_: (), Rhythm())
        world.board = Board(kept, reports, world.due.append, world.port, calm_seconds, 1.0)
        world.stored("g1")
        world.board.view("chat")
        try:
            yield world
        finally:
            await reports.close()
            await runner.cleanup()


async def test_operator_pool_hears_at_once_when_routers_come_know_the_table_fall_silent_and_go() -> None:
    async with a_world() as world:
        assert not await world.round(), "it knows that there is none"
        world.routers("a")
        assert await world.round(), "it is there and knows the table"
        assert not await world.round()
        world.table = None
        assert await world.round(), "it is silent"
        world.table = "g1"
        assert await world.round()
        world.routers()
        assert await world.round(), "it is gone"


async def test_operator_pool_does_not_hear_of_a_table_that_is_on_its_way() -> None:
    async with a_world() as world:
        world.routers("a")
        await world.round()
        world.stored("g2")
        assert not await world.round(), "that is told to no pool of five hundred"
        assert not await world.round()
        world.table = "g2"
        assert not await world.round()


async def test_operator_pool_that_saw_a_table_on_its_way_hears_when_it_has_come() -> None:
    async with a_world() as world:
        world.routers("a")
        await world.round()
        world.stored("g2")
        await world.round()
        assert world.board is not None
        world.board.view("chat")
        assert not await world.round()
        world.table = "g2"
        assert await world.round()


async def test_operator_pool_hears_of_what_lasts() -> None:
    async with a_world(calm_seconds=0.0) as world:
        world.routers("a")
        await world.round()
        world.stored("g2")
        assert await world.round(), "a router that does not take the table"
        world.table = "g2"
        assert await world.round()
        world.routers("a", "b")
        assert await world.round(), "another number of routers"


async def test_operator_pool_that_is_gone_is_not_due_any_more() -> None:
    async with a_world() as world:
        assert world.board is not None
        world.board.forget("chat")
        world.routers("a")
        assert not await world.round()
