"""The CRDs in the repository keep the structural rules, and the check of those rules can fail."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from hlserve_api.generate.crd import LARGEST_BYTES, crd, crd_file_name
from hlserve_api.generate.structural import UnstructuralError, structural_schema
from hlserve_api.testing import changed
from hlserve_api.testing.structural_rules import violations
from hlserve_api.v1alpha1 import KINDS, ClientKey, CustomResource, ServingPool
from hlserve_api.v1alpha1.meta import Node

REPOSITORY = Path(__file__).parents[2]
Document = dict[str, Any]


def _read(kind: type[CustomResource]) -> Document:
    document: Document = yaml.safe_load((REPOSITORY / "crds" / crd_file_name(kind)).read_text(encoding="utf-8"))
    return document


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.names.kind)
def test_crd_keeps_every_structural_rule(kind: type[CustomResource]) -> None:
    assert violations(_read(kind)) == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.names.kind)
def test_crd_is_small_and_has_status_columns_and_keep_policy(kind: type[CustomResource]) -> None:
    path = REPOSITORY / "crds" / crd_file_name(kind)
    document = _read(kind)
    version = document["spec"]["versions"][0]
    assert path.stat().st_size < LARGEST_BYTES
    assert version["subresources"]["status"] == {}
    assert [column["name"] for column in version["additionalPrinterColumns"]] == [
        column.name for column in kind.columns
    ]
    assert document["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert document["spec"]["scope"] == "Namespaced"


def test_only_serving_pools_scale() -> None:
    scaled = {kind.names.kind: _read(kind)["spec"]["versions"][0]["subresources"].get("scale") for kind in KINDS}
    assert scaled == {
        "ServingPool": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
        "WorkloadClass": None,
        "ClientKey": None,
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.names.kind)
def test_chart_holds_the_same_file_and_nothing_for_helm_to_render(kind: type[CustomResource]) -> None:
    name = crd_file_name(kind)
    copy = (REPOSITORY / "charts/hlserve-crds/templates" / name).read_text(encoding="utf-8")
    assert copy == (REPOSITORY / "crds" / name).read_text(encoding="utf-8")
    assert "{{" not in copy


ROOT = "spec.versions.0.schema.openAPIV3Schema"
SPEC = f"{ROOT}.properties.spec"
MODE = f"{SPEC}.properties.mode"


@pytest.mark.parametrize(
    ("path", "value", "want"),
    [
        (f"{MODE}.$ref", "#/x", "$ref is not allowed"),
        (f"{MODE}.anyOf", [], "anyOf is not allowed"),
        (f"{MODE}.title", "Mode", "title is not allowed"),
        (f"{MODE}.type", "text", "has no type"),
        (f"{MODE}.nullable", True, "never null"),
        (f"{MODE}.format", "hostname", "format hostname is not known"),
        (f"{MODE}.description", "", "has no description"),
        (f"{MODE}.default", "Fast", "is not in the enum"),
        (f"{MODE}.default", 3, "has another type"),
        (f"{SPEC}.required", ["nothing"], "requires nothing"),
        (f"{SPEC}.additionalProperties", False, "exclude each other"),
        (f"{SPEC}.x-kubernetes-validations", [{"rule": "true"}], "a rule needs a message"),
        (f"{SPEC}.x-kubernetes-validations", [{"rule": "true", "message": "m", "fieldPath": ".gone"}], "leads to no field"),
        (f"{SPEC}.properties.rollout.default", {"speed": 1}, "would be pruned"),
        (f"{SPEC}.properties.startup.properties.timeoutSeconds.default", 1, "out of bounds"),
        (f"{SPEC}.properties.startup.properties.timeoutSeconds.maximum", "drop", "an integer needs minimum and maximum"),
        (f"{SPEC}.properties.hardware.properties.accelerator.maxLength", "drop", "a string needs maxLength"),
        (f"{SPEC}.properties.scheduling.properties.nodeSelector.maxProperties", "drop", "a map needs maxProperties"),
        (f"{SPEC}.properties.allowedMediaDomains.maxItems", "drop", "a list needs maxItems"),
        (f"{SPEC}.properties.allowedMediaDomains.x-kubernetes-list-type", "bag", "needs x-kubernetes-list-type"),
        (f"{SPEC}.properties.engine.properties.env.x-kubernetes-list-map-keys", ["value"], "list key value must be required"),
        (f"{SPEC}.properties.resources.properties.cpu.type", "string", "int-or-string has no type"),
        (f"{SPEC}.properties.resources.properties.cpu.pattern", "drop", "int-or-string needs"),
        (f"{ROOT}.properties.metadata.description", "x", "metadata: must be an object without anything else"),
        (f"{ROOT}.properties.status.properties.replicas.default", 0, "a status has no defaults"),
        (f"{ROOT}.x-kubernetes-preserve-unknown-fields", True, "the root must prune"),
        (f"{ROOT}.x-kubernetes-validations", [{"rule": "true", "message": "m", "fieldPath": ".metadata.name"}], "leads to no field"),
    ],
)  # fmt: skip
def test_check_notices_each_broken_rule(path: str, value: object, want: str) -> None:
    broken = changed(crd(ServingPool), path, value)
    if value == "drop":
        *parents, last = path.split(".")
        node: Any = broken
        for step in parents:
            node = node[int(step)] if isinstance(node, list) else node[step]
        del node[last]
    assert any(want in sentence for sentence in violations(broken)), violations(broken)


def test_union_of_two_types_is_refused() -> None:
    class Either(Node):
        """A union."""

        value: int | str

    with pytest.raises(UnstructuralError, match=r"Either.value is a union"):
        structural_schema(Either)


def test_field_names_of_the_contract_are_there() -> None:
    spec = crd(ClientKey)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert spec["credentials"]["x-kubernetes-list-map-keys"] == ["id"]
    assert (spec["credentials"]["minItems"], spec["credentials"]["maxItems"]) == (1, 2)
    assert spec["tenant"]["maxLength"] == 63
    assert spec["budget"]["properties"]["tokens"]["format"] == "int64"
