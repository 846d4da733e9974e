"""A pretended API server on a real socket: lists and watches with versions, bookmarks, 410, silence, closed streams and outages.

It knows ConfigMaps, Secrets and EndpointSlices of one namespace, and speaks just enough HTTP/1.1 and of the Kubernetes API
for a reader of them. Every request must show the token.
"""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from hlserve_api.routing import (
    ENGINE_CREDENTIALS_KEY,
    ENGINE_CREDENTIALS_SECRET,
    KEYRING_KEY,
    KEYRING_SECRET_PREFIX,
    TABLE_CONFIG_MAP,
    TABLE_KEY,
    Document,
)
from hlserve_router.discovery import SERVICE_LABEL

NAMESPACE: Final = "serving"
TOKEN: Final = "a-token-of-a-service-account"
_PREFIXES: Final = {
    "configmaps": f"/api/v1/namespaces/{NAMESPACE}/configmaps",
    "secrets": f"/api/v1/namespaces/{NAMESPACE}/secrets",
    "endpointslices": f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices",
}
Object = dict[str, Any]


class Mood(StrEnum):
    """How the server treats requests."""

    WELL = "well"
    SILENT = "silent"
    """Watches stay open and bring nothing."""
    HANGS = "hangs"
    """Requests are taken and not answered."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod as an EndpointSlice lists it."""

    uid: str
    address: str = "127.0.0.1"
    ready: bool | None = True
    serving: bool | None = True
    terminating: bool | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as the server got it."""

    path: str
    query: Mapping[str, str]

    @property
    def watches(self) -> bool:
        """True for a watch."""
        return self.query.get("watch") == "1"


@dataclass(slots=True, eq=False)
class PretendedCluster:
    """The server. What a test does to the objects is what the cluster did."""

    tls: ssl.SSLContext | None = None
    bookmark_seconds: float = 0.05
    mood: Mood = Mood.WELL
    refuses: dict[str, int] = field(default_factory=dict)
    """Resource -> status that every request for it gets."""
    asked: list[Asked] = field(default_factory=list)
    port: int = 0
    _version: int = 100
    _oldest: int = 0
    _objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    _history: list[tuple[int, str, str, Object]] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _server: asyncio.Server | None = None
    _connections: set[asyncio.StreamWriter] = field(default_factory=set)
    _watching: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Address of the API server."""
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listens on a free port, or again on its former one."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """The API server is down: nothing listens and every connection breaks."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._connections):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def settings(self, folder: Path) -> dict[str, Any]:
        """Settings of a router that reads this cluster, with short pauses."""
        (folder / "token").write_text(TOKEN)
        return {
            "kubernetes": True, "kubernetes_server": self.url, "kubernetes_token_file": folder / "token",
            "namespace": NAMESPACE, "keyring_shards": 1, "kubernetes_retry_max_seconds": 0.1, "relist_seconds": 30,
        }  # fmt: skip

    # what happens on the cluster --------------------------------------------------------------------------------------

    async def table(self, table: Document | str) -> None:
        """The operator writes the table."""
        await self.put("configmaps", TABLE_CONFIG_MAP, {"data": {TABLE_KEY: _text(table)}})

    async def keyring(self, keyring: Document | str, number: int = 0) -> None:
        """The operator writes a keyring shard."""
        await self._secret(f"{KEYRING_SECRET_PREFIX}{number}", KEYRING_KEY, _text(keyring))

    async def credentials(self, credentials: Document | str) -> None:
        """The operator writes the engine credentials."""
        await self._secret(ENGINE_CREDENTIALS_SECRET, ENGINE_CREDENTIALS_KEY, _text(credentials))

    async def _secret(self, name: str, key: str, text: str) -> None:
        await self.put("secrets", name, {"data": {key: base64.b64encode(text.encode()).decode()}})

    async def slice(
        self, service: str, name: str, *pods: Pod, port: int, family: str = "IPv4", port_name: str = "http"
    ) -> None:
        """An EndpointSlice of a Service is made or changed."""
        endpoints = [
            {
                "addresses": [pod.address],
                "conditions": {"ready": pod.ready, "serving": pod.serving, "terminating": pod.terminating},
                "targetRef": {"kind": "Pod", "name": f"pod-{pod.uid}", "namespace": NAMESPACE, "uid": pod.uid},
            }
            for pod in pods
        ]
        ports = [{"name": port_name, "port": port, "protocol": "TCP"}]
        body = {"addressType": family, "endpoints": endpoints, "ports": ports}
        await self.put("endpointslices", name, body, {SERVICE_LABEL: service})

    async def put(self, resource: str, name: str, body: Object, labels: Mapping[str, str] | None = None) -> None:
        """Any object is made or changed."""
        kind = "MODIFIED" if (resource, name) in self._objects else "ADDED"
        self._version += 1
        metadata = {
            "name": name,
            "namespace": NAMESPACE,
            "resourceVersion": str(self._version),
            "labels": dict(labels or {}),
        }
        self._objects[resource, name] = {"metadata": metadata, **body}
        await self._tell(kind, resource, self._objects[resource, name])

    async def delete(self, resource: str, name: str) -> None:
        """An object is deleted."""
        self._version += 1
        gone = self._objects.pop((resource, name))
        gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self._version)}}
        await self._tell("DELETED", resource, gone)

    async def _tell(self, kind: str, resource: str, value: Object) -> None:
        self._history.append((self._version, kind, resource, value))
        async with self._news:
            self._news.notify_all()

    async def forget_history(self) -> None:
        """Versions before now can no longer be watched from, and watches in progress end with 410."""
        self._version += 1
        self._oldest = self._version
        async with self._news:
            self._news.notify_all()

    def close_watches(self) -> None:
        """Every watch ends, as at a restart of the API server."""
        for writer in tuple(self._watching):
            writer.close()

    @contextmanager
    def closed_watches(self) -> Iterator[None]:
        """Watches end, and no new one begins until the block is left."""
        self.close_watches()
        former, self.mood = self.mood, Mood.HANGS
        try:
            yield
        finally:
            self.mood = former

    @property
    def watching(self) -> int:
        """Watches that are open."""
        return len(self._watching)

    def count(self, *, watches: bool) -> int:
        """Lists, or watches, so far."""
        return sum(asked.watches is watches for asked in self.asked)

    # the server -------------------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._connections.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._serve(reader, writer):
                    pass
        finally:
            self._connections.discard(writer)
            self._watching.discard(writer)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")[:-2]
        parts = urlsplit(first.split(" ")[1])
        asked = Asked(parts.path, dict(parse_qsl(parts.query)))
        self.asked.append(asked)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while self.mood is Mood.HANGS:  # noqa: ASYNC110 - moods have no event
            await asyncio.sleep(0.01)
        resource = next((name for name, prefix in _PREFIXES.items() if prefix == asked.path), "")
        status = (
            401
            if headers.get("authorization") != f"Bearer {TOKEN}"
            else self.refuses.get(resource, 200 if resource else 404)
        )
        if status != 200:
            await _answer(writer, status, {"kind": "Status", "code": status, "message": f"refused {TOKEN}"})
            return True
        if not asked.watches:
            items = [
                each for (kind, _), each in self._objects.items() if kind == resource and _selected(each, asked.query)
            ]
            await _answer(writer, 200, {"metadata": {"resourceVersion": str(self._version)}, "items": items})
            return True
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        self._watching.add(writer)
        await self._watch(writer, resource, asked.query)
        return False

    async def _watch(self, writer: asyncio.StreamWriter, resource: str, query: Mapping[str, str]) -> None:
        version = int(query["resourceVersion"])
        while not writer.is_closing():
            if self.mood is not Mood.SILENT:
                if version < self._oldest:
                    status = {"kind": "Status", "code": 410, "message": "too old resource version"}
                    await _event(writer, "ERROR", status)
                    return
                for at, kind, of, value in tuple(self._history):
                    if at > version and of == resource and _selected(value, query):
                        await _event(writer, kind, value)
                version = self._version
                await _event(writer, "BOOKMARK", {"metadata": {"resourceVersion": str(version)}})
            with suppress(TimeoutError):
                async with asyncio.timeout(self.bookmark_seconds), self._news:
                    await self._news.wait()


def _text(document: Document | str) -> str:
    return document if isinstance(document, str) else document.model_dump_json(by_alias=True)


def _selected(value: Object, query: Mapping[str, str]) -> bool:
    field_name, _, wanted = query.get("fieldSelector", "").partition("=")
    if field_name == "metadata.name" and value["metadata"]["name"] != wanted:
        return False
    label, _, wanted = query.get("labelSelector", "").partition("=")
    return not label or value["metadata"]["labels"].get(label) == wanted


async def _answer(writer: asyncio.StreamWriter, status: int, body: Object) -> None:
    data = json.dumps(body).encode()
    writer.write(
        b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(data), data)
    )
    await writer.drain()


async def _event(writer: asyncio.StreamWriter, kind: str, value: Object) -> None:
    data = json.dumps({"type": kind, "object": value}).encode() + b"\n"
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
    await writer.drain()


@asynccontextmanager
async def pretended_cluster(tls: ssl.SSLContext | None = None) -> AsyncIterator[PretendedCluster]:
    """A running one."""
    cluster = PretendedCluster(tls)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
