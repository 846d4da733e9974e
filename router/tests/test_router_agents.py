"""Coding agents' own requests pass as they are, keep to their engine, and end as the agents expect."""

import pytest

from hlserve_router.testing.clients import replies
from hlserve_router.testing.clients.agents import CLAUDE_CODE, CLAUDE_CODE_COUNT, CODEX, AgentRequest
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_pool, a_table
from hlserve_router.testing.engine import Play
from hlserve_router.testing.scripts import reply, stream
from hlserve_router.testing.stage import Stage

REQUESTS = {
    "Claude Code": (CLAUDE_CODE, stream(*replies.MESSAGE_TOOLS_STREAM), b"".join(replies.MESSAGE_TOOLS_STREAM)),
    "Claude Code counts tokens": (CLAUDE_CODE_COUNT, reply(replies.TOKENS), replies.TOKENS),
    "Codex": (CODEX, stream(*replies.RESPONSE_TOOLS_STREAM), b"".join(replies.RESPONSE_TOOLS_STREAM)),
}


@pytest.mark.parametrize(("asked", "play", "answer"), REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("key_header", ["authorization", "x-api-key"])
async def test_an_agents_request_passes_whole_and_keeps_its_engine(
    stage: Stage, asked: AgentRequest, play: Play, answer: bytes, key_header: str
) -> None:
    engines = [await stage.engine(play) for _ in range(3)]
    router = await stage.router(
        a_table(a_pool("agents", *(engine.url for engine in engines)), a_class("agent", "agents"))
    )
    key = {key_header: AGENT_KEY if key_header == "x-api-key" else f"Bearer {AGENT_KEY}"}
    for _ in range(4):
        got = await router.http.post(router.url + asked.target, json=asked.body, headers={**asked.headers, **key})
        assert (got.status_code, got.content) == (200, answer), got.text
        assert got.headers["request-id"]
    used = [engine for engine in engines if engine.requests]
    assert len(used) == 1, "one session goes to one engine"
    received = used[0].requests[0]
    path, _, _ = asked.target.partition("?")
    assert received.path.partition("?")[0] == path
    sent = received.json
    assert {name: value for name, value in sent.items() if name in asked.body} == asked.body
    assert set(sent) - set(asked.body) <= {"request_id"}
    for name in ("anthropic-version", "anthropic-beta", "user-agent"):
        assert received.header(name) == asked.headers.get(name)
    for name in ("session_id", "conversation_id", "x-claude-code-session-id", "x-app", "originator", key_header):
        assert received.header(name) is None
    assert router.count("hlserve_router_requests_total") == 4
