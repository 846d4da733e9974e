"""The engine's operation over HTTP: health, readiness, drain, server information, loads, aborts, metrics."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hlserve_sim.access import admin
from hlserve_sim.answers import errors_flat, json_answer, read_fields
from hlserve_sim.engine_setup import caps_as_dict
from hlserve_sim.errors import ApiError
from hlserve_sim.faults import FaultKind
from hlserve_sim.server import Phase, Server

SGLANG_VERSION = "0.5.23"
_ABORTS = frozenset({FaultKind.IGNORE_ABORT})
_PREFIX_ABORTS = frozenset({FaultKind.PREFIX_ABORT})
_STALE = frozenset({FaultKind.STALE_METRICS})


class Control:
    """Handlers of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stale_page: bytes | None = None

    def routes(self) -> list[Route]:
        """All routes of this module."""
        flags = self._server.flags
        guard = admin(flags)
        routes = [
            Route("/health", self.health),
            Route("/health_generate", self.health),
            Route("/ready", self.ready),
            Route("/hlserve/ready", self.ready),
            Route("/hlserve/drain", guard(self.drain), methods=["POST"]),
            Route("/server_info", self.server_info),
            Route("/get_server_info", self.server_info),
            Route("/model_info", self.model_info),
            Route("/get_model_info", self.model_info),
            Route("/v1/loads", self.loads),
            Route("/abort_request", guard(self.abort_request), methods=["POST"]),
            Route("/flush_cache", guard(self.flush_cache), methods=["GET", "POST"]),
        ]
        if flags.enable_metrics:
            routes.append(Route("/metrics", self.metrics))
        return routes

    async def health(self, request: Request) -> Response:
        """Liveness: 200 while the engine works, draining included; 503 once the process is ending, as SGLang does."""
        return Response(status_code=503 if self._server.phase is Phase.ENDING else 200)

    async def ready(self, request: Request) -> Response:
        """Readiness: 503 while draining or ending."""
        return Response(status_code=200 if self._server.phase is Phase.SERVING else 503)

    @errors_flat
    async def drain(self, request: Request) -> Response:
        """Turn readiness off (`{"drain": true}`) or on again; running requests go on either way."""
        body = await read_fields(request)
        wanted = body.raw.get("drain")
        if not isinstance(wanted, bool):
            raise ApiError('drain: send {"drain": true} or {"drain": false}', kind="Bad Request", param="drain")
        self._server.drain(wanted)
        gauges = self._server.driver.gauges()
        draining = self._server.phase is not Phase.SERVING
        return json_answer({"draining": draining, "running": gauges.running, "queued": gauges.queued})

    async def server_info(self, request: Request) -> Response:
        """Flags as resolved, the scheduler's caps and its state."""
        server = self._server
        config, gauges, totals = server.setup.config, server.driver.gauges(), server.driver.totals
        flags = asdict(server.flags)
        flags.update(api_key=None, admin_api_key=None)
        state: Mapping[str, object] = {
            "last_gen_throughput": server.generation_rate(),
            "memory_usage": {"token_capacity": config.pool_tokens},
            "num_running_reqs": gauges.running,
            "num_queue_reqs": gauges.queued,
            "token_usage": gauges.token_usage,
            "effective_max_running_requests_per_dp": config.max_running_requests,
        }
        return json_answer(
            {
                **flags,
                "tp_size": server.flags.tensor_parallel,
                "chunked_prefill_size": -1 if config.chunked_prefill_size is None else config.chunked_prefill_size,
                "mem_fraction_static": server.setup.memory_fraction,
                "max_total_num_tokens": config.pool_tokens,
                "max_req_input_len": min(config.context_length, config.pool_tokens) - 1,
                "status": "ready",
                "version": SGLANG_VERSION,
                "frontend": "python",
                "internal_states": [state],
                "basis": "simulated",
                "hlserve": {
                    "basis": "simulated",
                    "device": server.setup.cost.device.name,
                    "model_shape": server.setup.cost.shape.name,
                    "throughput_mode": config.throughput_mode,
                    "caps": caps_as_dict(server.setup.caps),
                    "flags_without_effect": server.flags.ignored,
                    "draining": server.phase is not Phase.SERVING,
                    "retractions": totals.retractions,
                    "stage": server.view.stage().value,
                    "queue": server.view.waiting().describe(),
                    "kv_admission": asdict(server.view.admission()),
                },
            }
        )

    async def model_info(self, request: Request) -> Response:
        """What SGLang tells about its model."""
        flags = self._server.flags
        return json_answer(
            {
                "model_path": flags.model_path,
                "served_model_name": flags.served_model_name,
                "tokenizer_path": flags.model_path,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "model_type": flags.model_shape,
                "basis": "simulated",
            }
        )

    async def loads(self, request: Request) -> Response:
        """Load of the one data-parallel rank there is."""
        server = self._server
        gauges, totals, config = server.driver.gauges(), server.driver.totals, server.setup.config
        load = {
            "dp_rank": 0,
            "num_running_reqs": gauges.running,
            "num_waiting_reqs": gauges.queued,
            "num_total_reqs": gauges.running + gauges.queued,
            "num_used_tokens": gauges.kv_used_tokens,
            "num_total_tokens": gauges.kv_used_tokens + gauges.pending_prefill_tokens,
            "max_total_num_tokens": config.pool_tokens,
            "max_running_requests": config.max_running_requests,
            "token_usage": gauges.token_usage,
            "gen_throughput": server.generation_rate(),
            "cache_hit_rate": totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else 0.0,
        }
        return json_answer(
            {
                "timestamp": datetime.now(UTC).isoformat(),
                "version": SGLANG_VERSION,
                "accelerator": server.setup.cost.device.name,
                "num_accelerators": server.flags.tensor_parallel,
                "loads": [load],
            }
        )

    @errors_flat
    async def abort_request(self, request: Request) -> Response:
        """End a request by its exact id. Always 200, known or not, as SGLang answers."""
        body = await read_fields(request)
        server = self._server
        rid = body.text("rid") or ""
        if server.faults.strike(request.url.path, _ABORTS) is not None:
            return Response(status_code=HTTPStatus.OK)
        if body.flag("abort_all"):
            server.abort_all()
        elif server.faults.strike(request.url.path, _PREFIX_ABORTS) is not None:
            server.abort(rid, by_prefix=True)
        elif rid:
            server.abort(rid, by_prefix=False)
        else:
            raise ApiError("rid: give the id of the request to end, or abort_all", kind="Bad Request", param="rid")
        return Response(status_code=HTTPStatus.OK)

    async def flush_cache(self, request: Request) -> Response:
        """Empty the prefix cache; refused while requests are here."""
        if self._server.driver.flush_cache():
            return PlainTextResponse("Cache flushed.\nPlease check backend logs for more details.\n")
        return PlainTextResponse(
            "Flush cache failed: requests are running or waiting.\n", status_code=HTTPStatus.BAD_REQUEST
        )

    async def metrics(self, request: Request) -> Response:
        """Prometheus page. Under the stale-metrics fault the page of the fault's first scrape is repeated."""
        if self._server.faults.strike(request.url.path, _STALE) is None:
            self._stale_page = None
            return Response(self._server.metrics_page(), media_type=CONTENT_TYPE_LATEST)
        if self._stale_page is None:
            self._stale_page = self._server.metrics_page()
        return Response(self._stale_page, media_type=CONTENT_TYPE_LATEST)
