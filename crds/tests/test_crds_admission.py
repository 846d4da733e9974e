"""The validator says what the API server would: unknown fields, defaults, values, list keys, in sentences with paths."""

from typing import Any

import pytest

from hlserve_api.admission import Validator
from hlserve_api.admission.rules import RuleChecker, RuleError
from hlserve_api.testing import a_client_key, a_human_less_pool, a_workload_class, an_interactive_pool, changed, without

Manifest = dict[str, Any]
CHAT, AGENTS, CLASS, KEY = an_interactive_pool(), a_human_less_pool(), a_workload_class(), a_client_key()
TARGET = CLASS["spec"]["targets"][0]


@pytest.fixture(scope="module")
def validator() -> Validator:
    return Validator()


@pytest.mark.parametrize(
    ("given", "want"),
    [
        pytest.param(changed(CHAT, "spec.mdoe", "x"), "spec.mdoe: unknown field mdoe: did you mean mode?", id="a typo"),
        pytest.param(
            changed(CHAT, "spec.slo.zzz", 1),
            "spec.slo.zzz: unknown field zzz: remove it; known here are",
            id="no such field",
        ),
        pytest.param(
            changed(CHAT, "metadata.labls", {}),
            "metadata.labls: unknown field labls: did you mean labels?",
            id="in metadata",
        ),
        pytest.param(
            changed(CLASS, "spec.targets.0.pool", "chat"),
            "spec.targets[0].pool: unknown field pool: did you mean poolRef?",
            id="in a list",
        ),
        pytest.param(
            changed(CHAT, "spec.mode", "interactive"),
            "spec.mode: must be one of Interactive, HumanLess",
            id="not in the enum",
        ),
        pytest.param(
            changed(CHAT, "spec.slo.percentile", 94),
            "spec.slo.percentile: must be one of 50, 90, 95, 99",
            id="a percentile",
        ),
        pytest.param(
            changed(CHAT, "spec.replicas", "2"), "spec.replicas: must be an integer, not a string", id="a quoted number"
        ),
        pytest.param(
            changed(CHAT, "spec.replicas", 1.5), "spec.replicas: must be an integer, not 1.5", id="a fraction"
        ),
        pytest.param(changed(CHAT, "spec.replicas", None), "spec.replicas: must be an integer, not null", id="null"),
        pytest.param(
            changed(CHAT, "spec.replicas", True), "spec.replicas: must be an integer, not a boolean", id="a boolean"
        ),
        pytest.param(changed(CHAT, "spec.replicas", -1), "spec.replicas: must be at least 0", id="too small"),
        pytest.param(
            changed(CHAT, "spec.parallelism.tensor", 65), "spec.parallelism.tensor: must be at most 64", id="too large"
        ),
        pytest.param(changed(CHAT, "spec.model.name", ""), "spec.model.name: must not be empty", id="empty"),
        pytest.param(
            changed(CHAT, "spec.model.name", "x" * 129),
            "spec.model.name: must have at most 128 characters",
            id="too long",
        ),
        pytest.param(
            changed(CHAT, "spec.engine.extraArgs", ["x"] * 65),
            "spec.engine.extraArgs: must have at most 64 items",
            id="a long list",
        ),
        pytest.param(changed(CLASS, "spec.targets", []), "spec.targets: must have at least 1 item", id="an empty list"),
        pytest.param(without(CHAT, "spec.model"), "spec.model: is required: add it", id="a missing field"),
        pytest.param(without(CHAT, "spec"), "spec: is required: add it", id="no spec"),
        pytest.param(without(CHAT, "metadata.name"), "metadata.name: is required: add it", id="no name"),
        pytest.param(
            changed(KEY, "metadata.name", "Crawler"), "metadata.name: 'Crawler' does not match", id="a name in capitals"
        ),
        pytest.param(
            changed(KEY, "metadata.name", "crawler\n"),
            "metadata.name: 'crawler\\n' does not match",
            id="a newline at the end",
        ),
        pytest.param(
            changed(CHAT, "metadata.labels", {"a": 1}),
            "metadata.labels.a: must be a string, not an integer",
            id="a label of 1",
        ),
        pytest.param(
            changed(CLASS, "spec.targets", [TARGET, TARGET]),
            "spec.targets[1]: duplicate name 'main'",
            id="a name twice",
        ),
        pytest.param(
            changed(CHAT, "spec.model.aliases", ["a", "a"]), "spec.model.aliases[1]: duplicate 'a'", id="an alias twice"
        ),
        pytest.param(
            changed(KEY, "spec.credentials.0.notAfter", "2027-01-31"),
            "spec.credentials[0].notAfter: '2027-01-31' is not a time",
            id="a date",
        ),
        pytest.param(
            changed(KEY, "spec.credentials.0.notAfter", "2027-13-31T00:00:00Z"),
            "is not a time: write it like",
            id="a thirteenth month",
        ),
        pytest.param(
            changed(CHAT, "spec.resources.cpu", 1.5),
            "spec.resources.cpu: must be an integer or a string",
            id="a float quantity",
        ),
        pytest.param(
            changed(CHAT, "spec.resources.memory", "64 GB"),
            "spec.resources.memory: '64 GB' does not match",
            id="no quantity",
        ),
        pytest.param(
            changed(CHAT, "apiVersion", "v1"), "apiVersion: must be serving.hlserve.io/v1alpha1", id="another version"
        ),
        pytest.param(changed(CHAT, "kind", "Pool"), "kind: unknown kind Pool", id="another kind"),
    ],
)
def test_says_what_is_wrong_and_where(validator: Validator, given: Manifest, want: str) -> None:
    assert [str(problem) for problem in validator.validate(given) if want in str(problem)], validator.validate(given)


@pytest.mark.parametrize("cpu", [4, "4", "500m", "1.5"])
def test_quantities_are_numbers_or_text(validator: Validator, cpu: object) -> None:
    assert validator.validate(changed(CHAT, "spec.resources.cpu", cpu)) == []


def test_reports_every_problem_at_once(validator: Validator) -> None:
    broken = changed(changed(changed(CHAT, "spec.mode", "fast"), "spec.colour", "red"), "spec.replicas", -1)
    assert {problem.path for problem in validator.validate(broken)} == {"spec.mode", "spec.colour", "spec.replicas"}


def test_keeps_what_a_pod_patch_says(validator: Validator) -> None:
    patched = changed(CHAT, "spec.podPatch", {"spec": {"anything": [1, {"goes": None}]}})
    assert validator.validate(patched) == []
    assert validator.default(patched)["spec"]["podPatch"] == {"spec": {"anything": [1, {"goes": None}]}}


def test_fills_in_defaults_of_absent_objects_too(validator: Validator) -> None:
    spec = validator.default(AGENTS)["spec"]
    assert spec["parallelism"] == {"tensor": 1, "pipeline": 1, "nodes": 1}
    assert spec["traffic"] == {"inputTokensP95": 4096, "outputTokensP95": 1024, "maxOutputTokens": 8192}
    assert spec["model"]["cache"] == {"type": "EmptyDir"}
    assert "replicas" not in spec
    assert "throughput" not in spec
    assert (
        validator.default(changed(AGENTS, "spec.autoscaling", {"maxReplicas": 3}))["spec"]["autoscaling"]["minReplicas"]
        == 1
    )


def test_null_is_an_absent_field_where_a_default_is(validator: Validator) -> None:
    given = changed(AGENTS, "spec.parallelism", None)
    assert validator.default(given)["spec"]["parallelism"] == {"tensor": 1, "pipeline": 1, "nodes": 1}
    assert validator.validate(given) == []


def test_throughput_gets_no_defaults(validator: Validator) -> None:
    assert validator.default(changed(AGENTS, "spec.throughput", {}))["spec"]["throughput"] == {}


@pytest.mark.parametrize("manifest", [CHAT, AGENTS, CLASS, KEY], ids=lambda manifest: str(manifest["kind"]))
def test_defaulting_twice_changes_nothing_more_and_stays_valid(validator: Validator, manifest: Manifest) -> None:
    once = validator.default(manifest)
    assert validator.default(once) == once
    assert validator.validate(once) == []


def test_does_not_change_what_it_is_given(validator: Validator) -> None:
    given = an_interactive_pool()
    validator.validate(given)
    validator.default(given)
    assert given == an_interactive_pool()


def test_transition_rules_need_a_former_object(validator: Validator) -> None:
    renamed = changed(CHAT, "spec.model.name", "other")
    assert validator.validate(renamed) == []
    assert [problem.path for problem in validator.validate(renamed, old=CHAT)] == ["spec.model.name"]


GROWS = {"rule": "self >= oldSelf", "message": "must not shrink"}
ITEMS = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["id"],
    "items": {
        "type": "object",
        "properties": {
            "size": {
                "type": "integer",
                "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "must not shrink"}],
            }
        },
    },
}


def test_transition_rules_follow_list_items_by_key() -> None:
    former = [{"id": "a", "size": 5}, {"id": "b", "size": 1}]
    now = [{"id": "b", "size": 2}, {"id": "a", "size": 4}, {"id": "c", "size": 0}]
    assert [problem.path for problem in RuleChecker().problems(now, ITEMS, former)] == ["[1].size"]


@pytest.mark.parametrize("rule", ["self.x(", "self.absent > 1", "1 + 1"])
def test_a_broken_rule_is_an_error_of_its_own(rule: str) -> None:
    with pytest.raises(RuleError, match="the rule"):
        RuleChecker().holds(rule, {})
