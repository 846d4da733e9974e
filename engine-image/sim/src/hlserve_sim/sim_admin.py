"""The simulator's own routes: `/sim/faults` and `/sim/state`."""

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hlserve_sim import faults
from hlserve_sim.access import admin
from hlserve_sim.answers import errors_flat, json_answer, read_fields
from hlserve_sim.server import Server


class SimAdmin:
    """Handlers of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def routes(self) -> list[Route]:
        """All routes of this module."""
        guard = admin(self._server.flags)
        return [
            Route("/sim/faults", guard(self.faults), methods=["GET", "POST", "DELETE"]),
            Route("/sim/state", guard(self.state)),
        ]

    @errors_flat
    async def faults(self, request: Request) -> Response:
        """POST switches a fault on, DELETE all off; each answers what is on."""
        known = self._server.faults
        if request.method == "POST":
            known.add(faults.read(await read_fields(request)))
        elif request.method == "DELETE":
            known.clear()
        return json_answer({"faults": faults.describe(known.active())})

    async def state(self, request: Request) -> Response:
        """Clock and how late it was kept, totals, gauges, costs and what became of the requests, on the engine's own clock."""
        return json_answer(state(self._server))


def state(server: Server) -> dict[str, object]:
    """The state of a server as JSON builtins. Times are engine microseconds since the start."""
    driver = server.driver
    return {
        "basis": "simulated",
        "phase": server.phase.value,
        "now_us": driver.clock.now_us(),
        "engine_us": driver.engine_us,
        "lateness": asdict(driver.lateness),
        "time_scale": driver.clock.scale,
        "seed": server.flags.seed,
        "device": server.setup.cost.device.name,
        "model_shape": server.setup.cost.shape.name,
        "config": asdict(server.setup.config),
        "totals": asdict(driver.totals),
        "gauges": asdict(driver.gauges()),
        "vocabulary": server.vocabulary.size,
        "requests": [
            {
                **asdict(record),
                "ttft_us": None if record.first_token_us is None else record.first_token_us - record.arrived_us,
            }
            for record in server.records
        ],
    }
