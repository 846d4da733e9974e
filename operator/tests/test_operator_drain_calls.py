"""Drain calls as they are carried out: what an engine did not hear is said again, and what routers say of it counts."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from hlserve_api.v1alpha1 import ServingPool
from hlserve_operator.board import Board
from hlserve_operator.copies import RouterCopy, copies
from hlserve_operator.drift import Applied
from hlserve_operator.events import EventRecorder
from hlserve_operator.execute import Executor
from hlserve_operator.observe import PoolSnapshot
from hlserve_operator.pools.actions import DrainCall, PodMark, PoolActions
from hlserve_operator.pools.observed import PoolObserved
from hlserve_operator.refs import Ref
from hlserve_operator.render.metadata import DRAINING_ANNOTATION
from hlserve_operator.reported import RouterReport
from hlserve_operator.reports import EnginePod, Reports
from hlserve_operator.state import Release
from hlserve_operator.testing.api_server import Simulated, api_of, simulated
from hlserve_operator.testing.running import POOL, manifest
from hlserve_operator.watching import Rhythm

POD = Ref("v1", "Pod", "p")


@dataclass(slots=True, eq=False)
class Engine:
    """An engine's drain call: it answers as it is told to, and notes what it was asked for."""

    status: int = 200
    port: int = 0
    heard: list[bool] = field(default_factory=list)

    async def drain(self, request: web.Request) -> web.Response:
        """`POST /hlserve/drain`."""
        asked = json.loads(await request.read())["drain"]
        self.heard.append(asked)
        return web.json_response({"draining": asked, "running": 0, "queued": 0}, status=self.status)


@asynccontextmanager
async def an_engine() -> AsyncIterator[Engine]:
    engine = Engine()
    application = web.Application()
    application.router.add_post("/hlserve/drain", engine.drain)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.port = runner.addresses[0][1]
    try:
        yield engine
    finally:
        await runner.cleanup()


def a_marked_pod(server: Simulated) -> str:
    """Its UID."""
    marks = {DRAINING_ANNOTATION: "2026-01-01T00:00:00+00:00"}
    pod = server.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": marks}})
    return str(pod["metadata"]["uid"])


async def test_operator_engine_that_did_not_hear_that_it_may_serve_again_keeps_its_mark_until_it_has() -> None:
    async with simulated() as server, api_of(server) as api, an_engine() as engine:
        uid = a_marked_pod(server)
        reports = Reports()
        executor = Executor(api, Applied(), EventRecorder(api, "test"), reports, Release())
        look = PoolSnapshot(
            PoolObserved(pool=ServingPool.model_validate(manifest(POOL))),
            {uid: EnginePod(uid=uid, ip="127.0.0.1", port=engine.port)},
        )
        actions = PoolActions(
            drains=(DrainCall(pod="p", uid=uid, drain=False),),
            marks=(PodMark(pod="p", uid=uid, annotations={DRAINING_ANNOTATION: None}),),
        )
        engine.status = 503
        assert (await executor.pool(look, actions)).writes == 0
        assert DRAINING_ANNOTATION in server.objects[POD]["metadata"]["annotations"]
        engine.status = 200
        assert (await executor.pool(look, actions)).writes == 1
        assert not server.objects[POD]["metadata"].get("annotations")
        assert engine.heard == [False, False]
        await reports.close()


def a_report(pod: str, *draining: str) -> RouterReport:
    return RouterReport(pod=pod, draining=dict.fromkeys(draining, 0))


SILENT = RouterReport(pod="b", problem="no answer in time")


@pytest.mark.parametrize(
    ("routers", "reports", "want"),
    [
        pytest.param(
            ["a", "b"], [a_report("a", "x", "y"), a_report("b", "x")], {"x"}, id="every router leaves it alone"
        ),
        pytest.param(["a", "b"], [a_report("a", "x"), SILENT], set(), id="one router does not answer"),
        pytest.param(["a", "b"], [a_report("a", "x")], set(), id="one router was not asked"),
        pytest.param([], [], set(), id="no router"),
    ],
)
async def test_operator_pod_is_left_alone_when_every_router_said_so(
    routers: list[str], reports: list[RouterReport], want: set[str]
) -> None:
    async with simulated() as server, api_of(server) as api:
        kept = copies(api, "hlserve", lambda _: None, lambda *_: (), Rhythm())
        kept.routers.objects.update({name: RouterCopy("127.0.0.1", ready=True) for name in routers})
        board = Board(kept, Reports(), lambda _: None, 9090, 10.0, 1.0)
        board.reports = tuple(reports)
        assert board.view("chat").acknowledged == want
