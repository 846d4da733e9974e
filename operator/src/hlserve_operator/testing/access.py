"""A namespace with a pool, a class and keys, as `plan_access` sees it, and what a run of the plan makes of it."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from hlserve_api.routing import (
    ENGINE_CREDENTIALS_SECRET,
    KEYRING_KEY,
    KEYRING_SECRET_PREFIX,
    TABLE_CONFIG_MAP,
    TABLE_KEY,
    EngineCredentials,
    KeyEntry,
    RoutingTable,
    parse_engine_credentials,
    parse_keyring,
    parse_table,
)
from hlserve_api.testing.manifests import a_client_key, a_human_less_pool, a_workload_class, an_interactive_pool
from hlserve_api.v1alpha1.client_key import ClientKey
from hlserve_api.v1alpha1.serving_pool import ServingPool
from hlserve_api.v1alpha1.workload_class import WorkloadClass
from hlserve_capacity.derive import derive
from hlserve_operator.access.actions import AccessActions
from hlserve_operator.access.generated import manifest_with
from hlserve_operator.access.labels import DOCUMENT_LABEL, GENERATED_LABEL
from hlserve_operator.access.observed import AccessObserved, PoolFacts, SecretView
from hlserve_operator.access.plan import plan_access
from hlserve_operator.refs import Ref
from hlserve_operator.reported import RouterReport
from hlserve_operator.state import Manifest, Release

NOW = datetime(2030, 5, 1, 12, 0, tzinfo=UTC)
BEFORE = "2030-01-01T00:00:00Z"
RELEASE = Release()
_T = TypeVar("_T", ClientKey, WorkloadClass)


def a_key(name: str = "crawler", *, spec: Mapping[str, Any] | None = None, **metadata: Any) -> ClientKey:
    """A ClientKey as stored: credential `a` in Secret NAME-keys, class agent."""
    manifest = a_client_key(name)
    manifest["metadata"] |= {"uid": f"uid-{name}", "generation": 3, "creationTimestamp": BEFORE, **metadata}
    manifest["spec"] |= spec or {}
    return ClientKey.model_validate(manifest)


def a_made_key(name: str = "crawler", *credentials: str, **metadata: Any) -> ClientKey:
    """A ClientKey whose credentials name no Secret."""
    return a_key(name, spec={"credentials": [{"id": each} for each in credentials or ("a",)]}, **metadata)


def a_secret(name: str, text: str | bytes, key: str = "a", **fields: Any) -> SecretView:
    """A Secret with one key."""
    return SecretView(name=name, data={key: text.encode() if isinstance(text, str) else text}, **fields)


def strong(name: str) -> str:
    """A good key, one for each name."""
    return f"hls_{name}_Xv7QpR2mW9sKd4TzLb8Ny3HfGe5JuAqC6oB1"


def a_class(name: str = "agent", *, spec: Mapping[str, Any] | None = None, **metadata: Any) -> WorkloadClass:
    """A class as stored, with pool `agents` as its primary target."""
    manifest = a_workload_class(name)
    manifest["metadata"] |= {"uid": f"uid-{name}", "generation": 2, **metadata}
    manifest["spec"] |= spec or {}
    return WorkloadClass.model_validate(manifest)


def a_pool(
    name: str = "agents", *, ready: int = 1, interactive: bool = False, draining: Sequence[str] = (), **fields: Any
) -> PoolFacts:
    """A pool as stored, with what is derived from it. `fields` replace those of its spec; `labels` and others of its metadata."""
    manifest = an_interactive_pool(name) if interactive else a_human_less_pool(name)
    manifest["metadata"] |= {"uid": f"uid-{name}", "generation": 1, **fields.pop("metadata", {})}
    manifest["spec"] |= fields
    pool = ServingPool.model_validate(manifest)
    return PoolFacts(pool=pool, derived=derive(pool), ready_replicas=ready, draining=tuple(draining))


def observed(*keys: ClientKey, **fields: Any) -> AccessObserved:
    """A namespace with pool agents, class agent and these keys, each with a Secret of its own."""
    secrets = {f"{key.name}-keys": a_secret(f"{key.name}-keys", strong(key.name)) for key in keys}
    given: dict[str, Any] = {
        "namespace": "llm", "pools": (a_pool(),), "classes": (a_class(),), "keys": keys, "secrets": secrets, **fields
    }  # fmt: skip
    return AccessObserved(**given)


def plan(namespace: AccessObserved, now: datetime = NOW, release: Release = RELEASE) -> AccessActions:
    """One run of the plan."""
    return plan_access(namespace, release, now)


def data_of(manifest: Manifest, key: str) -> str:
    """The text in a ConfigMap or Secret."""
    text: str = manifest["data"][key]
    return text if manifest["kind"] == "ConfigMap" else base64.b64decode(text).decode()


def table_of(actions: AccessActions) -> RoutingTable:
    """The planned routing table. Raises StopIteration if there is none."""
    return parse_table(data_of(_document(actions, TABLE_CONFIG_MAP), TABLE_KEY))


def entries_of(actions: AccessActions) -> dict[tuple[str, str], KeyEntry]:
    """The planned keyring over all shards, by client and credential."""
    shards = [each for each in actions.documents if each["metadata"]["name"].startswith(KEYRING_SECRET_PREFIX)]
    keys = [entry for shard in shards for entry in parse_keyring(data_of(shard, KEYRING_KEY)).keys]
    return {(entry.client, entry.credential): entry for entry in keys}


def credentials_of(actions: AccessActions) -> EngineCredentials:
    """The planned engine credentials. Raises StopIteration if there are none."""
    return parse_engine_credentials(data_of(_document(actions, ENGINE_CREDENTIALS_SECRET), "engine-credentials.json"))


def _document(actions: AccessActions, name: str) -> Manifest:
    return next(each for each in actions.documents if each["metadata"]["name"] == name)


def in_sync(actions: AccessActions, *routers: str) -> tuple[RouterReport, ...]:
    """Reports of routers that have everything that was planned."""
    table = table_of(actions)
    keyrings = {shard.name: shard.digest for shard in table.keyring_shards}
    return tuple(RouterReport(pod=name, table=table.generation, keyrings=keyrings) for name in routers)


def carried_out(namespace: AccessObserved, actions: AccessActions) -> AccessObserved:
    """The namespace after everything was done as planned."""
    patches = {patch.ref: patch.status for patch in actions.statuses}
    secrets = {
        name: view for name, view in namespace.secrets.items() if Ref("v1", "Secret", name) not in actions.delete
    }
    for made in actions.new_secrets:
        manifest = manifest_with(made, strong(made.ref.name), namespace=namespace.namespace, release=RELEASE.name)
        secrets.setdefault(made.ref.name, _view(manifest))
    gone = set(actions.delete)
    written = {Ref.of(manifest) for manifest in actions.documents}
    return replace(
        namespace,
        keys=tuple(_patched(key, patches) for key in namespace.keys),
        classes=tuple(_patched(workload, patches) for workload in namespace.classes),
        secrets=secrets,
        documents=(namespace.documents | written) - gone,
        stored_table=next(
            (data_of(m, TABLE_KEY) for m in actions.documents if m["kind"] == "ConfigMap"), namespace.stored_table
        ),
    )


def _view(manifest: Manifest) -> SecretView:
    (owner,) = manifest["metadata"]["ownerReferences"]
    return SecretView(
        name=manifest["metadata"]["name"],
        data={key: base64.b64decode(text) for key, text in manifest["data"].items()},
        owner_uid=owner["uid"],
        owner_name=owner["name"],
        generated=GENERATED_LABEL in manifest["metadata"]["labels"],
    )


def _patched(resource: _T, patches: Mapping[Ref, Mapping[str, Any]]) -> _T:
    patch = patches.get(Ref(resource.api_version, resource.kind, resource.name))
    if patch is None:
        return resource
    document = json.loads(resource.model_dump_json(by_alias=True, exclude_none=True))
    document["status"] = merged(document["status"], patch)
    return type(resource).model_validate(document)


def merged(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON merge patch (RFC 7396) as an API server applies it."""
    result = dict(target)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            before = result.get(name)
            result[name] = merged(before if isinstance(before, Mapping) else {}, value)
        else:
            result[name] = value
    return result


def condition(resource: ClientKey | WorkloadClass, type_: str) -> str:
    """A condition of the stored status as `status/reason`; empty if there is none."""
    found = next((each for each in resource.status.conditions if each.type == type_), None)
    return "" if found is None else f"{found.status}/{found.reason}"


def is_document(manifest: Manifest) -> bool:
    """Whether the operator would find the object again as a routing document."""
    return DOCUMENT_LABEL in manifest["metadata"]["labels"]
