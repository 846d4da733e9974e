"""The way of an ordinary request, end to end over real sockets."""

import json
import time

from hlserve_router.testing.documents import AGENT_KEY, INTERACTIVE_KEY, a_class, a_pool, a_table
from hlserve_router.testing.engine import ScriptedEngine
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import COMPLETION, DONE, ORDINARY, STOP, delta
from hlserve_router.testing.stage import Stage

NS = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
BODY = {**NS, "stream": True}


async def two_pools(stage: Stage) -> tuple[RunningRouter, ScriptedEngine, ScriptedEngine]:
    chat, agents = await stage.engine(ORDINARY), await stage.engine(ORDINARY)
    router = await stage.router(
        a_table(
            a_pool("chat", chat.url), a_pool("agents", agents.url), a_class("interactive", "chat"),
            a_class("agent", "agents"), a_class("batch", "agents"),
        )
    )  # fmt: skip
    return router, chat, agents


async def test_an_answer_passes_byte_for_byte_with_the_routers_headers(stage: Stage) -> None:
    router, _, agents = await two_pools(stage)
    answer = await router.post("/v1/chat/completions", NS)
    assert (answer.status_code, answer.content) == (200, COMPLETION)
    assert answer.headers["x-hlserve-class"] == "agent"
    assert answer.headers["x-hlserve-pool"] == "agents"
    assert answer.headers["x-request-id"] == answer.headers["request-id"]
    assert "x-hlserve-outcome" not in answer.headers
    assert json.loads(agents.requests[0].body) == NS


async def test_a_stream_passes_byte_for_byte_but_for_the_usage_chunk(stage: Stage) -> None:
    router, _, _ = await two_pools(stage)
    answer = await router.post("/v1/chat/completions", BODY, INTERACTIVE_KEY)
    assert answer.content == delta("Hel") + delta("lo") + STOP + DONE
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-hlserve-pool"] == "chat"
    assert router.count("hlserve_router_input_tokens_total", "interactive", "chat") == 5
    assert router.count("hlserve_router_output_tokens_total", "interactive", "chat") == 2


async def test_connections_to_engines_are_reused(stage: Stage) -> None:
    router, _, agents = await two_pools(stage)
    for index in range(20):
        answer = await router.post("/v1/chat/completions", BODY if index % 2 else NS, AGENT_KEY)
        assert answer.status_code == 200
    opened = [endpoint.link.opened for endpoint in router.router.proxy.pools.endpoints() if endpoint.pool == "agents"]
    assert opened == [1]
    assert len(agents.requests) == 20


async def test_no_answer_waits_for_an_acknowledgement(stage: Stage) -> None:
    router, _, _ = await two_pools(stage)
    took = []
    for _ in range(20):
        before = time.perf_counter()
        await router.post("/v1/chat/completions", NS)
        took.append(time.perf_counter() - before)
    assert min(took[1:]) < 0.035, "40 ms is TCP's delayed acknowledgement: Nagle's algorithm is on"
