"""From classes, keys, pools and what routers say to the documents, Secrets and statuses of access. Pure, and planned twice the same.

Documents are planned whole each time; statuses in portions, so that the revocation of one key never waits for thousands of them.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

from hlserve_api.compile import overcommitments
from hlserve_api.conditions import ConditionReason
from hlserve_api.routing import ENGINE_CREDENTIALS_SECRET, TABLE_CONFIG_MAP
from hlserve_api.v1alpha1.client_key import ClientKey
from hlserve_api.v1alpha1.meta import API_VERSION, Condition, ConditionStatus, CustomResource
from hlserve_api.v1alpha1.workload_class import WorkloadClass
from hlserve_operator.access.actions import AccessActions, AccessEvent, StatusPatch
from hlserve_operator.access.class_status import class_status
from hlserve_operator.access.documents import (
    LinkProblem,
    engine_credentials,
    keyring_secrets,
    stored_shards,
    table_config_map,
    taken_message,
)
from hlserve_operator.access.findings import Finding, Keys, compile_keys
from hlserve_operator.access.generated import leftover_secrets, new_secrets
from hlserve_operator.access.key_status import KeyFacts, key_status, next_turn
from hlserve_operator.access.observed import AccessObserved, PoolFacts
from hlserve_operator.access.syncing import NO_ENTRIES, Entries, entries_by_client, was_complete
from hlserve_operator.refs import Ref
from hlserve_operator.state import Manifest, Release
from hlserve_operator.verdicts import changed_conditions, merge_patch

STATUSES_A_RUN: Final = 200
"""Status writes of one run. At 5 ms each they take a second, a fifth of the time in which a revocation must reach the routers."""
SYNCING_SECONDS: Final = 1.0
"""Pause before routers are asked again what they know."""
TAKEN_SECONDS: Final = 10.0
"""Pause before it is looked whether a document's name is free."""
FIGURES_SECONDS: Final = 10.0
"""Pause before more statuses are written of which only figures change."""
MAKING_GRACE: Final = timedelta(seconds=30)
"""How long a new ClientKey may be without its Secret before its status says so."""

_QUIET: Final = frozenset({ConditionReason.ROUTER_SYNCING, ConditionReason.SUSPENDED, ConditionReason.POOL_NOT_READY})
"""Reasons that pass by themselves or were asked for: no event."""
_Resource = TypeVar("_Resource", bound=CustomResource)


@dataclass(frozen=True, slots=True)
class _Live:
    """The objects that are not being deleted."""

    pools: tuple[PoolFacts, ...]
    classes: tuple[WorkloadClass, ...]
    keys: tuple[ClientKey, ...]


def plan_access(observed: AccessObserved, release: Release, now: datetime) -> AccessActions:
    """What is to be done about access. What could not be read (`observed.denied`) is left as it is, with all that hangs on it."""
    live = _Live(
        tuple(facts for facts in observed.pools if facts.pool.metadata.deletion_timestamp is None),
        _alive(observed.classes),
        _alive(observed.keys),
    )
    keys_denied = observed.denied.get("clientkeys") or observed.denied.get("secrets")
    keys = None
    if keys_denied is None:
        keys = compile_keys(live.keys, observed.secrets, now=now, shards=release.keyring_shards)
    planned, problems = _documents(observed, live, keys, release)
    documents = tuple(manifest for manifest in planned if Ref.of(manifest) not in observed.taken)
    making = () if keys is None else tuple(new_secrets(live.keys, observed.secrets))
    patches = [*_class_patches(observed, live, now), *_key_patches(observed, live, keys, now)]
    # Sorting is stable: by name within each group, those with a turned condition first.
    patches.sort(key=lambda patch: not patch.conditions)
    chosen = tuple(patches[:STATUSES_A_RUN])
    return AccessActions(
        documents=documents,
        new_secrets=making,
        delete=tuple(_leftovers(observed, live, keys, planned)),
        statuses=chosen,
        events=(*_events(chosen), *_link_events((*problems, *_taken_credentials(observed, live)))),
        requeue_after_seconds=_requeue(live, keys, patches, bool(making), observed, now),
    )


def _alive(resources: Sequence[_Resource]) -> tuple[_Resource, ...]:
    """Those that stay, by name. One that is being deleted counts as gone at once, whatever its deletion waits for."""
    return tuple(sorted((r for r in resources if r.metadata.deletion_timestamp is None), key=lambda r: r.name))


def _documents(
    observed: AccessObserved, live: _Live, keys: Keys | None, release: Release
) -> tuple[tuple[Manifest, ...], tuple[LinkProblem, ...]]:
    """Keyring first, so that a revocation never waits; then credentials, which the pools of a new table may need; then the table."""
    documents: list[Manifest] = []
    problems: tuple[LinkProblem, ...] = ()
    shards = stored_shards(observed.stored_table)
    if keys is not None:
        documents += keyring_secrets(keys.compiled, release, observed.namespace)
        shards = keys.compiled.shards
    if not observed.denied.keys() & {"servingpools", "secrets"}:
        pools = [facts.pool for facts in live.pools]
        credentials, problems = engine_credentials(pools, observed.secrets, release, observed.namespace)
        documents.append(credentials)
    if not observed.denied.keys() & {"servingpools", "workloadclasses"}:
        documents.append(table_config_map(live.pools, live.classes, shards, release, observed.namespace))
    return tuple(documents), problems


def _leftovers(
    observed: AccessObserved, live: _Live, keys: Keys | None, documents: Iterable[Manifest]
) -> Iterator[Ref]:
    """Nothing goes while anything could not be read."""
    if observed.denied or keys is None:
        return
    yield from sorted(observed.documents - {Ref.of(manifest) for manifest in documents})
    yield from leftover_secrets(live.keys, observed)


def _class_patches(observed: AccessObserved, live: _Live, now: datetime) -> Iterator[StatusPatch]:
    if observed.denied.keys() & {"servingpools", "workloadclasses"}:
        return
    clients = Counter(key.spec.workload_class_ref.name for key in live.keys)
    promises = tuple(overcommitments(live.classes, [facts.pool for facts in live.pools]))
    for workload in live.classes:
        counted = clients[workload.name] if "clientkeys" not in observed.denied else workload.status.client_count or 0
        status = class_status(
            workload,
            pools=live.pools,
            promises=promises,
            clients=counted,
            pruned=observed.pruned.get(workload.kind),
            taken=_taken(observed, {TABLE_CONFIG_MAP}),
            now=now,
        )
        patch = merge_patch(workload.status, status)
        if patch is not None:
            yield _patch(workload, patch, workload.status.conditions, status.conditions)


def _key_patches(observed: AccessObserved, live: _Live, keys: Keys | None, now: datetime) -> Iterator[StatusPatch]:
    classes = {workload.name for workload in live.classes}
    used = last_used(observed)
    findings: dict[str, list[Finding]] = defaultdict(list)
    entries: Mapping[str, Entries] = {}
    generations: Mapping[str, str] = {}
    if keys is not None:
        names = [shard.name for shard in keys.compiled.shards]
        entries = entries_by_client(dict(zip(names, keys.compiled.keyrings, strict=True)))
        generations = {shard.name: shard.digest for shard in keys.compiled.shards}
        for finding in keys.findings:
            findings[finding.client].append(finding)
    making = {action.owner.name for action in new_secrets(live.keys, observed.secrets)}
    for key in live.keys:
        if key.name in making and _is_new(key, now):
            continue
        status = key_status(
            key,
            KeyFacts(
                entries=entries.get(key.name, NO_ENTRIES),
                findings=tuple(findings[key.name]),
                class_exists="workloadclasses" in observed.denied or key.spec.workload_class_ref.name in classes,
                generations=generations,
                reports=observed.reports,
                last_used=used.get(key.name),
                taken=_taken(observed, entries.get(key.name, NO_ENTRIES).shards),
                denied=observed.denied.get("clientkeys") or observed.denied.get("secrets"),
                pruned=observed.pruned.get(key.kind),
                now=now,
            ),
        )
        patch = merge_patch(key.status, status)
        if patch is not None:
            yield _patch(key, patch, key.status.conditions, status.conditions)


def _taken(observed: AccessObserved, names: Collection[str]) -> str | None:
    taken = [ref for ref in observed.taken if ref.name in names]
    return taken_message(taken) if taken else None


def _taken_credentials(observed: AccessObserved, live: _Live) -> Iterator[LinkProblem]:
    message = _taken(observed, {ENGINE_CREDENTIALS_SECRET})
    for facts in live.pools if message is not None else ():
        engine = facts.pool.spec.engine
        if message is not None and (engine.tls is not None or engine.api_key_secret_ref is not None):
            yield LinkProblem(facts.pool.name, message, ConditionReason.NAME_TAKEN)


def _is_new(key: ClientKey, now: datetime) -> bool:
    made = key.metadata.creation_timestamp
    return made is not None and now - made < MAKING_GRACE


def last_used(observed: AccessObserved) -> dict[str, datetime]:
    """Last request of each ClientKey over all routers."""
    latest: dict[str, datetime] = {}
    for report in observed.reports:
        for client, time in report.keys_last_used.items():
            latest[client] = max(time, latest.get(client, time))
    return latest


def _patch(
    resource: CustomResource, patch: Mapping[str, object], former: Sequence[Condition], wanted: Sequence[Condition]
) -> StatusPatch:
    return StatusPatch(
        ref=Ref(resource.api_version, resource.kind, resource.name),
        status=patch,
        conditions=changed_conditions(former, wanted),
    )


def _events(patches: Iterable[StatusPatch]) -> Iterator[AccessEvent]:
    """One for each condition that turned bad, with the words of the status."""
    for patch in patches:
        for condition in patch.status.get("conditions", ()):
            changed = condition["type"] in patch.conditions
            if changed and condition["status"] == ConditionStatus.FALSE and condition["reason"] not in _QUIET:
                yield AccessEvent(ref=patch.ref, reason=condition["reason"], message=condition["message"])


def _link_events(problems: Iterable[LinkProblem]) -> Iterator[AccessEvent]:
    for problem in problems:
        ref = Ref(API_VERSION, "ServingPool", problem.pool)
        yield AccessEvent(ref=ref, reason=problem.reason, message=problem.message)


def _requeue(
    live: _Live,
    keys: Keys | None,
    patches: Sequence[StatusPatch],
    making: bool,
    observed: AccessObserved,
    now: datetime,
) -> float | None:
    pauses: list[float] = []
    if making:
        pauses.append(0.0)
    if observed.taken:
        # Nothing tells of it when somebody else's object goes.
        pauses.append(TAKEN_SECONDS)
    if len(patches) > STATUSES_A_RUN:
        pauses.append(0.0 if patches[STATUSES_A_RUN].conditions else FIGURES_SECONDS)
    if (
        keys is not None
        and observed.reports
        and any(not was_complete(key.status) for key in _callable(live.keys, keys))
    ):
        pauses.append(SYNCING_SECONDS)
    turn = next_turn(live.keys, now)
    if turn is not None:
        pauses.append((turn - now).total_seconds())
    return min(pauses, default=None)


def _callable(live: Iterable[ClientKey], keys: Keys) -> Iterator[ClientKey]:
    """The keys of which the keyring holds something."""
    held = {entry.client for keyring in keys.compiled.keyrings for entry in keyring.keys}
    return (key for key in live if key.name in held)
