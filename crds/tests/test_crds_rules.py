"""Each CEL rule refuses one mutation of a valid object, at its path, with its message; a rule without a mutation fails."""

from collections.abc import Callable, Iterator

import pytest

from hlserve_api.admission import Problem, Validator
from hlserve_api.generate.crd import object_schema
from hlserve_api.testing import changed
from hlserve_api.testing.rule_cases import (
    ACCEPTED,
    AGENTS,
    CHAT,
    CLASS,
    REFUSED,
    Accepted,
    Manifest,
    Refused,
    with_args,
)
from hlserve_api.v1alpha1 import KINDS
from hlserve_api.v1alpha1.pool_engine import OWNED_FLAGS


@pytest.fixture(scope="module")
def validator() -> Validator:
    return Validator()


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.id)
def test_rule_refuses_its_mutation_alone(validator: Validator, case: Refused) -> None:
    problems = validator.validate(case.given, case.old)
    assert [problem.path for problem in problems] == [case.want_path], problems
    assert case.want_message in problems[0].message


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.id)
def test_rules_accept_what_is_right(validator: Validator, case: Accepted) -> None:
    assert validator.validate(case.given, case.old) == []


def _all_messages(schema: Manifest) -> Iterator[str]:
    yield from (rule["message"] for rule in schema.get("x-kubernetes-validations", ()))
    for child in (*schema.get("properties", {}).values(), *(schema[key] for key in ("items",) if key in schema)):
        yield from _all_messages(child)


def test_every_rule_has_a_mutation(validator: Validator) -> None:
    declared = {message for kind in KINDS for message in _all_messages(object_schema(kind))}
    seen = {problem.message for case in REFUSED for problem in validator.validate(case.given, case.old)}
    assert declared == seen


def _spellings() -> Iterator[tuple[str, ...]]:
    for flag in OWNED_FLAGS:
        yield (flag, "x")
        yield (f"{flag}=x",)
        yield (flag[:-1], "x")
        yield (f"{flag[:-1]}=x",)
        yield (f"--{flag[2:].replace('-', '_')}=x",)


@pytest.mark.parametrize(
    "arguments", [*_spellings(), ("--",), ("--max-run", "4"), ("--ten=8",), ("--dtype", "bf16", "--tp=2")], ids=" ".join
)
def test_extra_args_refuse_owned_flags_in_every_spelling(validator: Validator, arguments: tuple[str, ...]) -> None:
    problems = validator.validate(with_args(*arguments))
    assert [problem.path for problem in problems] == ["spec.engine.extraArgs"]


@pytest.mark.parametrize(
    "flag",
    ["host", "port", "model-path", "served-model-name", "tp", "tp-size", "tensor-parallel-size", "pp", "nnodes", "node-rank",
     "max-running-requests", "max-queued-requests", "chunked-prefill-size", "max-prefill-tokens", "enable-mixed-chunk", "schedule-policy",
     "enable-throughput-mode", "throughput-memfloor", "enable-metrics", "enable-priority-scheduling",
     "stream-response-default-include-usage", "config"],
)  # fmt: skip
def test_extra_args_refuse_each_flag_that_the_operator_owns(validator: Validator, flag: str) -> None:
    assert validator.validate(with_args(f"--{flag}", "1")) != []


@pytest.mark.parametrize(
    "without_optionals",
    [
        lambda: changed(AGENTS, "spec.engine", {}),
        lambda: changed(AGENTS, "spec.autoscaling", {"maxReplicas": 1}),
        lambda: changed(CLASS, "spec.spill", {}),
        lambda: changed(CLASS, "spec.share", {}),
        lambda: changed(CHAT, "spec.parallelism", {}),
        lambda: changed(CHAT, "spec.model.cache", {}),
    ],
)
def test_rules_hold_when_optional_fields_are_absent(
    validator: Validator, without_optionals: Callable[[], Manifest]
) -> None:
    assert validator.validate(without_optionals()) == []


def test_problem_reads_as_one_line() -> None:
    assert str(Problem("spec.mode", "is wrong")) == "spec.mode: is wrong"
    assert str(Problem("", "is wrong")) == "is wrong"
