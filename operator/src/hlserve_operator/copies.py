"""Copies of what many reconciles look at, and what a change in them makes due.

A pool's own children and pods are read fresh by its reconcile; the copies here only say when. ClientKeys, Secrets and pods of all
pools are taken from the copies, because access needs all of them each time: thousands of objects for the change of one.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from hlserve_api.routing import ENGINE_CREDENTIALS_KEY, ENGINE_CREDENTIALS_SECRET, EngineCredentials
from hlserve_api.v1alpha1 import ClientKey
from hlserve_operator.access.labels import DOCUMENT_LABEL, GENERATED_LABEL
from hlserve_operator.access.observed import SecretView
from hlserve_operator.api import Api
from hlserve_operator.caps import Caps
from hlserve_operator.keys import ACCESS, Key, pool_key
from hlserve_operator.pools.observed import PodView
from hlserve_operator.pools.views import conditions_of, pod_view
from hlserve_operator.render.metadata import CAPS_ANNOTATION, POOL_LABEL, REVISION_LABEL
from hlserve_operator.resources import CUSTOM_API
from hlserve_operator.state import Manifest
from hlserve_operator.watching import Change, Reflector, Rhythm, Watched

_log = logging.getLogger("hlserve_operator.copies")
_T = TypeVar("_T")
CALIBRATION_KEY: Final = "calibration.json"
CHILDREN: Final = (
    ("apps/v1", "Deployment"),
    ("v1", "Service"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
    ("monitoring.coreos.com/v1", "PodMonitor"),
)
"""Kinds of children that are watched for drift by the pool's label; scalers are watched whoever made them."""
SCALERS: Final = (("autoscaling/v2", "HorizontalPodAutoscaler"), ("keda.sh/v1alpha1", "ScaledObject"))
_NOT_OURS: Final = "type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token"


@dataclass(frozen=True, slots=True)
class EngineCopy:
    """One engine pod: its pool, where it is, and what the plan looks at."""

    pool: str
    ip: str
    view: PodView


@dataclass(frozen=True, slots=True)
class ChildCopy:
    """One child of a pool: which version of it, and what its replicas may have in flight."""

    pool: str
    version: str
    revision: str = ""
    """Empty for what all revisions share."""
    caps: Caps | None = None


@dataclass(frozen=True, slots=True)
class RouterCopy:
    """One router pod that is not going."""

    ip: str
    ready: bool


@dataclass(frozen=True, slots=True)
class Scaler:
    """An autoscaler: what it targets, and all of it."""

    target: str
    manifest: Manifest


@dataclass(slots=True, eq=False)
class Copies:
    """All reflectors. `run` keeps them; objects are by name."""

    engines: Reflector[EngineCopy]
    routers: Reflector[RouterCopy]
    keys: Reflector[ClientKey]
    secrets: Reflector[SecretView]
    calibrations: Reflector[str]
    """`calibration.json` of each ConfigMap that has one."""
    credentials: Reflector[EngineCredentials]
    """Only of the one Secret that holds them."""
    scalers: tuple[Reflector[Scaler], ...]
    children: tuple[Reflector[ChildCopy], ...]
    documents: tuple[Reflector[tuple[str, str]], ...]
    """Kind of document and version of each document."""

    def all(self) -> Iterator[Reflector[Any]]:
        """Every reflector."""
        yield from (self.engines, self.routers, self.keys, self.secrets, self.calibrations, self.credentials)
        yield from self.scalers
        yield from self.children
        yield from self.documents

    async def run(self) -> None:
        """Keeps all copies until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self.all():
                group.create_task(reflector.run(), name=f"watch {reflector.watched.kind}")

    async def synced(self) -> None:
        """Returns once each copy was filled once, or is known to be refused or absent."""
        for reflector in self.all():
            await reflector.synced()

    def engines_of(self, pool: str) -> list[EngineCopy]:
        """The engine pods of a pool."""
        return [copy for copy in self.engines.objects.values() if copy.pool == pool]

    def caps_of(self, pool: str) -> dict[str, Caps]:
        """What the replicas of a pool may have in flight, by revision; without those of which it is not known."""
        children = (copy for kind in self.children for copy in kind.objects.values() if copy.pool == pool)
        return {copy.revision: copy.caps for copy in children if copy.caps is not None}

    def credentials_in_force(self) -> EngineCredentials:
        """The engine credentials as they are stored; empty if there are none."""
        return self.credentials.objects.get(ENGINE_CREDENTIALS_SECRET) or EngineCredentials(pools={})


def copies(
    api: Api,
    release: str,
    add: Callable[[Key], None],
    interested: Callable[[str, str], Sequence[Key]],
    rhythm: Rhythm,
    routers_changed: Callable[[], None] = lambda: None,
) -> Copies:
    """The reflectors of a namespace. `add` makes a key due; `interested` says which keys look at a Secret or ConfigMap by name;
    `routers_changed` is told when a router pod came, became ready or went."""

    def engine_changed(change: Change[EngineCopy]) -> None:
        for pool in {copy.pool for copy in (change.before, change.after) if copy is not None}:
            add(pool_key(pool))
        if _seen_by_access(change.before) != _seen_by_access(change.after):
            add(ACCESS)

    def child_changed(change: Change[ChildCopy]) -> None:
        for pool in {copy.pool for copy in (change.before, change.after) if copy is not None}:
            add(pool_key(pool))
        if len({None if copy is None else copy.caps for copy in (change.before, change.after)}) > 1:
            add(ACCESS)

    def scaler_changed(change: Change[Scaler]) -> None:
        for pool in {copy.target for copy in (change.before, change.after) if copy is not None}:
            add(pool_key(pool))

    def secret_changed(change: Change[SecretView]) -> None:
        if any(copy is not None and copy.generated for copy in (change.before, change.after)):
            add(ACCESS)
        for key in interested("Secret", change.name):
            add(key)

    def calibration_changed(change: Change[str]) -> None:
        for key in interested("ConfigMap", change.name):
            add(key)

    def access_changed(_: Change[Any]) -> None:
        add(ACCESS)

    def router_changed(_: Change[RouterCopy]) -> None:
        routers_changed()

    def ignored(_: Change[Any]) -> None:
        """Read each time that they are needed."""

    def reflect(
        kind: tuple[str, str],
        keep: Callable[[Manifest], _T | None],
        changed: Callable[[Change[_T]], None],
        labels: str = "",
        fields: str = "",
    ) -> Reflector[_T]:
        return Reflector(api, Watched(*kind, labels=labels, fields=fields), keep, changed, rhythm)

    routers = f"app.kubernetes.io/instance={release},app.kubernetes.io/component=router"
    others, ours = f"!{DOCUMENT_LABEL}", DOCUMENT_LABEL
    children = tuple(reflect(kind, _child, child_changed, POOL_LABEL) for kind in CHILDREN)
    documents = tuple(reflect(("v1", kind), _document, access_changed, ours) for kind in ("ConfigMap", "Secret"))
    return Copies(
        engines=reflect(("v1", "Pod"), _engine, engine_changed, POOL_LABEL),
        routers=reflect(("v1", "Pod"), _router, router_changed, routers),
        keys=reflect((CUSTOM_API, "ClientKey"), _client_key, access_changed),
        secrets=reflect(("v1", "Secret"), _secret, secret_changed, others, _NOT_OURS),
        calibrations=reflect(("v1", "ConfigMap"), _calibration, calibration_changed, others),
        credentials=reflect(("v1", "Secret"), _credentials, ignored, ours),
        scalers=tuple(reflect(kind, _scaler, scaler_changed) for kind in SCALERS),
        children=children,
        documents=documents,
    )


def _seen_by_access(copy: EngineCopy | None) -> tuple[object, ...]:
    """What of a pod decides whether its pool serves, and which pods get no requests."""
    if copy is None:
        return ()
    view = copy.view
    return (copy.pool, view.uid, view.ready, view.terminating, view.draining_since is None)


def _engine(pod: Manifest) -> EngineCopy:
    return EngineCopy(pod["metadata"]["labels"][POOL_LABEL], (pod.get("status") or {}).get("podIP", ""), pod_view(pod))


def _router(pod: Manifest) -> RouterCopy | None:
    status = pod.get("status") or {}
    if "deletionTimestamp" in pod["metadata"] or not status.get("podIP"):
        return None
    return RouterCopy(status["podIP"], conditions_of(status).get("Ready", {}).get("status") == "True")


def _client_key(manifest: Manifest) -> ClientKey | None:
    try:
        return ClientKey.model_validate(manifest)
    except ValidationError as error:
        # It is not in the keyring then: what cannot be understood must not open a door.
        name, first = manifest["metadata"]["name"], error.errors(include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        _log.error(
            "a ClientKey cannot be read", extra={"fields": {"name": name, "field": field, "error": first["type"]}}
        )
        return None


def _secret(manifest: Manifest) -> SecretView:
    metadata = manifest["metadata"]
    owners: list[dict[str, Any]] = metadata.get("ownerReferences") or []
    owner = next((o for o in owners if o.get("controller")), {})
    return SecretView(
        name=metadata["name"],
        data={name: _decoded(text) for name, text in (manifest.get("data") or {}).items()},
        owner_uid=owner.get("uid", "") if owner.get("kind") == "ClientKey" else "",
        owner_name=owner.get("name", "") if owner.get("kind") == "ClientKey" else "",
        generated=GENERATED_LABEL in (metadata.get("labels") or {}),
    )


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error:
        return b""


def _calibration(manifest: Manifest) -> str | None:
    text = (manifest.get("data") or {}).get(CALIBRATION_KEY)
    return text if isinstance(text, str) else None


def _credentials(manifest: Manifest) -> EngineCredentials | None:
    if manifest["metadata"]["name"] != ENGINE_CREDENTIALS_SECRET:
        return None
    try:
        return EngineCredentials.model_validate_json(
            _decoded((manifest.get("data") or {}).get(ENGINE_CREDENTIALS_KEY, ""))
        )
    except ValidationError:
        return None


def _child(manifest: Manifest) -> ChildCopy:
    metadata = manifest["metadata"]
    labels = metadata["labels"]
    return ChildCopy(
        pool=labels[POOL_LABEL],
        version=metadata["resourceVersion"],
        revision=labels.get(REVISION_LABEL, ""),
        caps=Caps.parsed((metadata.get("annotations") or {}).get(CAPS_ANNOTATION, "")),
    )


def _document(manifest: Manifest) -> tuple[str, str]:
    metadata = manifest["metadata"]
    return metadata["labels"][DOCUMENT_LABEL], metadata["resourceVersion"]


def _scaler(manifest: Manifest) -> Scaler:
    target = (manifest.get("spec") or {}).get("scaleTargetRef") or {}
    return Scaler(str(target.get("name", "")), manifest)
