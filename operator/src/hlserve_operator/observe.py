"""Reads all that a plan looks at into one frozen value: fresh from the API server, and from the copies where that would be too much."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from hlserve_api.routing import TABLE_CONFIG_MAP, TABLE_KEY, EngineCredential
from hlserve_api.v1alpha1 import CustomResource, ServingPool, WorkloadClass
from hlserve_capacity.calibration import Calibration, CalibrationError, parse_calibration
from hlserve_operator.access.derived import Derivations
from hlserve_operator.access.documents import document_refs
from hlserve_operator.access.generated import wanted_secrets
from hlserve_operator.access.labels import DOCUMENT_LABEL, is_ours
from hlserve_operator.access.observed import AccessObserved, PoolFacts
from hlserve_operator.api import Api
from hlserve_operator.board import Board
from hlserve_operator.copies import CHILDREN, SCALERS, Copies
from hlserve_operator.errors import ForbiddenError, NotFoundError, OperatorError
from hlserve_operator.keys import ACCESS, POOL_KIND, Key, pool_key
from hlserve_operator.pools.objects import owned_refs, referenced_secrets
from hlserve_operator.pools.observed import DrainAnswer, OptionalApis, PodView, PoolObserved
from hlserve_operator.pools.views import pod_view, scaler_view
from hlserve_operator.refs import Ref
from hlserve_operator.render.metadata import POOL_LABEL
from hlserve_operator.reports import EnginePod, Reports
from hlserve_operator.resources import CUSTOM_API
from hlserve_operator.schemas import missing_fields, sentence
from hlserve_operator.state import Manifest, Release

_log = logging.getLogger("hlserve_operator.observe")
_R = TypeVar("_R", bound=CustomResource)
LEADER_WORKER_SET: Final = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
SCALED_OBJECT: Final = ("keda.sh/v1alpha1", "ScaledObject")
POD_MONITOR: Final = ("monitoring.coreos.com/v1", "PodMonitor")
_OPTIONAL: Final = (LEADER_WORKER_SET, SCALED_OBJECT, POD_MONITOR)


class UnreadableError(OperatorError):
    """An object of ours is not as its schema says, such as one that was stored under another version of it."""


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """What was seen of a pool, and where its engines are."""

    observed: PoolObserved
    engines: Mapping[str, EnginePod]
    """By pod UID; pods without an address are not among them."""


@dataclass(frozen=True, slots=True)
class AccessSnapshot:
    """What was seen of access, and the documents as they are stored."""

    observed: AccessObserved
    documents: Mapping[Ref, Manifest]
    uids: Mapping[Ref, str]
    """Of pools, classes and keys, for events."""


@dataclass(slots=True, eq=False)
class Interest:
    """Which keys looked at which Secrets and ConfigMaps: a change of one makes them due, also while it does not exist."""

    _names: dict[Key, frozenset[tuple[str, str]]] = field(default_factory=dict)

    def note(self, key: Key, names: Iterable[tuple[str, str]]) -> None:
        """The key looks at these, by kind and name, and at nothing else."""
        self._names[key] = frozenset(names)

    def forget(self, key: Key) -> None:
        """The key's object is gone."""
        self._names.pop(key, None)

    def interested(self, kind: str, name: str) -> Sequence[Key]:
        """The keys that look at it."""
        return [key for key, names in self._names.items() if (kind, name) in names]


@dataclass(slots=True, eq=False)
class Observer:
    """Reads for both plans."""

    api: Api
    copies: Copies
    board: Board
    reports: Reports
    interest: Interest
    release: Release
    derivations: Derivations = field(default_factory=Derivations)
    pruned: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields that the installed definition of a kind does not know, by kind."""
    denied: dict[Key, str] = field(default_factory=dict)
    """The API server's words of the last call for a key that it refused for lack of rights."""

    async def look_at_schemas(self) -> None:
        """Finds out which of our fields the installed definitions lack. Raises ApiError."""
        try:
            found = missing_fields(await self.api.schema(CUSTOM_API))
        except NotFoundError:
            found = {}
        self.pruned = {kind: fields for kind, fields in found.items() if fields}
        for kind, fields in self.pruned.items():
            _log.warning(sentence(kind, fields))

    async def pool(self, name: str) -> PoolSnapshot | None:
        """Everything about a pool; None if there is none. Raises ApiError and UnreadableError."""
        key = pool_key(name)
        manifest = await self.api.find(Ref(CUSTOM_API, POOL_KIND, name))
        if manifest is None:
            self.interest.forget(key)
            self.board.forget(name)
            self.denied.pop(key, None)
            return None
        pool = _parse(ServingPool, manifest)
        secrets = referenced_secrets(pool)
        calibration_ref = pool.spec.calibration_ref
        watched = {("Secret", secret) for secret in secrets}
        if calibration_ref is not None:
            watched.add(("ConfigMap", calibration_ref.name))
        self.interest.note(key, watched)
        served = dict(
            zip(_OPTIONAL, await asyncio.gather(*(self.api.serves(*kind) for kind in _OPTIONAL)), strict=True)
        )
        labels = f"{POOL_LABEL}={name}"
        kinds = [("v1", "Pod"), *(kind for kind in CHILDREN if served.get(kind, True))]
        listings = await asyncio.gather(*(self.api.list(*kind, labels=labels) for kind in kinds))
        pods, objects = listings[0].items, {Ref.of(m): m for each in listings[1:] for m in each.items}
        scalers = [scaler.manifest for copy in self.copies.scalers for scaler in copy.objects.values()]
        objects |= {Ref.of(m): m for m in scalers if m["metadata"]["name"] == name}
        # What stands under a name that the pool needs may be somebody else's, without our label.
        missing = [
            ref
            for ref in owned_refs(pool)
            if ref not in objects
            and (ref.api_version, ref.kind) not in SCALERS
            and served.get((ref.api_version, ref.kind), True)
        ]
        for found in await asyncio.gather(*(self.api.find(ref) for ref in missing)):
            if found is not None:
                objects[Ref.of(found)] = found
        calibration, problem = self._calibration(pool)
        views = tuple(pod_view(pod) for pod in pods)
        engines = self._engines(pool, pods)
        return PoolSnapshot(
            PoolObserved(
                pool=pool,
                objects=objects,
                pods=views,
                calibration=calibration,
                calibration_problem=problem,
                secrets={
                    secret: frozenset(self.copies.secrets.objects[secret].data)
                    for secret in secrets
                    if secret in self.copies.secrets.objects
                },
                optional_apis=OptionalApis(
                    leader_worker_set=served[LEADER_WORKER_SET], keda=served[SCALED_OBJECT], pod_monitor=served[POD_MONITOR]
                ),
                drain_answers=await self._drain_answers(views, engines),
                routers=self.board.view(name),
                scalers=tuple(view for view in (scaler_view(m, pool) for m in scalers) if view is not None),
                pruned_fields=self.pruned.get(POOL_KIND, ()),
                denied=self.denied.get(key, ""),
            ),
            engines,
        )  # fmt: skip

    async def access(self) -> AccessSnapshot:
        """Everything about access. What cannot be read for lack of rights is named in it. Raises the other ApiErrors."""
        denied: dict[str, str] = {}
        pools = await self._all(ServingPool, denied)
        classes = await self._all(WorkloadClass, denied)
        for name, copy in (("clientkeys", self.copies.keys), ("secrets", self.copies.secrets)):
            if copy.denied or copy.absent:
                # A kind that is not served for a moment must not empty the keyring either.
                denied[name] = copy.denied or f"The cluster does not serve {name}: install the hlserve-crds release."
        self.derivations.keep_only(pools)
        keys = tuple(self.copies.keys.objects[name] for name in sorted(self.copies.keys.objects))
        wanted = wanted_secrets(keys, pools)
        self.interest.note(ACCESS, {("Secret", name) for name in wanted} | _calibrations(pools))
        stored = [
            manifest
            for kind in ("ConfigMap", "Secret")
            for manifest in (await self.api.list("v1", kind, labels=DOCUMENT_LABEL)).items
        ]
        documents = {Ref.of(manifest): manifest for manifest in stored}
        # Under the name of a document that is not there may stand something else.
        missing = [ref for ref in document_refs(self.release.keyring_shards) if ref not in documents]
        others = [found for found in await asyncio.gather(*map(self.api.find, missing)) if found is not None]
        documents |= {Ref.of(found): found for found in others if is_ours(found)}
        table = (documents.get(Ref("v1", "ConfigMap", TABLE_CONFIG_MAP)) or {}).get("data", {}).get(TABLE_KEY)
        self.board.saw_table(table)
        secrets = self.copies.secrets.objects
        return AccessSnapshot(
            AccessObserved(
                namespace=self.api.namespace,
                pools=tuple(self._facts(pool) for pool in pools),
                classes=classes,
                keys=keys,
                secrets={name: view for name, view in secrets.items() if view.generated or name in wanted},
                reports=self.board.reports,
                documents=frozenset(documents),
                taken=frozenset(Ref.of(found) for found in others if not is_ours(found)),
                stored_table=table,
                denied=denied,
                pruned={kind: sentence(kind, fields) for kind, fields in self.pruned.items()},
            ),
            documents,
            {Ref(r.api_version, r.kind, r.name): r.metadata.uid for r in (*pools, *classes, *keys)},
        )

    async def _all(self, kind: type[_R], denied: dict[str, str]) -> tuple[_R, ...]:
        plural = kind.names.plural
        try:
            items = (await self.api.list(CUSTOM_API, kind.names.kind)).items
        except ForbiddenError as error:
            denied[plural] = str(error)
            return ()
        except NotFoundError:
            denied[plural] = f"The cluster does not serve {plural}: install the hlserve-crds release."
            return ()
        found: list[_R] = []
        for item in items:
            try:
                found.append(_parse(kind, item))
            except UnreadableError as error:
                _log.error("an object cannot be read", extra={"fields": {"error": str(error)}})
        return tuple(found)

    def _facts(self, pool: ServingPool) -> PoolFacts:
        engines = [copy.view for copy in self.copies.engines_of(pool.name) if copy.view.worker == 0]
        calibration, _ = self._calibration(pool)
        caps = self.copies.caps_of(pool.name)
        return PoolFacts(
            pool=pool,
            derived=self.derivations.of(pool, calibration),
            ready_replicas=sum(1 for e in engines if e.ready and not e.terminating and e.draining_since is None),
            draining=tuple(sorted(e.uid for e in engines if e.draining_since is not None)),
            caps={e.uid: caps[e.revision] for e in engines if e.revision in caps},
        )

    def _calibration(self, pool: ServingPool) -> tuple[Calibration | None, str]:
        reference = pool.spec.calibration_ref
        if reference is None:
            return None, ""
        text = self.copies.calibrations.objects.get(reference.name)
        if text is None:
            return None, f"there is no ConfigMap {reference.name} with the key calibration.json"
        try:
            return parse_calibration(text), ""
        except CalibrationError as error:
            return None, str(error)

    def _engines(self, pool: ServingPool, pods: Iterable[Manifest]) -> dict[str, EnginePod]:
        credential = self.copies.credentials_in_force().pools.get(pool.name) or EngineCredential()
        name = f"{pool.name}.{self.api.namespace}.svc"
        addresses = {pod["metadata"]["uid"]: (pod.get("status") or {}).get("podIP", "") for pod in pods}
        return {
            uid: EnginePod(uid=uid, ip=ip, credential=credential, server_name=name)
            for uid, ip in addresses.items()
            if ip
        }

    async def _drain_answers(
        self, views: Iterable[PodView], engines: Mapping[str, EnginePod]
    ) -> Mapping[str, DrainAnswer]:
        """Asks the engines that are marked. Asking is telling: one that was restarted meanwhile drains again."""
        marked = [
            engines[view.uid]
            for view in views
            if view.draining_since is not None and view.started and view.worker == 0 and view.uid in engines
        ]
        answers = await self.reports.drain(marked, drain=True)
        return {
            a.pod_uid: DrainAnswer(running=a.running, queued=a.queued, draining=a.draining)
            for a in answers
            if a.problem is None
        }


def _calibrations(pools: Iterable[ServingPool]) -> set[tuple[str, str]]:
    return {("ConfigMap", pool.spec.calibration_ref.name) for pool in pools if pool.spec.calibration_ref is not None}


def _parse(kind: type[_R], manifest: Mapping[str, Any]) -> _R:
    try:
        return kind.model_validate(manifest)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        field_name = ".".join(str(part) for part in first["loc"])
        raise UnreadableError(
            f"{kind.names.kind} {manifest['metadata']['name']}: {field_name}: {first['msg']}. "
            "Upgrade the hlserve-crds release, and correct the object."
        ) from error
