"""What the users of real clients see of a router: each SDK runs in its own environment, against both faces."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from hlserve_api.answers import Reason
from hlserve_router.testing.clients.conversations import CONVERSATIONS, difference, talk
from hlserve_router.testing.clients.expected import (
    LANGCHAIN,
    LITELLM,
    SDKS,
    Client,
    Outcome,
    expected,
    observed,
    reaches,
)
from hlserve_router.testing.clients.page import versions
from hlserve_router.testing.clients.record import Call
from hlserve_router.testing.clients.running import run_driver
from hlserve_router.testing.clients.situations import Api, Situations, situations
from hlserve_router.testing.running import Face

pytestmark = [pytest.mark.clients, pytest.mark.timeout(400)]


@pytest.fixture
async def refusing(tmp_path: Path, face: Face) -> AsyncIterator[Situations]:
    """Routers in which each reason is one call away."""
    async with AsyncExitStack() as stack:
        yield await situations(tmp_path, face, stack)


@pytest.mark.parametrize("client", SDKS, ids=lambda client: client.name)
async def test_each_reason_is_an_exception_that_says_what_to_do(
    refusing: Situations, client: Client, pytestconfig: pytest.Config
) -> None:
    output = await run_driver(pytestconfig.rootpath, client.name, client.driver, refusing.calls(client.api))
    assert output.versions[client.package] == versions(pytestconfig.rootpath)[client.name]
    seen = {report.id: observed(report) for report in output.reports}
    wanted: dict[str, Outcome] = {reason.value: expected(reason, client) for reason in Reason}
    wanted["late"] = expected(Reason.ENGINE_RESET, client, late=True)
    assert {name: (seen[name], wanted[name]) for name in wanted if seen[name] != wanted[name]} == {}
    tries = {reason: wanted[reason.value].tries + (reason is Reason.ENGINE_RESET) for reason in Reason}
    answered = {reason: refusing.answered(reason) for reason in Reason}
    assert answered == tries


@pytest.mark.parametrize("client", SDKS, ids=lambda client: client.name)
async def test_replies_good_and_broken(tmp_path: Path, face: Face, client: Client, pytestconfig: pytest.Config) -> None:
    async with AsyncExitStack() as stack:
        _, calls = await talk(tmp_path, face, stack, client.api)
        output = await run_driver(pytestconfig.rootpath, client.name, client.driver, calls)
    conversations = {conversation.id: conversation for conversation in CONVERSATIONS}
    found = {report.id: difference(conversations[report.id], client, report) for report in output.reports}
    assert {name: aspects for name, aspects in found.items() if aspects} == {}


OF_LANGCHAIN = frozenset(("whole", "stream", "usage stream", "tools", "tools stream", "responses stream", "embeddings"))


async def test_langchain_raises_its_own_exceptions_of_each_reason(
    refusing: Situations, pytestconfig: pytest.Config
) -> None:
    reached = {reason.value for reason in Reason if reaches(LANGCHAIN, reason)} | {"late"}
    possible = [call for call in refusing.calls(LANGCHAIN.api) if call.id in reached]
    output = await run_driver(pytestconfig.rootpath, LANGCHAIN.name, LANGCHAIN.driver, possible)
    seen = {report.id: observed(report) for report in output.reports}
    wanted: dict[str, Outcome] = {reason: expected(Reason(reason), LANGCHAIN) for reason in reached - {"late"}}
    wanted["late"] = expected(Reason.ENGINE_RESET, LANGCHAIN, late=True)
    assert {name: (seen[name], wanted[name]) for name in wanted if seen[name] != wanted[name]} == {}


async def test_langchain_gets_replies_good_and_broken(tmp_path: Path, face: Face, pytestconfig: pytest.Config) -> None:
    async with AsyncExitStack() as stack:
        _, calls = await talk(tmp_path, face, stack, LANGCHAIN.api)
        possible = [call for call in calls if call.operation in OF_LANGCHAIN]
        output = await run_driver(pytestconfig.rootpath, LANGCHAIN.name, LANGCHAIN.driver, possible)
    conversations = {conversation.id: conversation for conversation in CONVERSATIONS}
    found = {report.id: difference(conversations[report.id], LANGCHAIN, report) for report in output.reports}
    assert {name: aspects for name, aspects in found.items() if aspects} == {}


OF_LITELLM = frozenset(("whole", "stream", "tools", "tools stream"))


async def test_litellm_over_both_apis(
    refusing: Situations, tmp_path: Path, face: Face, pytestconfig: pytest.Config
) -> None:
    """In one run of its driver, as its import takes seconds."""
    calls: list[Call] = []
    async with AsyncExitStack() as stack:
        for client in LITELLM:
            folder = tmp_path / client.api
            folder.mkdir()
            _, talks = await talk(folder, face, stack, client.api)
            reached = {reason.value for reason in Reason if reaches(client, reason)} | {"late"}
            refused = [call for call in refusing.calls(client.api) if call.id in reached]
            made = [*refused, *(call for call in talks if call.operation in OF_LITELLM)]
            calls += [
                replace(call, id=client.provider + call.id, operation=client.provider + call.operation) for call in made
            ]
        # As in each part: first those whose limits fill up again within a minute.
        calls.sort(key=lambda call: call.id.rpartition("/")[2] not in {Reason.KEY_REQUESTS, Reason.KEY_TOKENS})
        output = await run_driver(pytestconfig.rootpath, LITELLM[0].name, LITELLM[0].driver, calls)
    assert len(output.reports) == len(calls)
    assert output.versions["litellm"] == versions(pytestconfig.rootpath)["litellm"]
    conversations = {conversation.id: conversation for conversation in CONVERSATIONS}
    found: dict[str, object] = {}
    for client in LITELLM:
        for report in output.reports:
            name = report.id.removeprefix(client.provider)
            if name == report.id:
                continue
            if name in conversations:
                found[report.id] = difference(conversations[name], client, report)
                continue
            reason = Reason.ENGINE_RESET if name == "late" else Reason(name)
            wanted = expected(reason, client, late=name == "late")
            raised = report.raised
            tells = raised is not None and (client.api is Api.OPENAI or reason.value in raised.message)
            seen = (raised and raised.name, report.tries, tells)
            if seen != (wanted.exception, wanted.tries, True):
                found[report.id] = (seen, wanted, raised)
    assert {name: aspects for name, aspects in found.items() if aspects} == {}
