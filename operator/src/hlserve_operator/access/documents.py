"""The objects that routers read, as manifests: keyring shards, engine credentials, routing table. Pure.

Nothing owns them. They are made from all custom resources, which stay when the release goes, and routers that come back read them
before an operator leads. An owner, the operator's Deployment say, would take the keys from running routers whenever it is replaced.
"""

import base64
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from pydantic import ValidationError

from hlserve_api.compile import CompiledKeys, PoolRuntime, compile_table, document_json
from hlserve_api.compile.canonical import generation_of
from hlserve_api.conditions import ConditionReason
from hlserve_api.routing import (
    ENGINE_CREDENTIALS_KEY,
    ENGINE_CREDENTIALS_SECRET,
    KEYRING_KEY,
    KEYRING_SECRET_PREFIX,
    TABLE_CONFIG_MAP,
    TABLE_KEY,
    Document,
    EngineCredential,
    EngineCredentials,
    EngineTrust,
    ReplicaCaps,
    RoutingTable,
    ShardDigest,
)
from hlserve_api.v1alpha1.meta import SecretKeyReference
from hlserve_api.v1alpha1.serving_pool import ServingPool
from hlserve_api.v1alpha1.workload_class import WorkloadClass
from hlserve_operator.access.labels import DOCUMENT_LABEL, ENGINE_CREDENTIALS, KEYRING, TABLE, release_labels
from hlserve_operator.access.observed import PoolFacts, SecretView
from hlserve_operator.caps import Caps
from hlserve_operator.refs import Ref
from hlserve_operator.state import Manifest, Release

_CA_KEY = "ca.crt"


@dataclass(frozen=True, slots=True)
class LinkProblem:
    """Why the link of routers to a pool's engines lacks something."""

    pool: str
    message: str
    reason: ConditionReason = ConditionReason.SECRET_MISSING


def document_refs(shards: int) -> tuple[Ref, ...]:
    """Every document of a release, in the order in which they are written."""
    names = (*(f"{KEYRING_SECRET_PREFIX}{number}" for number in range(shards)), ENGINE_CREDENTIALS_SECRET)
    return (*(Ref("v1", "Secret", name) for name in names), Ref("v1", "ConfigMap", TABLE_CONFIG_MAP))


def taken_message(taken: Iterable[Ref]) -> str:
    """What to do about documents whose names are somebody else's."""
    names = ", ".join(str(ref) for ref in sorted(taken))
    return (
        f"{names} exists already and is not the operator's, so routers do not get what belongs there: rename or delete it, or "
        "install the release into a namespace of its own."
    )


def keyring_secrets(keys: CompiledKeys, release: Release, namespace: str) -> tuple[Manifest, ...]:
    """One Secret for each shard, empty ones too: routers wait for all of them."""
    return tuple(
        _secret(f"{KEYRING_SECRET_PREFIX}{number}", KEYRING_KEY, keyring, KEYRING, release, namespace)
        for number, keyring in enumerate(keys.keyrings)
    )


def stored_shards(text: str | None) -> tuple[ShardDigest, ...]:
    """The shards that a stored table names; none if there is no table, or none that can be read."""
    if text is None:
        return ()
    try:
        return RoutingTable.model_validate_json(text).keyring_shards
    except ValidationError:
        return ()


def table_config_map(
    pools: Sequence[PoolFacts],
    classes: Sequence[WorkloadClass],
    shards: Sequence[ShardDigest],
    release: Release,
    namespace: str,
) -> Manifest:
    """The routing table's ConfigMap."""
    table = compile_table([(facts.pool, _runtime(facts)) for facts in pools], classes, shards=shards)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(TABLE_CONFIG_MAP, TABLE, release, namespace),
        "data": {TABLE_KEY: document_json(table)},
    }


def _runtime(facts: PoolFacts) -> PoolRuntime:
    derived = facts.derived
    return PoolRuntime(
        max_in_flight=derived.max_in_flight,
        in_flight_tokens=derived.in_flight_tokens,
        kv_tokens=derived.kv_tokens,
        queue_ttl_milliseconds=derived.queue_ttl_milliseconds,
        context_length=derived.context_length,
        priority_order=derived.priority_order,
        service=facts.pool.name,
        draining=facts.draining,
        replica_caps=tuple(_other_caps(facts)),
    )


def _other_caps(facts: PoolFacts) -> Iterator[ReplicaCaps]:
    """The caps that are not the newest, each once, with the pods that they are of."""
    newest = Caps.of(facts.derived)
    pods: dict[Caps, list[str]] = defaultdict(list)
    for uid, caps in sorted(facts.caps.items()):
        if caps != newest:
            pods[caps].append(uid)
    for caps, uids in sorted(pods.items(), key=lambda item: item[1]):
        yield ReplicaCaps(endpoints=tuple(uids), **asdict(caps))


def engine_credentials(
    pools: Sequence[ServingPool], secrets: Mapping[str, SecretView], release: Release, namespace: str
) -> tuple[Manifest, tuple[LinkProblem, ...]]:
    """The Secret by which routers are served by engines, and what is missing for it.

    A pool whose engines speak TLS keeps an entry without its CA: routers then trust what their system trusts, and refuse the
    engine rather than speak to it in the clear.
    """
    entries: dict[str, EngineCredential] = {}
    problems: list[LinkProblem] = []
    for pool in sorted(pools, key=lambda each: each.name):
        engine = pool.spec.engine
        api_key, trust = "", None
        if engine.api_key_secret_ref is not None:
            api_key = _api_key(pool, engine.api_key_secret_ref, secrets, problems)
        if engine.tls is not None:
            reference = engine.tls.ca_secret_ref or SecretKeyReference(name=engine.tls.secret_name, key=_CA_KEY)
            trust = EngineTrust(ca=_text(pool, reference, secrets, problems))
        if api_key or trust is not None:
            entries[pool.name] = EngineCredential(api_key=api_key, tls=trust)
    document = EngineCredentials(pools=entries)
    document = document.model_copy(update={"generation": generation_of(document)})
    return (
        _secret(ENGINE_CREDENTIALS_SECRET, ENGINE_CREDENTIALS_KEY, document, ENGINE_CREDENTIALS, release, namespace),
        tuple(problems),
    )


def _api_key(
    pool: ServingPool,
    reference: SecretKeyReference,
    secrets: Mapping[str, SecretView],
    problems: list[LinkProblem],
) -> str:
    text = _text(pool, reference, secrets, problems).strip()
    try:
        EngineCredential(api_key=text)
    except ValidationError:
        problems.append(
            LinkProblem(
                pool.name,
                f"the engine key in Secret {reference.name}, key {reference.key}, must be at most 4096 printable ASCII characters "
                "without spaces: store another one",
                ConditionReason.MALFORMED_KEY,
            )
        )
        return ""
    return text


def _text(
    pool: ServingPool,
    reference: SecretKeyReference,
    secrets: Mapping[str, SecretView],
    problems: list[LinkProblem],
) -> str:
    view = secrets.get(reference.name)
    data = None if view is None else view.data.get(reference.key)
    if data is None:
        problems.append(
            LinkProblem(
                pool.name,
                f"routers cannot reach the engines of this pool as they should: there is no Secret {reference.name} with the key "
                f"{reference.key}; create it, or correct spec.engine",
            )
        )
        return ""
    return data.decode(errors="replace")


def _secret(name: str, key: str, document: Document, kind: str, release: Release, namespace: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(name, kind, release, namespace),
        "type": "Opaque",
        "data": {key: base64.b64encode(document_json(document).encode()).decode()},
    }


def _metadata(name: str, kind: str, release: Release, namespace: str) -> dict[str, object]:
    return {
        "name": name,
        "namespace": namespace,
        "labels": {**release_labels(release.name), DOCUMENT_LABEL: kind},
    }
