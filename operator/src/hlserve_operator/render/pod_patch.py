"""`podPatch`: a strategic merge patch of the pod template, without what belongs to the operator.

Objects are merged, `null` removes a field, lists of named things are merged item by item, other lists are replaced. An item with
`$patch: delete` is removed.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hlserve_operator.state import ENGINE_CONTAINER, ENGINE_PORT, PatchRejectedError

MAX_BYTES = 16 * 1024
MERGE_KEYS: Final = {
    "containers": "name",
    "env": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""What identifies an item of a list, as in Kubernetes' own schema."""

_DIRECTIVE: Final = "$patch"
_OWNED_LABELS: Final = ("serving.hlserve.io/", "app.kubernetes.io/", "leaderworkerset.sigs.k8s.io/")
_OWNED_ANNOTATIONS: Final = ("serving.hlserve.io/", "controller.kubernetes.io/pod-deletion-cost")
_OWNED_VARIABLES: Final = re.compile(
    r"^(SGLANG_PLUGINS|SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES|PYTHONPATH|HLSERVE_.*|HF_TOKEN)$"
)
_OWNED_POD_FIELDS: Final = {
    "serviceAccountName": "engines run without rights in the cluster",
    "serviceAccount": "engines run without rights in the cluster",
    "automountServiceAccountToken": "engines run without rights in the cluster",
    "terminationGracePeriodSeconds": "set drain.timeoutSeconds",
    "restartPolicy": "the pods belong to a Deployment or LeaderWorkerSet",
}
_OWNED_CONTAINER_FIELDS: Final = {
    "command": "the image's own starts the engine",
    "args": "use engine.extraArgs",
    "image": "set engine.image",
}


def patched(template: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The template with the patch merged in. Raises PatchRejectedError, in one sentence, if the patch is too large, touches what is the
    operator's, or cannot be merged."""
    _check(patch)
    merged = _merged(template, patch, "podPatch")
    if not isinstance(merged, dict):
        raise PatchRejectedError("podPatch must be an object with metadata or spec.")
    return merged


def _check(patch: Mapping[str, Any]) -> None:
    size = len(json.dumps(patch, separators=(",", ":"), ensure_ascii=False).encode())
    if size > MAX_BYTES:
        raise PatchRejectedError(f"podPatch has {size} bytes, more than {MAX_BYTES}: make it smaller.")
    for place, parent in (("podPatch", patch), ("podPatch.metadata", patch.get("metadata"))):
        for name in _object(parent, place):
            if name in ("metadata", "spec", "labels") and _object(parent, place)[name] is None:
                raise PatchRejectedError(
                    f"{place}.{name}: null would remove what belongs to the operator. Remove the field."
                )
    for name in patch:
        if name not in ("metadata", "spec"):
            raise PatchRejectedError(f"podPatch.{name}: a pod template has only metadata and spec. Remove it.")
    metadata = _object(patch.get("metadata"), "podPatch.metadata")
    for name in metadata:
        if name not in ("labels", "annotations"):
            raise PatchRejectedError(f"podPatch.metadata.{name}: only labels and annotations can be set. Remove it.")
    for field, owned in (("labels", _OWNED_LABELS), ("annotations", _OWNED_ANNOTATIONS)):
        for name in _object(metadata.get(field), f"podPatch.metadata.{field}"):
            if name.startswith(owned):
                raise PatchRejectedError(f"podPatch.metadata.{field}.{name} belongs to the operator: remove it.")
    spec = _object(patch.get("spec"), "podPatch.spec")
    for name, advice in _OWNED_POD_FIELDS.items():
        if name in spec:
            raise PatchRejectedError(f"podPatch.spec.{name} belongs to the operator: {advice}. Remove it.")
    for field in ("containers", "initContainers"):
        if field in spec and spec[field] is None:
            raise PatchRejectedError(f"podPatch.spec.{field}: null would remove every container. Remove the field.")
        for container in _items(spec.get(field), f"podPatch.spec.{field}"):
            _check_container(container, f"podPatch.spec.{field}")


def _check_container(container: Mapping[str, Any], place: str) -> None:
    name = container.get("name")
    engine = name == ENGINE_CONTAINER
    if engine and _DIRECTIVE in container:
        raise PatchRejectedError(f"{place}[{name}] is the engine: it cannot be removed or replaced.")
    for field, advice in _OWNED_CONTAINER_FIELDS.items():
        if engine and field in container:
            raise PatchRejectedError(f"{place}[{name}].{field} belongs to the operator: {advice}. Remove it.")
    for field in ("ports", "env"):
        if engine and field in container and container[field] is None:
            raise PatchRejectedError(
                f"{place}[{name}].{field}: null would remove the operator's own. Remove the field."
            )
    for port in _items(container.get("ports"), f"{place}[{name}].ports"):
        if port.get("containerPort") == ENGINE_PORT or port.get("name") == "http":
            raise PatchRejectedError(
                f"{place}[{name}].ports: port {ENGINE_PORT} and the name http are the engine's: choose others."
            )
    for variable in _items(container.get("env"), f"{place}[{name}].env"):
        if engine and _OWNED_VARIABLES.match(str(variable.get("name", ""))):
            raise PatchRejectedError(
                f"{place}[{name}].env: {variable['name']} belongs to the operator: remove the variable."
            )


def _merged(base: Any, patch: Any, place: str) -> Any:
    if isinstance(patch, Mapping):
        if _DIRECTIVE in patch:
            raise PatchRejectedError(f"{place}: {_DIRECTIVE} is only understood as `delete`, in an item of a list.")
        result = dict(base) if isinstance(base, Mapping) else {}
        for name, value in patch.items():
            if value is None:
                result.pop(name, None)
            else:
                key = MERGE_KEYS.get(name) if isinstance(value, list) else None
                known = result.get(name)
                result[name] = (
                    _merged_list(known if isinstance(known, list) else [], value, key, f"{place}.{name}")
                    if key is not None
                    else _merged(known, value, f"{place}.{name}")
                )
        return result
    return patch


def _merged_list(base: Sequence[Any], patch: Sequence[Any], key: str, place: str) -> list[Any]:
    result = list(base)
    for item in _items(patch, place):
        if key not in item:
            raise PatchRejectedError(f"{place}: an item has no {key}, by which it is merged. Add it.")
        index = next((i for i, known in enumerate(result) if known.get(key) == item[key]), None)
        if item.get(_DIRECTIVE) == "delete":
            if index is not None:
                del result[index]
        elif index is None:
            result.append(_merged({}, item, f"{place}[{item[key]}]"))
        else:
            result[index] = _merged(result[index], item, f"{place}[{item[key]}]")
    return result


def _object(value: Any, place: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise PatchRejectedError(f"{place} must be an object.")
    return value


def _items(value: Any, place: str) -> Sequence[Mapping[str, Any]]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise PatchRejectedError(f"{place} must be a list of objects.")
    return value
