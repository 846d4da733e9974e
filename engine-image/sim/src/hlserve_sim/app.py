"""The ASGI application: which path is served by what."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from hlserve_sim.access import KeyCheck
from hlserve_sim.answers import json_answer
from hlserve_sim.apis.base import Context
from hlserve_sim.apis.chat import ChatApi
from hlserve_sim.apis.completions import CompletionsApi
from hlserve_sim.apis.generate import GenerateApi
from hlserve_sim.apis.messages import MessagesApi
from hlserve_sim.apis.responses import ResponsesApi
from hlserve_sim.catalogue import Catalogue
from hlserve_sim.control import Control
from hlserve_sim.embeddings import EmbeddingsEndpoint
from hlserve_sim.endpoint import GenerationEndpoint
from hlserve_sim.responses_endpoint import ResponsesEndpoint, StoredResponseEndpoint
from hlserve_sim.server import Server
from hlserve_sim.sim_admin import SimAdmin


def build(server: Server) -> ASGIApp:
    """The application of one server. Generation routes come first: they are matched in order."""
    flags = server.flags
    context = Context(
        served_model_name=flags.served_model_name,
        context_length=server.setup.config.context_length,
        cache_report=flags.enable_cache_report,
    )
    responses = ResponsesApi(context, server.store, flags.enable_response_store)
    routes = [
        Route("/v1/chat/completions", GenerationEndpoint(server, ChatApi(context)), methods=["POST"]),
        Route("/v1/completions", GenerationEndpoint(server, CompletionsApi(context)), methods=["POST"]),
        Route("/v1/messages", GenerationEndpoint(server, MessagesApi(context)), methods=["POST"]),
        Route("/generate", GenerationEndpoint(server, GenerateApi(context)), methods=["POST", "PUT"]),
        Route("/v1/responses", ResponsesEndpoint(server, responses), methods=["POST"]),
        Route("/v1/responses/{response_id}", StoredResponseEndpoint(server, cancels=False), methods=["GET"]),
        Route("/v1/responses/{response_id}/cancel", StoredResponseEndpoint(server, cancels=True), methods=["POST"]),
        Route("/v1/embeddings", EmbeddingsEndpoint(server), methods=["POST"]),
        *Control(server).routes(),
        *Catalogue(server).routes(),
        *SimAdmin(server).routes(),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _no_route, 405: _no_method})
    return KeyCheck(app, flags) if flags.api_key is not None else app


async def _no_route(request: Request, error: Exception) -> Response:
    return json_answer({"detail": "Not Found"}, 404)


async def _no_method(request: Request, error: Exception) -> Response:
    return json_answer({"detail": "Method Not Allowed"}, 405)
