"""schemathesis makes up requests from the published API and checks every answer against it."""

import pytest

from hlserve_router import openapi
from hlserve_router.testing.clients.running import run
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_pool, a_table
from hlserve_router.testing.scripts import ORDINARY
from hlserve_router.testing.stage import Stage

pytestmark = [pytest.mark.clients, pytest.mark.timeout(400)]

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "unsupported_method", "allow_header_conformance", "ignored_auth",
)  # fmt: skip
"""Not among them: that every body out of the described is rejected. What engines make of a body is theirs to say."""


async def test_every_answer_is_as_described(stage: Stage, pytestconfig: pytest.Config) -> None:
    engine = await stage.engine(ORDINARY)
    table = a_table(a_pool("agents", engine.url), a_class("agent", "agents"))
    router = await stage.router(table, probe_seconds=5)
    status, output, errors = await run(
        pytestconfig.rootpath, "schemathesis", "schemathesis", "run", router.url + openapi.PATH,
        "--header", f"Authorization: Bearer {AGENT_KEY}", "--checks", ",".join(CHECKS), "--continue-on-failure",
        "--phases", "coverage,fuzzing", "--max-examples", "8", "--generation-deterministic", "--request-timeout", "60",
        "--no-color", timeout_seconds=300, SCHEMATHESIS_HOOKS="hlserve_router.testing.clients.schemathesis_hooks",
    )  # fmt: skip
    assert status == 0, output[-8000:] + errors[-2000:]
    assert len(engine.requests) >= 20
    assert router.count("hlserve_router_internal_errors_total") == 0
