"""The chart's values: each one changes what is rendered, each mistake is told where it is made."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import yaml
from pydantic.alias_generators import to_snake

from hlserve_cluster.charts import (
    CHARTS,
    ChartError,
    Manifest,
    find,
    other_value,
    render,
    with_value,
)
from repository_checks.chart_values import GIVEN, Value, ValuesError, read_values, schema

VALUES = {value.name: value for value in read_values((CHARTS / "hlserve/values.yaml").read_text(encoding="utf-8"))}
SCHEMA = schema(tuple(VALUES.values()))
APIS = ("monitoring.coreos.com/v1/PodMonitor", "keda.sh/v1alpha1/TriggerAuthentication")
DIGEST = "sha256:" + "0" * 64

ALL_ON: dict[str, Any] = {
    "valkey": {"enabled": True},
    "ingress": {"enabled": True, "hosts": ["a.example"]},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]},
    "monitoring": {"namespaceSelector": {"matchLabels": {"team": "sre"}}},
    "test": {"keys": {"chat": {"secretName": "chat-key"}, "agent": {"secretName": "agent-key"}}},
}
"""Every optional part, so that the values of each show."""
ELSEWHERE: Mapping[str, dict[str, Any]] = {
    "router.autoscaling.minReplicas": {"router": {"autoscaling": {"enabled": True}}},
    "router.autoscaling.maxReplicas": {"router": {"autoscaling": {"enabled": True}}},
    "router.autoscaling.targetCPUPercent": {"router": {"autoscaling": {"enabled": True}}},
    "router.autoscaling.scaleDownStabilizationSeconds": {"router": {"autoscaling": {"enabled": True}}},
    "limits.store": {},
    "limits.passwordSecret.name": {"limits": {"store": "valkey://here:6379/0"}},
    "limits.passwordSecret.key": {"limits": {"store": "valkey://here:6379/0", "passwordSecret": {"name": "store"}}},
}
"""Values that show only beside others than `ALL_ON`."""


@cache
def baseline(name: str) -> tuple[Manifest, ...]:
    """What is rendered before a value changes."""
    return masked(ELSEWHERE.get(name, ALL_ON))


def masked(values: Mapping[str, Any]) -> tuple[Manifest, ...]:
    """The objects, without what is random in them."""
    found = render(values, apis=APIS)
    for manifest in found:
        if manifest["kind"] == "Secret":
            assert all(len(text) >= 43 for text in manifest["data"].values())
            manifest["data"] = dict.fromkeys(manifest["data"], "random")
    return found


@cache
def all_on() -> tuple[Manifest, ...]:
    """Most values share one baseline."""
    return masked(ALL_ON)


@pytest.mark.parametrize("name", VALUES)
def test_chart_value_changes_what_is_rendered(name: str) -> None:
    value = VALUES[name]
    base = ELSEWHERE.get(name, ALL_ON)
    before = baseline(name) if name in ELSEWHERE else all_on()
    now: Any = base
    for part in value.path:
        now = now.get(part, value.default) if isinstance(now, dict) else value.default
    changed = other_value({**property_of(value), **value.extra}, now)
    after = masked(with_value(base, value.path, changed))
    assert after != before
    if isinstance(changed, str) and "enum" not in property_of(value):
        assert changed in yaml.safe_dump_all(after, width=1000), "something else than the value is rendered"


def property_of(value: Value) -> Mapping[str, Any]:
    """What the schema says of a value."""
    node: Mapping[str, Any] = SCHEMA
    for part in value.path:
        node = node["properties"][part]
    return node


@pytest.mark.parametrize("component", ["operator", "router"])
def test_chart_takes_every_setting_of_a_process(component: str) -> None:
    """Under its own name, as its own type: a large number stays a number, a list becomes the JSON that the process reads."""
    model, own = GIVEN[f"{component}.settings"]
    values: dict[str, Any] = {}
    if component == "router":
        values = {"bodyMaxBytes": 67108864, "corsOrigins": ["https://a.example"], "face": "asgi"}
    properties = SCHEMA["properties"][component]["properties"]["settings"]["properties"]
    for name, content in properties.items():
        if content["type"] in ("number", "integer"):
            values.setdefault(name, 7)
        else:
            values.setdefault(name, "debug")
    assert {to_snake(name) for name in values} == model.model_fields.keys() - own
    deployment = find(render({component: {"settings": values}}), "Deployment", f"hlserve-{component}")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    got = {each["name"]: each["value"] for each in container["env"]}
    prefix = f"HLSERVE_{component.upper()}_"
    want = {f"{prefix}{to_snake(name).upper()}": str(value) for name, value in values.items()}
    if component == "router":
        want[f"{prefix}CORS_ORIGINS"] = '["https://a.example"]'
    assert got == want


MISTAKES: Mapping[str, tuple[dict[str, Any], str]] = {
    "a typo at the top": ({"routers": {}}, "routers"),
    "a typo below": ({"router": {"replica": 3}}, "replica"),
    "a typo in a setting": ({"router": {"settings": {"drainSecond": 3}}}, "drainSecond"),
    "a setting that the chart gives itself": ({"router": {"settings": {"port": 81}}}, "port"),
    "a setting out of its range": ({"router": {"settings": {"workers": 0}}}, "workers"),
    "a setting that is none of its values": ({"router": {"settings": {"face": "round"}}}, "face"),
    "text for a number": ({"keyringShards": "four"}, "keyringShards"),
    "a value set to null": ({"router": {"settings": {"drainSeconds": None}}}, "drainSeconds"),
    "a wrong type of Service": ({"router": {"service": {"type": "External"}}}, "type"),
    "an annotation that is no text": ({"router": {"podAnnotations": {"a": True}}}, "podAnnotations"),
    "a tag where a digest belongs": ({"router": {"image": {"digest": "1.0"}}}, "digest"),
    "a store of limits that several pods cannot share": ({"limits": {"store": "sqlite:/a.db"}}, "store"),
    "two stores": ({"valkey": {"enabled": True}, "limits": {"store": "valkey://a:1/0"}}, "set one of them"),
    "a password of the wrong store": (
        {"valkey": {"enabled": True}, "limits": {"passwordSecret": {"name": "a"}}},
        "use valkey.existingSecret",
    ),
    "a password of no store": ({"limits": {"passwordSecret": {"name": "a"}}}, "set that too"),
    "a route without a gateway": ({"httpRoute": {"enabled": True}}, "set httpRoute.parentRefs"),
    "bounds of replicas that cross": (
        {"router": {"autoscaling": {"enabled": True, "minReplicas": 11}}},
        "raise the latter",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("values", "words"), MISTAKES.values(), ids=MISTAKES)
def test_chart_mistake_is_told_with_its_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ChartError, match=re.escape(words)):
        render(values)


@pytest.mark.parametrize("version", [4, 3])
def test_chart_mistake_is_told_by_both_helms(version: int) -> None:
    with pytest.raises(ChartError, match="replica"):
        render({"router": {"replica": 3}}, version=version)


@pytest.mark.parametrize("release", ["a.b", "1st"])
def test_chart_refuses_a_release_whose_services_could_not_be_named(release: str) -> None:
    with pytest.raises(ChartError, match="a letter first"):
        render(release=release)


def test_chart_may_be_part_of_another() -> None:
    """Helm gives `global` to such a chart, whatever its schema says."""
    assert render({"global": {"anything": 1}})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:\n  # It.\n  b: 1\n  c: 2\n", "a.c has no comment"),
        ("# It.\na: 1.5\n", "a is 1.5"),
        ("- a\n", "holds no map"),
    ],
    ids=["without a comment", "without a plain type", "no map"],
)
def test_chart_values_that_cannot_be_described_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValuesError, match=words):
        schema(read_values(text))


def test_chart_comment_is_the_meaning_and_its_annotation_the_rest() -> None:
    text = "a:\n  # Counts the\n  # sheep.\n  # @schema {maximum: 3}\n  b: 2\n"
    (value,) = read_values(text)
    assert (value.name, value.default, value.meaning, value.extra) == ("a.b", 2, "Counts the sheep.", {"maximum": 3})
    assert yaml.safe_load(text)["a"]["b"] == 2
