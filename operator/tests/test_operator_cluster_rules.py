"""Every rule of the definitions on a real API server: what it refuses, with which words, and what it accepts. The table is that of our
own checker, so the two can never differ unnoticed."""

from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest

from hlserve_api.testing import a_client_key, an_interactive_pool, changed
from hlserve_api.testing.rule_cases import ACCEPTED, CHAT, REFUSED, Refused
from hlserve_operator.refs import Ref
from hlserve_operator.testing.real import Namespace, RefusedError

pytestmark = pytest.mark.cluster
_NUMBERS = count()


async def given(namespace: Namespace, manifest: Mapping[str, Any], old: Mapping[str, Any] | None) -> None:
    """Creates an object, or puts it in the place of an old one. Raises RefusedError."""
    if old is None:
        await namespace.create(dict(manifest), dryRun="All")
        return
    name = f"old-{next(_NUMBERS)}"
    before = await namespace.create({**old, "metadata": {"name": name}})
    await namespace.replace({**manifest, "metadata": before["metadata"]})


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.id)
async def test_operator_cluster_rule_refuses_its_mutation_with_its_words(namespace: Namespace, case: Refused) -> None:
    with pytest.raises(RefusedError) as refused:
        await given(namespace, case.given, case.old)
    assert refused.value.status == 422
    assert case.want_message in str(refused.value)
    assert f"{case.want_path}: " in str(refused.value)


async def test_operator_cluster_rules_accept_what_is_right(namespace: Namespace) -> None:
    for case in ACCEPTED:
        try:
            await given(namespace, case.given, case.old)
        except RefusedError as error:
            pytest.fail(f"{case.id}: {error}")


MISTAKES: Mapping[str, tuple[dict[str, Any], str]] = {
    "an unknown field": (changed(CHAT, "spec.replica", 2), 'unknown field "spec.replica"'),
    "an unknown field of an item": (changed(a_client_key(), "spec.credentials.0.key", "x"), 'unknown field "spec.credentials[0].key"'),
    "a word that is none": (changed(CHAT, "spec.mode", "Fast"), 'supported values: "Interactive", "HumanLess"'),
    "a number as text": (changed(CHAT, "spec.replicas", "two"), 'spec.replicas in body must be of type integer: "string"'),
    "a huge list": (changed(CHAT, "spec.engine.extraArgs", ["--a"] * 10_000), "must have at most"),
    "a huge object": (changed(CHAT, "metadata.annotations", {"a": "x" * 300_000}), "Too long: may not be more than 262144 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_operator_cluster_mistake_is_refused_with_words_that_help(namespace: Namespace, mistake: str) -> None:
    manifest, want = MISTAKES[mistake]
    with pytest.raises(RefusedError) as refused:
        await namespace.create(manifest)
    assert want in str(refused.value)


async def test_operator_cluster_refused_edit_leaves_the_object_as_it_was(namespace: Namespace) -> None:
    stored = await namespace.create(an_interactive_pool())
    ref = Ref.of(stored)
    with pytest.raises(RefusedError, match="must start with hf://"):
        await namespace.patch(ref, {"spec": {"model": {"source": {"uri": "s3://a/b"}}}})
    assert await namespace.get(ref) == stored


async def test_operator_cluster_cost_of_the_rules_is_within_the_budget(
    namespace: Namespace, definitions: list[dict[str, Any]]
) -> None:
    """The server refuses a definition whose rules could cost too much; and its non-structural findings stand in its status."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for manifest in definitions:
        found = await namespace.server.call("GET", f"{path}/{manifest['metadata']['name']}")
        conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
        assert conditions["Established"] == "True"
        assert conditions.get("NonStructuralSchema", "False") == "False"
        rules = str(manifest["spec"]["versions"][0]["schema"]).count("x-kubernetes-validations")
        stored = str(found["spec"]["versions"][0]["schema"]).count("x-kubernetes-validations")
        assert rules == stored > 0
