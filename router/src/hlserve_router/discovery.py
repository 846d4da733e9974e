"""The documents and endpoints as a cluster has them: one reflector for each object and Service that the router needs.

Everything is asked for by name, so that the router's Role can name what it may read (`resourceNames`), Secrets above all.
"""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import httpx
import msgspec

from hlserve_api.routing import (
    ENGINE_CREDENTIALS_KEY,
    ENGINE_CREDENTIALS_SECRET,
    KEYRING_KEY,
    KEYRING_SECRET_PREFIX,
    TABLE_CONFIG_MAP,
    TABLE_KEY,
)
from hlserve_router.kubernetes_api import KubernetesApi
from hlserve_router.reflector import Listener, Objects, Reflector, Rhythm, Watched
from hlserve_router.replicas import EndpointSlice, replicas_of
from hlserve_router.tables import Kind, Tables, service_source

SERVICE_LABEL: Final = "kubernetes.io/service-name"


class _Stored(msgspec.Struct, rename="camel"):
    """A ConfigMap or a Secret."""

    data: dict[str, str] | None = None


_SHARDS: Final = "keyring shards"
_read_stored: Final = msgspec.json.Decoder(_Stored).decode
_read_slice: Final = msgspec.json.Decoder(EndpointSlice).decode


@dataclass(frozen=True, slots=True)
class _Document:
    """Where a document lies."""

    kind: Kind
    resource: str
    name: str
    key: str
    optional: bool = False

    @property
    def title(self) -> str:
        return f"{'ConfigMap' if self.resource == 'configmaps' else 'Secret'} {self.name}"


@dataclass(slots=True, eq=False)
class Discovery:
    """Feeds the tables from the cluster."""

    api: KubernetesApi
    tables: Tables
    shards: int
    rhythm: Rhythm
    _services: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def await_all(self) -> None:
        """The first readiness waits for every document; for the Services of the table see `run`."""
        for document in self._documents():
            self.tables.await_source(document.kind, document.title)

    def _documents(self) -> tuple[_Document, ...]:
        return (
            _Document(
                Kind.ENGINE_CREDENTIALS, "secrets", ENGINE_CREDENTIALS_SECRET, ENGINE_CREDENTIALS_KEY, optional=True
            ),
            *(
                _Document(Kind.KEYRING, "secrets", f"{KEYRING_SECRET_PREFIX}{number}", KEYRING_KEY)
                for number in range(self.shards)
            ),
            _Document(Kind.TABLE, "configmaps", TABLE_CONFIG_MAP, TABLE_KEY),
        )

    async def run(self) -> None:
        """Watches for ever. Ends all watches if one of them meets a fault of our own."""
        async with self.api.client() as client:
            tasks = [asyncio.create_task(self._document_reflector(client, each).run()) for each in self._documents()]
            try:
                while True:
                    self._follow(client)
                    self._changed.clear()
                    waiting = asyncio.create_task(self._changed.wait())
                    running = {*tasks, *self._services.values()}
                    done, _ = await asyncio.wait({waiting, *running}, return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
                    for ended in done & running:
                        ended.result()
            finally:
                running = {*tasks, *self._services.values()}
                self._services.clear()
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    def _follow(self, client: httpx.AsyncClient) -> None:
        """One reflector for each Service of the table in force, none for others."""
        wanted = self.tables.services
        for service in [service for service in self._services if service not in wanted]:
            self._services.pop(service).cancel()
            self.tables.forget_service(service)
        for service in wanted:
            if service not in self._services:
                reflector = self._service_reflector(client, service)
                self._services[service] = asyncio.create_task(reflector.run())

    # documents --------------------------------------------------------------------------------------------------------

    def _document_reflector(self, client: httpx.AsyncClient, document: _Document) -> Reflector:
        watched = Watched(
            self.api.path("api/v1", document.resource),
            {"fieldSelector": f"metadata.name={document.name}"},
            document.title,
        )
        changed = partial(self._document_changed, document)
        return self._reflector(client, watched, document.kind, changed)

    def _document_changed(self, document: _Document, objects: Objects) -> None:
        kind, title = document.kind, document.title
        stored = objects.get(document.name)
        if stored is None:
            if document.optional and not self.tables.knows(title):
                self.tables.absent(kind, title)
            else:
                self._unusable(document, "does not exist")
            return
        text = (_read_stored(stored).data or {}).get(document.key)
        if text is None:
            self._unusable(document, f"has no key {document.key}")
            return
        try:
            data = text.encode() if document.resource == "configmaps" else base64.b64decode(text, validate=True)
        except ValueError:
            self._unusable(document, f"holds {document.key} in no base64")
            return
        self.tables.offer(kind, title, data)
        self._check_shards()
        self._changed.set()

    def _check_shards(self) -> None:
        """A shard that is not read holds keys that would be refused as unknown."""
        read = {f"{KEYRING_SECRET_PREFIX}{number}" for number in range(self.shards)}
        missing = self.tables.shards - read
        if missing:
            number = len(self.tables.shards)
            sentence = (
                f"The table names {number} keyring shards and {self.shards} are read: give --keyring-shards {number}."
            )
            self.tables.refuse(Kind.KEYRING, _SHARDS, sentence)
        else:
            self.tables.problems.pop(_SHARDS, None)

    def _unusable(self, document: _Document, what: str) -> None:
        self.tables.heard(document.kind, document.title)
        sentence = f"{document.title} {what}; the last good one stays in force."
        self.tables.refuse(document.kind, document.title, sentence)

    # endpoints --------------------------------------------------------------------------------------------------------

    def _service_reflector(self, client: httpx.AsyncClient, service: str) -> Reflector:
        watched = Watched(
            self.api.path("apis/discovery.k8s.io/v1", "endpointslices"),
            {"labelSelector": f"{SERVICE_LABEL}={service}"},
            service_source(service),
        )
        return self._reflector(client, watched, Kind.ENDPOINTS, partial(self._slices_changed, service))

    def _slices_changed(self, service: str, objects: Objects) -> None:
        replicas = replicas_of(_read_slice(each) for each in objects.values())
        self.tables.offer_replicas(service, replicas)

    def _reflector(
        self, client: httpx.AsyncClient, watched: Watched, kind: Kind, changed: Callable[[Objects], None]
    ) -> Reflector:
        def restarted(cause: str) -> None:
            self.tables.proxy.metrics.count("hlserve_router_watch_restarts_total", (kind.value, cause))

        listener = Listener(
            changed,
            partial(self.tables.heard, kind, watched.title),
            partial(self.tables.tell, watched.title),
            restarted,
        )
        return Reflector(self.api, client, watched, listener, self.rhythm)
