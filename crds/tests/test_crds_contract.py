"""Nothing public is left unsaid: fields, answers, outcomes, conditions and metrics all carry their meaning."""

import inspect
import re
from enum import StrEnum

import pytest
from pydantic import BaseModel

from hlserve_api import answers, conditions, headers, metrics, routing, v1alpha1
from hlserve_api.answers import (
    ANSWERS,
    ANTHROPIC_ERROR_TYPES,
    OPENAI_ERROR_TYPES,
    OUTCOME_MEANINGS,
    REASON_MEANINGS,
    Outcome,
    Reason,
)
from hlserve_api.compile import KeyProblemReason, TargetProblemReason
from hlserve_api.conditions import CONDITIONS, ConditionReason, ConditionType, reasons_of
from hlserve_api.metrics import METRICS, Metric, MetricType, metric
from hlserve_api.routing import Document, Intent
from hlserve_api.v1alpha1.meta import ConditionStatus, Node


def _subclasses(base: type[BaseModel]) -> set[type[BaseModel]]:
    direct = set(base.__subclasses__())
    return direct.union(*(_subclasses(child) for child in direct))


PUBLIC_MODELS = sorted(
    (model for base in (Node, Document) for model in _subclasses(base) if model.__module__.startswith("hlserve_api.")),
    key=lambda model: model.__qualname__,
)


def test_walk_finds_the_models() -> None:
    assert {
        v1alpha1.ServingPool,
        v1alpha1.WorkloadClass,
        v1alpha1.ClientKey,
        routing.RoutingTable,
        routing.Keyring,
    } <= set(PUBLIC_MODELS)


@pytest.mark.parametrize("model", PUBLIC_MODELS, ids=lambda model: model.__qualname__)
def test_every_public_field_has_a_description(model: type[BaseModel]) -> None:
    assert (model.__doc__ or "").strip()
    assert [name for name, field in model.model_fields.items() if not (field.description or "").strip()] == []


@pytest.mark.parametrize(
    "model", [model for model in PUBLIC_MODELS if issubclass(model, Document)], ids=lambda model: model.__qualname__
)
def test_every_number_of_a_document_has_a_lower_bound(model: type[BaseModel]) -> None:
    """A file that is written by hand reaches the router without the API server's checks."""
    properties = model.model_json_schema()["properties"]
    shapes = {name: [shape, *shape.get("anyOf", ())] for name, shape in properties.items() if name != "priority"}
    numbers = {name: part for name, parts in shapes.items() for part in parts if part.get("type") == "integer"}
    assert [name for name, part in numbers.items() if "minimum" not in part] == []


@pytest.mark.parametrize("model", PUBLIC_MODELS, ids=lambda model: model.__qualname__)
def test_names_on_the_wire_are_camel_case_and_say_their_unit(model: type[BaseModel]) -> None:
    names = [field.alias or name for name, field in model.model_fields.items()]
    assert [name for name in names if not re.fullmatch(r"[a-z][A-Za-z0-9]*", name)] == []
    assert [
        name
        for name in names
        if re.search(r"(timeout|Timeout|ttl|Ttl|wait|Wait|Ms|Secs)$", name) and name != "onTimeout"
    ] == []


@pytest.mark.parametrize(
    "module", [answers, conditions, headers, metrics, routing, v1alpha1.meta], ids=lambda module: module.__name__
)
def test_every_enum_says_what_it_is(module: object) -> None:
    enums = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, StrEnum) and member is not StrEnum
    ]
    assert [enum.__name__ for enum in enums if not (enum.__doc__ or "").strip()] == []


def test_every_reason_has_an_answer_and_a_meaning() -> None:
    assert set(ANSWERS) == set(REASON_MEANINGS) == set(Reason)
    assert all(text.endswith(".") for text in REASON_MEANINGS.values())


def test_every_outcome_has_a_meaning() -> None:
    assert set(OUTCOME_MEANINGS) == set(Outcome)


def test_every_status_has_an_error_type_in_both_shapes() -> None:
    statuses = {answer.status for answer in ANSWERS.values()}
    assert set(OPENAI_ERROR_TYPES) == set(ANTHROPIC_ERROR_TYPES) == statuses


@pytest.mark.parametrize("reason", Reason)
def test_retry_advice_follows_the_status(reason: Reason) -> None:
    answer = ANSWERS[reason]
    assert answer.retry_after == (answer.status in (429, 503))
    assert answer.no_retry == (answer.status == 504 or reason is Reason.BUDGET_EXHAUSTED)


def test_every_header_is_documented_and_no_other() -> None:
    """A name that ends in a hyphen begins several headers."""
    documented = {name for doc in headers.HEADERS for name in doc.names}
    names = {value for name, value in vars(headers).items() if name.isupper() and isinstance(value, str)}
    prefixes = {name for name in names if name.endswith("-")}
    begun = {name for name in documented if name.startswith(tuple(prefixes))}
    assert {prefix for prefix in prefixes if any(name.startswith(prefix) for name in begun)} == prefixes
    agents = {*headers.KNOWN_SESSION_HEADERS, *headers.KNOWN_SUBAGENT_HEADERS}
    assert (names - prefixes) | agents == documented - begun


def test_intents_rank_from_urgent_to_patient() -> None:
    assert [intent.rank for intent in (Intent.INTERACTIVE, Intent.AGENT, Intent.BATCH)] == [0, 1, 2]


def test_every_condition_reason_is_documented_under_some_type() -> None:
    assert {reason.reason for doc in CONDITIONS for reason in doc.reasons} == set(ConditionReason)
    assert {doc.type for doc in CONDITIONS} == set(ConditionType)


@pytest.mark.parametrize("doc", CONDITIONS, ids=lambda doc: f"{doc.kind} {doc.type}")
def test_condition_can_be_true_and_otherwise_and_lists_true_first(doc: conditions.ConditionDoc) -> None:
    order = [ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN]
    statuses = [reason.status for reason in doc.reasons]
    assert statuses == sorted(statuses, key=order.index)
    assert statuses[0] is ConditionStatus.TRUE
    assert statuses[-1] is not ConditionStatus.TRUE
    assert len({(reason.reason, reason.status) for reason in doc.reasons}) == len(doc.reasons)


def test_problems_of_compiled_keys_and_targets_are_condition_reasons() -> None:
    credentials = {reason.reason.value for reason in reasons_of("ClientKey", ConditionType.CREDENTIALS_RESOLVED)}
    targets = {reason.reason.value for reason in reasons_of("WorkloadClass", ConditionType.TARGETS_RESOLVED)}
    assert set(KeyProblemReason) <= credentials
    assert set(TargetProblemReason) <= targets


@pytest.mark.parametrize("declared", METRICS, ids=lambda declared: declared.name)
def test_metric_follows_the_naming_rules(declared: Metric) -> None:
    assert re.fullmatch(r"hlserve_(router|engine|operator|bench)_[a-z0-9_]+", declared.name)
    assert declared.name.endswith("_total") == (declared.type is MetricType.COUNTER)
    assert declared.help.endswith(".")
    assert declared.unit.removesuffix("s") in declared.name
    assert metric(declared.name) is declared


@pytest.mark.parametrize("declared", METRICS, ids=lambda declared: declared.name)
def test_metric_has_bounded_labels_and_rising_buckets(declared: Metric) -> None:
    assert all(bool(label.values) != bool(label.cap) for label in declared.labels)
    assert len(set(declared.label_names)) == len(declared.labels)
    assert bool(declared.buckets) == (declared.type is MetricType.HISTOGRAM)
    assert list(declared.buckets) == sorted(set(declared.buckets))


def test_metric_names_are_unique_and_others_are_unknown() -> None:
    assert len({declared.name for declared in METRICS}) == len(METRICS)
    with pytest.raises(KeyError, match="is not declared"):
        metric("hlserve_router_nothing")
