"""A simulated Kubernetes API server over real HTTP, for tests of faults that a real one cannot be made to have.

It knows lists, watches, server-side apply, merge patches, the status and scale subresources, preconditions and owner references of
the kinds in `resources`. It knows no schema, no CEL, no defaulting and no controllers: what depends on those is tested elsewhere.
"""

import asyncio
import json
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any, Protocol
from uuid import uuid4

from aiohttp import web
from kubernetes.aio import client as kubernetes_client

from hlserve_operator.api import Api
from hlserve_operator.refs import Ref
from hlserve_operator.resources import PLURALS
from hlserve_operator.testing.stored import Object, apply, fields_of, merge, selected

OPTIONAL_GROUPS = ("leaderworkerset.x-k8s.io/v1", "keda.sh/v1alpha1", "monitoring.coreos.com/v1")
Fault = Callable[[web.Request], web.StreamResponse | None]
"""Answers a request in the server's place; None: the server answers itself."""
WRITES = ("POST", "PUT", "PATCH", "DELETE")


def status(code: int, reason: str, message: str = "", headers: Mapping[str, str] | None = None) -> web.Response:
    """A `Status` object as an API server sends it."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }
    return web.json_response(body, status=code, headers=headers)


@dataclass(frozen=True, slots=True)
class _Event:
    """A change of an object: as it was, if it was, and as it is, if it is. At its end, as it was carries the version of the end."""

    version: int
    ref: Ref
    before: Object | None
    after: Object | None

    def told(self, asked_for: Callable[[Object], bool]) -> Object | None:
        """What a watch says of it. One that selects is told DELETED of an object that it does not select any more."""
        was = self.before is not None and asked_for(self.before)
        if self.after is not None and asked_for(self.after):
            return {"type": "MODIFIED" if was else "ADDED", "object": self.after}
        return {"type": "DELETED", "object": self.after or self.before} if was else None


@dataclass(slots=True, eq=False)
class Simulated:
    """The state of a simulated API server, and the faults it has."""

    namespace: str = "serving"
    served: set[str] = field(default_factory=lambda: {group for group, _ in PLURALS} - set(OPTIONAL_GROUPS))
    objects: dict[Ref, Object] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of each request that was answered by the server itself."""
    address: str = ""
    version: int = 1
    oldest: int = 0
    """Watches that begin before this version are told that it is gone."""
    schemas: dict[str, Object] = field(default_factory=dict)
    """The published OpenAPI document of a group and version; one that is not here is not published."""
    broken: int = 0
    """Raised by `break_watches`."""
    silent: bool = False
    """Watches bring nothing, and their connections stay."""
    _events: list["_Event"] = field(default_factory=list)
    _applied: dict[tuple[Ref, str, str], Object] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _watches: set[asyncio.Task[Any]] = field(default_factory=set)

    def put(self, manifest: Object) -> Object:
        """Stores an object as a user would; gives it its metadata."""
        ref = Ref.of(manifest)
        before = self.objects.get(ref)
        return self._store(ref, deepcopy(manifest), before)

    def change(self, ref: Ref, patch: Object) -> Object:
        """Merges a patch into a stored object."""
        return self._store(ref, merge(self.objects[ref], patch), self.objects[ref])

    def remove(self, ref: Ref) -> None:
        """Deletes an object and all that it owns, at once."""
        gone = self.objects.pop(ref, None)
        if gone is None:
            return
        self._deleted(ref, gone)
        uid = gone["metadata"]["uid"]
        for other, found in list(self.objects.items()):
            if any(owner.get("uid") == uid for owner in found["metadata"].get("ownerReferences") or ()):
                self.remove(other)

    def writes(self) -> list[tuple[str, str]]:
        """Writes so far, Leases and Events aside."""
        return [(m, p) for m, p in self.requests if m in WRITES and "/leases" not in p and "/events" not in p]

    def cut_watches(self) -> None:
        """Closes every watch."""
        for task in self._watches:
            task.cancel()

    def break_watches(self) -> None:
        """Every watch gets an ERROR other than 410, and ends."""
        self.broken += 1
        self.tell()

    def forget_history(self) -> None:
        """What happened so far can no longer be watched from: 410."""
        self.oldest = self.version + 1
        self.version += 1

    def tell(self) -> None:
        """Wakes every watch."""
        self._news.set()
        self._news = asyncio.Event()

    def _deleted(self, ref: Ref, found: Object) -> None:
        self.version += 1
        gone = {**found, "metadata": {**found["metadata"], "resourceVersion": str(self.version)}}
        self._events.append(_Event(self.version, ref, gone, None))
        self.tell()

    def _store(self, ref: Ref, found: Object, before: Object | None) -> Object:
        metadata = found.setdefault("metadata", {})
        old = {} if before is None else before["metadata"]
        metadata["namespace"] = self.namespace
        metadata["uid"] = old.get("uid") or metadata.get("uid") or str(uuid4())
        metadata["creationTimestamp"] = old.get("creationTimestamp") or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata["generation"] = old.get("generation", 0) + (before is None or before.get("spec") != found.get("spec"))
        metadata["resourceVersion"] = old.get("resourceVersion", "")
        if before is not None and _without_history(found) == _without_history(before):
            return before
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        self.objects[ref] = found
        self._events.append(_Event(self.version, ref, before, deepcopy(found)))
        self.tell()
        return found

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers one request."""
        for fault in list(self.faults):
            answer = fault(request)
            if answer is not None:
                return answer
        self.requests.append((request.method, request.path))
        parts = request.path.strip("/").split("/")
        if parts[:2] == ["openapi", "v3"]:
            found = self.schemas.get("/".join(parts[3:]))
            return status(404, "NotFound") if found is None else web.json_response(found)
        if len(parts) == 1:
            return web.json_response(self._groups(parts[0]))
        group = parts[1] if parts[0] == "api" else "/".join(parts[1:3])
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        if group not in self.served:
            return status(404, "NotFound", "the server could not find the requested resource")
        if not rest:
            return web.json_response(_discovery(group))
        if rest[0] == "namespaces" and len(rest) > 2:
            rest = rest[2:]
        kind = next((k for (g, k), plural in PLURALS.items() if (g, plural) == (group, rest[0])), None)
        if kind is None:
            return status(404, "NotFound", "the server could not find the requested resource")
        if len(rest) == 1:
            return await self._collection(request, group, kind)
        return await self._one(request, Ref(group, kind, rest[1]), rest[2] if len(rest) > 2 else "")

    def _groups(self, root: str) -> Object:
        """What `/api` and `/apis` say."""
        if root == "api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        versions = [group for group in sorted(self.served) if "/" in group]
        groups = [
            {
                "name": each.partition("/")[0],
                "versions": [{"groupVersion": each, "version": each.partition("/")[2]}],
                "preferredVersion": {"groupVersion": each, "version": each.partition("/")[2]},
            }
            for each in versions
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    async def _collection(self, request: web.Request, group: str, kind: str) -> web.StreamResponse:
        if request.method == "POST":
            manifest = await request.json()
            ref = Ref.of(manifest)
            if ref in self.objects:
                return status(409, "AlreadyExists", f"{ref} already exists")
            return web.json_response(self._store(ref, manifest, None), status=201)
        if request.query.get("watch"):
            return await self._watch(request, group, kind)
        found = [found for ref, found in sorted(self.objects.items()) if _asked_for(request, group, kind, ref, found)]
        # As a real one, it leaves out what the list says once.
        items = [{name: value for name, value in o.items() if name not in ("apiVersion", "kind")} for o in found]
        start, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", 500))
        metadata = {"resourceVersion": str(self.version)}
        if start + limit < len(items):
            metadata["continue"] = str(start + limit)
        body = {"apiVersion": group, "kind": f"{kind}List", "metadata": metadata, "items": items[start : start + limit]}
        return web.json_response(body)

    def _since(self, version: int) -> list["_Event"]:
        """Events after a version."""
        return self._events[bisect_right(self._events, version, key=attrgetter("version")) :]

    async def _watch(self, request: web.Request, group: str, kind: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        task = asyncio.current_task()
        if task is not None:
            self._watches.add(task)
        after = int(request.query.get("resourceVersion") or self.version)
        try:
            if after < self.oldest:
                gone = {
                    "type": "ERROR",
                    "object": {"kind": "Status", "code": 410, "message": "too old resource version"},
                }
                await response.write(json.dumps(gone).encode() + b"\n")
                return response
            broken = self.broken
            while True:
                news = self._news
                if self.broken != broken:
                    fault = {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "made to fail"}}
                    await response.write(json.dumps(fault).encode() + b"\n")
                    return response
                for event in self._since(after):
                    if self.silent:
                        continue
                    after = event.version
                    told = event.told(partial(_asked_for, request, group, kind, event.ref))
                    if told is not None:
                        await response.write(json.dumps(told).encode() + b"\n")
                await news.wait()
        except (asyncio.CancelledError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
            return response
        finally:
            if task is not None:
                self._watches.discard(task)

    async def _one(self, request: web.Request, ref: Ref, part: str) -> web.StreamResponse:
        live = self.objects.get(ref)
        content = request.headers.get("Content-Type", "")
        body = json.loads(await request.read() or b"{}") if request.method in WRITES else {}
        if live is None and (request.method != "PATCH" or "apply" not in content or part):
            return status(404, "NotFound", f"{ref} not found")
        uid = body.get("metadata", {}).get("uid") or body.get("preconditions", {}).get("uid")
        if live is not None and uid and uid != live["metadata"]["uid"]:
            return status(409, "Conflict", f"{ref} is another object")
        if request.method == "GET":
            return web.json_response(live)
        if request.method == "DELETE":
            self.remove(ref)
            return web.json_response({"kind": "Status", "status": "Success"})
        if request.method == "PUT" and live is not None:
            if body["metadata"].get("resourceVersion") not in (None, live["metadata"]["resourceVersion"]):
                return status(409, "Conflict", f"{ref} has been modified")
            return web.json_response(self._store(ref, body, live))
        if "apply" in content:
            return web.json_response(self._apply(request.query["fieldManager"], ref, part, body, live))
        if live is None:
            return status(404, "NotFound", f"{ref} not found")
        patched = merge(live, {"status": body["status"]} if part == "status" else body)
        return web.json_response(self._store(ref, patched, live))

    def _apply(self, manager: str, ref: Ref, part: str, body: Object, live: Object | None) -> Object:
        owned = {k: v for k, v in body.items() if k not in ("apiVersion", "kind", "metadata")}
        metadata = {k: v for k, v in body["metadata"].items() if k not in ("name", "namespace", "uid")}
        if metadata and not part:
            owned["metadata"] = metadata
        before = self._applied.get((ref, manager, part), {})
        identity = {"apiVersion": ref.api_version, "kind": ref.kind, "metadata": {"name": ref.name}}
        found = apply(deepcopy(live) if live is not None else identity, before, owned)
        self._applied[ref, manager, part] = deepcopy(owned)
        entry = {"manager": manager, "operation": "Apply", "subresource": part, "fieldsV1": fields_of(owned)}
        others = [
            e
            for e in found["metadata"].get("managedFields") or ()
            if (e["manager"], e["operation"], e.get("subresource", "")) != (manager, "Apply", part)
        ]
        found["metadata"]["managedFields"] = [*others, entry]
        return self._store(ref, found, live)


def _asked_for(request: web.Request, group: str, kind: str, ref: Ref, found: Object) -> bool:
    """Whether a list or watch is about the object. Of field selectors only `metadata.name` is known."""
    _, named, name = request.query.get("fieldSelector", "").partition("metadata.name=")
    chosen = (ref.api_version, ref.kind) == (group, kind) and (not named or ref.name == name)
    return chosen and selected(found["metadata"].get("labels") or {}, request.query.get("labelSelector", ""))


def _without_history(found: Object) -> Object:
    hidden = ("resourceVersion", "managedFields", "generation")
    return {**found, "metadata": {k: v for k, v in found["metadata"].items() if k not in hidden}}


def _discovery(group: str) -> Object:
    resources = [
        {
            "name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": True, "shortNames": [], "categories": [],
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
        }
        for (api_version, kind), plural in PLURALS.items()
        if api_version == group
    ]  # fmt: skip
    if group == "v1":
        # kopf waits until it knows that there are namespaces.
        resources.append({**resources[0], "name": "namespaces", "kind": "Namespace", "namespaced": False})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": resources}


@asynccontextmanager
async def simulated() -> AsyncIterator[Simulated]:
    """A simulated API server on a free port."""
    server = Simulated()
    application = web.Application(client_max_size=2**24)
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        server.cut_watches()
        await runner.cleanup()


class Reachable(Protocol):
    """An API server, simulated or with something in between, and the namespace that an operator works in."""

    address: str
    namespace: str

    def writes(self) -> list[tuple[str, str]]:
        """Writes so far, Leases and Events aside."""


@asynccontextmanager
async def api_of(server: Reachable, *, call_seconds: float = 2.0) -> AsyncIterator[Api]:
    """A client of a simulated API server."""
    configuration = kubernetes_client.Configuration(
        host=server.address, client_session_kwargs={"trust_env": False}, connection_pool_maxsize=100
    )
    api = Api(kubernetes_client.ApiClient(configuration), server.namespace, call_seconds)
    try:
        yield api
    finally:
        await api.close()


def nth_write_fails(number: int) -> Fault:
    """A fault: the write with this number (from 1) is cut off without being done; those before and after are not."""
    seen = 0

    def fault(request: web.Request) -> web.StreamResponse | None:
        nonlocal seen
        if request.method not in WRITES:
            return None
        seen += 1
        return status(500, "InternalError", "made to fail") if seen == number else None

    return fault
