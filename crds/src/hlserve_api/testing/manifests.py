"""Valid manifests as plain objects, and copies of them with one thing changed."""

import copy
from typing import Any

from hlserve_api.v1alpha1.meta import API_VERSION

Manifest = dict[str, Any]


def _manifest(kind: str, name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _model() -> Manifest:
    return {
        "name": "llama-3.1-8b",
        "source": {"uri": "hf://meta-llama/Llama-3.1-8B", "revision": "d04e592bb4f6aa9cfee91e2e20afa771667e1d4b"},
    }


def an_interactive_pool(name: str = "chat") -> Manifest:
    """A valid Interactive pool."""
    slo = {"ttftMilliseconds": 1000, "tpotMilliseconds": 20}
    return _manifest("ServingPool", name, {"mode": "Interactive", "model": _model(), "slo": slo})


def a_human_less_pool(name: str = "agents") -> Manifest:
    """A valid HumanLess pool."""
    return _manifest("ServingPool", name, {"mode": "HumanLess", "model": _model()})


def a_workload_class(name: str = "agent", intent: str = "Agent", pool: str = "agents") -> Manifest:
    """A valid class with one primary target."""
    return _manifest(
        "WorkloadClass", name, {"intent": intent, "targets": [{"name": "main", "poolRef": {"name": pool}}]}
    )


def a_client_key(name: str = "crawler", workload_class: str = "agent") -> Manifest:
    """A valid key with one credential, in Secret NAME-keys under `a`."""
    credentials = [{"id": "a", "secretRef": {"name": f"{name}-keys", "key": "a"}}]
    return _manifest("ClientKey", name, {"workloadClassRef": {"name": workload_class}, "credentials": credentials})


def changed(manifest: Manifest, path: str, value: object) -> Manifest:
    """A copy with the field at a dotted path (digits are list indices) set; objects on the way are made."""
    result = copy.deepcopy(manifest)
    *parents, last = path.split(".")
    node: Any = result
    for step in parents:
        node = node[int(step)] if isinstance(node, list) else node.setdefault(step, {})
    if isinstance(node, list):
        node[int(last)] = value
    else:
        node[last] = value
    return result


def without(manifest: Manifest, path: str) -> Manifest:
    """A copy without the field at a dotted path."""
    result = copy.deepcopy(manifest)
    *parents, last = path.split(".")
    node: Any = result
    for step in parents:
        node = node[int(step)] if isinstance(node, list) else node[step]
    del node[last]
    return result
