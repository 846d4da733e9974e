"""`podPatch`: merged as Kubernetes merges, refused where it touches what is the operator's."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_operator.render.pod_patch import MAX_BYTES, patched
from hlserve_operator.state import PatchRejectedError

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"serving.hlserve.io/pool": "chat"}},
    "spec": {
        "containers": [
            {
                "name": "engine",
                "image": "i",
                "args": ["--port", "30000"],
                "env": [{"name": "HLSERVE_POOL", "value": "chat"}, {"name": "A", "value": "1"}],
                "ports": [{"name": "http", "containerPort": 30000}],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }
        ],
        "tolerations": [{"key": "gpu"}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    },
}


def engine(patch: dict[str, Any]) -> dict[str, Any]:
    result = patched(TEMPLATE, {"spec": {"containers": [{"name": "engine", **patch}]}})
    found: dict[str, Any] = result["spec"]["containers"][0]
    return found


def test_operator_pod_patch_merges_variables_by_name() -> None:
    assert engine({"env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]})["env"] == [
        {"name": "HLSERVE_POOL", "value": "chat"},
        {"name": "A", "value": "2"},
        {"name": "B", "value": "3"},
    ]


def test_operator_pod_patch_merges_objects_and_removes_fields_with_null() -> None:
    assert engine({"resources": {"limits": {"hugepages-2Mi": "1Gi", "nvidia.com/gpu": None}}})["resources"] == {
        "limits": {"hugepages-2Mi": "1Gi"}
    }


def test_operator_pod_patch_adds_a_sidecar_after_the_engine() -> None:
    result = patched(TEMPLATE, {"spec": {"containers": [{"name": "logs", "image": "x", "command": ["tail"]}]}})
    assert [container["name"] for container in result["spec"]["containers"]] == ["engine", "logs"]


def test_operator_pod_patch_removes_an_item_that_it_marks() -> None:
    assert engine({"env": [{"name": "A", "$patch": "delete"}]})["env"] == [{"name": "HLSERVE_POOL", "value": "chat"}]


def test_operator_pod_patch_replaces_a_list_without_names() -> None:
    assert patched(TEMPLATE, {"spec": {"tolerations": [{"key": "b"}]}})["spec"]["tolerations"] == [{"key": "b"}]


def test_operator_pod_patch_leaves_the_template_alone() -> None:
    before = repr(TEMPLATE)
    patched(TEMPLATE, {"metadata": {"annotations": {"a": "b"}}, "spec": {"volumes": [{"name": "x", "emptyDir": {}}]}})
    assert repr(TEMPLATE) == before


def in_engine(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


@pytest.mark.parametrize(
    ("patch", "want"),
    [
        pytest.param({"spec": {"x": "a" * MAX_BYTES}}, "make it smaller", id="a patch that is too large"),
        pytest.param({"status": {}}, "only metadata and spec", id="a field that no template has"),
        pytest.param({"spec": None}, "null would remove", id="the spec taken away"),
        pytest.param({"metadata": {"labels": None}}, "null would remove", id="the labels taken away"),
        pytest.param({"metadata": {"name": "x"}}, "only labels and annotations", id="a name"),
        pytest.param(
            {"metadata": {"labels": {"serving.hlserve.io/pool": "x"}}}, "belongs to the operator", id="a selector label"
        ),
        pytest.param(
            {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "1"}}},
            "belongs to the operator",
            id="the deletion cost",
        ),
        pytest.param({"spec": {"serviceAccountName": "x"}}, "without rights", id="a service account"),
        pytest.param({"spec": {"serviceAccount": "x"}}, "without rights", id="a service account by its old name"),
        pytest.param(
            {"spec": {"terminationGracePeriodSeconds": 1}}, r"drain\.timeoutSeconds", id="another grace period"
        ),
        pytest.param({"spec": {"containers": None}}, "every container", id="all containers taken away"),
        pytest.param({"spec": {"containers": {}}}, "must be a list", id="containers that are no list"),
        pytest.param({"spec": {"containers": [{"image": "x"}]}}, "has no name", id="a container without a name"),
        pytest.param(in_engine(**{"$patch": "delete"}), "cannot be removed", id="the engine taken away"),
        pytest.param(in_engine(**{"$patch": "replace"}), "cannot be removed", id="the engine replaced"),
        pytest.param(in_engine(command=["sh"]), "the image's own", id="a command"),
        pytest.param(in_engine(args=["--x"]), r"engine\.extraArgs", id="arguments"),
        pytest.param(in_engine(image="x"), r"engine\.image", id="an image"),
        pytest.param(in_engine(ports=None), "the operator's own", id="the ports taken away"),
        pytest.param(in_engine(ports=[{"containerPort": 30000, "name": "x"}]), "port 30000", id="the engine's port"),
        pytest.param(
            {"spec": {"containers": [{"name": "x", "ports": [{"containerPort": 1, "name": "http"}]}]}},
            "port 30000",
            id="a sidecar on the engine's port name",
        ),
        pytest.param(in_engine(env=[{"name": "HLSERVE_MODE", "value": "x"}]), "HLSERVE_MODE", id="our variable"),
        pytest.param(in_engine(env=[{"name": "SGLANG_PLUGINS", "value": ""}]), "SGLANG_PLUGINS", id="the plugins"),
        pytest.param(in_engine(env=[{"name": "PYTHONPATH", "value": ""}]), "PYTHONPATH", id="the import path"),
        pytest.param({"spec": {"$patch": "replace"}}, "only understood as", id="a directive"),
    ],
)
def test_operator_pod_patch_is_refused(patch: dict[str, Any], want: str) -> None:
    with pytest.raises(PatchRejectedError, match=want):
        patched(TEMPLATE, patch)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "spec", "labels", "containers", "name", "env", "ports", "command", "$patch", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec"]), JSON, max_size=2))
def test_operator_pod_patch_is_refused_or_leaves_what_is_ours(patch: dict[str, Any]) -> None:
    """Whatever stands in it: a clear refusal, or an engine that is still the operator's."""
    try:
        result = patched(TEMPLATE, patch)
    except PatchRejectedError:
        return
    ours = next(container for container in result["spec"]["containers"] if container["name"] == "engine")
    for field in ("image", "args"):
        assert ours[field] == TEMPLATE["spec"]["containers"][0][field]
    assert "command" not in ours
    assert {"name": "http", "containerPort": 30000}.items() <= ours["ports"][0].items()
    assert result["metadata"]["labels"]["serving.hlserve.io/pool"] == "chat"
