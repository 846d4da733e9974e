"""`helm test`: the program of its pod, against a real router and engines, and what it says when something is missing."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from hlserve_cluster.charts import pods, render
from hlserve_local.stack import Stack
from hlserve_local.testing.manifests import AGENT_KEY, CHAT_KEY, MODEL

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEYS = {"test": {"keys": {"chat": {"secretName": "a"}, "agent": {"secretName": "b"}}}}


async def run(url: str, **environment: str) -> tuple[int, str]:
    """Run the pod's own command with this environment; exit status and output."""
    (container,) = dict(pods(render(KEYS)))["hlserve-test"]["containers"]
    _, *arguments = container["command"]
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, *arguments],
        env={"ROUTER_URL": url, "RELEASE": "hlserve", "WAIT_SECONDS": "0", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


async def test_chart_check_sends_both_calls_through_the_router(stack: Stack) -> None:
    status, output = await run(stack.base_url, CHAT_KEY=CHAT_KEY, AGENT_KEY=AGENT_KEY, AGENT_MODEL=MODEL)
    assert status == 0, output
    chat, agent = output.splitlines()
    assert chat.startswith(f"chat: answered by pool chat for class interactive, model {MODEL}")
    assert agent.startswith(f"agent: answered by pool agents for class agent, model {MODEL}")


async def test_chart_check_tells_why_a_call_failed(stack: Stack) -> None:
    status, output = await run(
        stack.base_url, CHAT_KEY="wrong-key-of-some-length", AGENT_KEY=AGENT_KEY, AGENT_MODEL="none"
    )
    assert status == 1
    chat, agent = output.splitlines()
    assert "chat: FAILED, the router answered 401: invalid_key" in chat
    assert "agent: FAILED, the router answered 404: model_not_found" in agent


async def test_chart_check_without_keys_says_what_to_set() -> None:
    status, output = await run("http://127.0.0.1:9", CHAT_KEY=CHAT_KEY)
    assert status == 1
    assert "There is no key for: agent." in output
    assert "--set test.keys.agent.secretName=SECRET" in output


async def test_chart_check_without_a_router_says_so() -> None:
    status, output = await run("http://127.0.0.1:9", CHAT_KEY=CHAT_KEY, AGENT_KEY=AGENT_KEY)
    assert status == 1
    assert "http://127.0.0.1:9 does not answer" in output


async def test_chart_check_needs_nothing_that_the_image_lacks() -> None:
    """Its text is a program of the standard library alone."""
    (container,) = dict(pods(render(KEYS)))["hlserve-test"]["containers"]
    program = container["command"][2]
    names = {line.split()[1].split(".")[0] for line in program.splitlines() if line.startswith(("import ", "from "))}
    assert names <= sys.stdlib_module_names
    assert Path(container["command"][0]).name == "python3"
