"""The API that the router publishes is the one that it serves."""

from typing import Any

import pytest

from hlserve_api.answers import ANSWERS, Reason
from hlserve_router import openapi
from hlserve_router.state import ROUTES
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_pool, a_table
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import ORDINARY
from hlserve_router.testing.stage import Stage

METHODS = ("get", "head", "post")


async def a_router(stage: Stage) -> RunningRouter:
    engine = await stage.engine(ORDINARY)
    return await stage.router(a_table(a_pool("agents", engine.url), a_class("agent", "agents")))


def operations() -> list[dict[str, Any]]:
    paths = openapi.document()["paths"]
    return [item[method] for item in paths.values() for method in METHODS if method in item]


async def test_the_document_needs_no_key(stage: Stage) -> None:
    router = await a_router(stage)
    answer = await router.http.get(router.url + openapi.PATH)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == openapi.document()
    head = await router.http.head(router.url + openapi.PATH)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(answer.content)))


def test_every_route_and_every_reason_is_described() -> None:
    document = openapi.document()
    assert set(ROUTES) < set(document["paths"])
    names = [operation["operationId"] for operation in operations()]
    assert len(names) == len(set(names))
    told: dict[str, set[Reason]] = {
        status: {reason for reason in Reason if f"`{reason}`" in response["description"]}
        for status, response in document["components"]["responses"].items()
    }
    assert set().union(*told.values()) == set(Reason) - {Reason.UNKNOWN_PATH, Reason.METHOD_NOT_ALLOWED}
    assert all(str(ANSWERS[reason].status) == status for status, reasons in told.items() for reason in reasons)
    for route in ROUTES:
        assert set(told) < set(document["paths"][route]["post"]["responses"])


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/models", "/v1/models/m1", "/healthz", "/readyz", openapi.PATH]
)
@pytest.mark.parametrize("method", ["DELETE", "OPTIONS", "PUT"])
async def test_another_method_is_told_which_one_the_path_takes(stage: Stage, path: str, method: str) -> None:
    router = await a_router(stage)
    answer = await router.http.request(method, router.url + path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == ("POST" if path in ROUTES else "GET, HEAD")
    assert answer.headers["x-hlserve-reason"] == "method_not_allowed"
    assert answer.headers["x-request-id"] == answer.headers["request-id"]
    assert answer.json()["error"]["code"] == "method_not_allowed"
    assert router.count("hlserve_router_requests_total") == 1


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m1", "/v1/models/nope", "/healthz", "/readyz"])
async def test_head_is_get_without_the_body(stage: Stage, path: str) -> None:
    router = await a_router(stage)
    headers = {"authorization": f"Bearer {AGENT_KEY}"}
    got = await router.http.get(router.url + path, headers=headers)
    head = await router.http.head(router.url + path, headers=headers)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type"] == got.headers["content-type"]


async def test_a_name_with_slashes_is_one_model(stage: Stage) -> None:
    engine = await stage.engine(ORDINARY)
    table = a_table(a_pool("agents", engine.url, model="org/model-8b"), a_class("agent", "agents"))
    router = await stage.router(table)
    headers = {"authorization": f"Bearer {AGENT_KEY}"}
    for path in ("/v1/models/org/model-8b", "/v1/models/org%2Fmodel-8b"):
        answer = await router.http.get(router.url + path, headers=headers)
        assert answer.json()["id"] == "org/model-8b"
