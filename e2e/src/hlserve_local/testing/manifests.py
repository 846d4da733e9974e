"""A small valid set of manifests to start from, and a way to write it to a folder."""

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

MODEL = "test-model"
CHAT_KEY = "hls_TEST-chat-Xv7QpR2mW9sKd4TzLb8Ny3HfGe5Ju6"
AGENT_KEY = "hls_TEST-agent-Hq5JcV8fN1xGt6RwZm2PsYk4Bd7Lu"

Manifest = dict[str, Any]


def pool(name: str, mode: str, *, replicas: int = 1, **spec: Any) -> Manifest:
    """A ServingPool on a modelled A100 with Llama 3.1 8B."""
    goal = {"slo": {"ttftMilliseconds": 1000, "tpotMilliseconds": 20}} if mode == "Interactive" else {}
    model = {
        "name": MODEL,
        "source": {
            "uri": "hf://meta-llama/Llama-3.1-8B-Instruct",
            "revision": "0e9e39f249a16976918f6564b8830bc894c89659",
        },
        "shape": {"name": "llama-3.1-8b"},
    }
    body = {"mode": mode, "model": model, "hardware": {"accelerator": "A100-80G"}, **goal, "replicas": replicas, **spec}
    return _object("ServingPool", name, body)


def workload_class(name: str, intent: str, pools: Iterable[str], **spec: Any) -> Manifest:
    """A WorkloadClass whose primaries are `pools`."""
    targets = [{"name": item, "poolRef": {"name": item}} for item in pools]
    return _object("WorkloadClass", name, {"intent": intent, "targets": targets, **spec})


def client_key(name: str, class_name: str, **spec: Any) -> Manifest:
    """A ClientKey whose key is in the Secret `<name>-primary`."""
    credential = {"id": "primary", "secretRef": {"name": f"{name}-primary", "key": "key"}}
    return _object("ClientKey", name, {"workloadClassRef": {"name": class_name}, "credentials": [credential], **spec})


def secret(client: str, key: str) -> Manifest:
    """The Secret of `client_key(client, …)`."""
    name = f"{client}-primary"
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"key": key}}


def base() -> dict[str, Manifest]:
    """Two pools, three classes and two keys without any problem, by a short name each."""
    return {
        "chat": pool("chat", "Interactive"),
        "agents": pool("agents", "HumanLess", replicas=2),
        "interactive": workload_class("interactive", "Interactive", ["chat"]),
        "agent": workload_class("agent", "Agent", ["agents"]),
        "batch": workload_class("batch", "Batch", ["agents"]),
        "chat-app": client_key("chat-app", "interactive"),
        "chat-secret": secret("chat-app", CHAT_KEY),
        "coder": client_key("coder", "agent"),
        "coder-secret": secret("coder", AGENT_KEY),
    }


def changed(documents: dict[str, Manifest], name: str, path: str, value: Any) -> dict[str, Manifest]:
    """A copy in which one field (`spec.slo.tpotMilliseconds`, `spec.targets.0.name`) has another value; None removes it."""
    copied = copy.deepcopy(documents)
    node: Any = copied[name]
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        node = node.setdefault(part, {}) if isinstance(node, dict) else node[part]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return copied


def write_folder(folder: Path, documents: dict[str, Manifest]) -> Path:
    """Write all documents into `manifests.yaml`, replacing the file in one step."""
    text = "---\n".join(yaml.safe_dump(document, sort_keys=False) for document in documents.values())
    new = folder / "manifests.new"
    new.write_text(text, encoding="utf-8")
    new.replace(folder / "manifests.yaml")
    return folder


def _object(kind: str, name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": "serving.hlserve.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
