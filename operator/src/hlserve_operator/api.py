"""The API server, as the operator uses it: plain objects in and out, one deadline per call, errors by what to do about them.

The transport, its credentials and their renewal are the official client's asyncio half; its typed models are left out, because
they drop fields that they do not know. Every write passes `before_write`, which refuses it unless this process leads.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from kubernetes.aio import client as kubernetes_client

from hlserve_operator.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    ThrottledError,
    UnavailableError,
)
from hlserve_operator.refs import Ref
from hlserve_operator.render.metadata import FIELD_MANAGER
from hlserve_operator.resources import collection_path, group_path, object_path
from hlserve_operator.state import Manifest

PAGE_OBJECTS: Final = 500
"""Objects per answer of a list."""
CALL_SECONDS: Final = 10.0
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
JSON: Final = "application/json"
_DEFAULT_RETRY_AFTER_SECONDS: Final = 1.0
_MESSAGE_CHARACTERS: Final = 500


def _no_check() -> None:
    """Allows every write, and counts none."""


def _not_counted(_: str) -> None:
    """Counts nothing."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a kind that a selector takes, as of one version of the store."""

    items: tuple[Manifest, ...]
    resource_version: str


@dataclass(slots=True, eq=False)
class Api:
    """Calls about objects of one namespace."""

    client: kubernetes_client.ApiClient
    namespace: str
    call_seconds: float = CALL_SECONDS
    before_write: Callable[[], None] = _no_check
    """Raises NotLeaderError if this process may not write."""
    on_error: Callable[[str], None] = _not_counted
    """Told of each failed call: 4xx, 409, 429, 5xx, timeout or connection. A 404 of a read is an answer, not a failure."""
    on_write: Callable[[], None] = _no_check
    """Told of each write that succeeded."""
    writes: int = 0
    """Writes that succeeded."""
    _served: dict[str, tuple[float, frozenset[str]]] = field(default_factory=dict)

    async def get(self, ref: Ref) -> Manifest:
        """One object. Raises NotFoundError and the other ApiErrors."""
        return await self._json("GET", object_path(ref, self.namespace), about=f"get {ref}")

    async def find(self, ref: Ref) -> Manifest | None:
        """One object, or None if it or its kind does not exist. Raises the other ApiErrors."""
        try:
            return await self.get(ref)
        except NotFoundError:
            return None

    async def list(self, api_version: str, kind: str, *, labels: str = "", fields: str = "") -> Listing:
        """All objects of a kind, page by page. `labels` and `fields` are selectors. Raises ApiError."""
        query = {"limit": str(PAGE_OBJECTS)}
        if labels:
            query["labelSelector"] = labels
        if fields:
            query["fieldSelector"] = fields
        items: list[Manifest] = []
        while True:
            path = collection_path(api_version, kind, self.namespace)
            page = await self._json("GET", path, query=query, about=f"list {kind}s")
            # Items of a list carry neither: whoever gets one needs to know what it is.
            items += [{"apiVersion": api_version, "kind": kind, **item} for item in page.get("items") or ()]
            token = page["metadata"].get("continue")
            if not token:
                return Listing(tuple(items), page["metadata"].get("resourceVersion", ""))
            query["continue"] = token

    async def apply(self, manifest: Manifest, *, force: bool = True) -> Manifest:
        """Server-side apply of an object as its only owner of these fields; returns it as it is stored. Raises ApiError.

        Without `force` ConflictError if somebody else owns one of them: nothing is taken over.
        """
        ref = Ref.of(manifest)
        path = object_path(ref, self.namespace)
        stored = await self._write(
            "PATCH", path, manifest, content=APPLY, query=_OWNED if force else _MANAGED, about=f"apply {ref}"
        )
        # The answer to an apply that creates a custom object has been seen empty.
        return stored if "metadata" in stored else await self.get(ref)

    async def apply_status(self, ref: Ref, uid: str, status: Mapping[str, Any]) -> None:
        """Makes `status` the whole of what we say about an object. Raises ConflictError if it is another one by now."""
        body = {
            "apiVersion": ref.api_version,
            "kind": ref.kind,
            "metadata": {"name": ref.name, "namespace": self.namespace, "uid": uid},
            "status": dict(status),
        }
        path = object_path(ref, self.namespace, "status")
        await self._write("PATCH", path, body, content=APPLY, query=_OWNED, about=f"apply the status of {ref}")

    async def create(self, manifest: Manifest) -> Manifest:
        """A new object, as it is stored. Raises ConflictError if there is one of the name."""
        ref = Ref.of(manifest)
        path = collection_path(ref.api_version, ref.kind, self.namespace)
        return await self._write("POST", path, manifest, query=_MANAGED, about=f"create {ref}")

    async def replace(self, manifest: Manifest) -> Manifest:
        """An object in place of the version that `manifest` names. Raises ConflictError if there is a newer one."""
        ref = Ref.of(manifest)
        path = object_path(ref, self.namespace)
        return await self._write("PUT", path, manifest, query=_MANAGED, about=f"replace {ref}")

    async def merge_patch(self, ref: Ref, body: Mapping[str, Any], subresource: str = "") -> Manifest:
        """Changes the named fields only; None removes one. Raises ApiError."""
        path = object_path(ref, self.namespace, subresource)
        what = f"patch {subresource} of {ref}" if subresource else f"patch {ref}"
        return await self._write("PATCH", path, dict(body), content=MERGE, query=_MANAGED, about=what)

    async def scale(self, ref: Ref, replicas: int) -> None:
        """Sets the replicas through the scale subresource, as a scaler would. Raises ApiError."""
        await self.merge_patch(ref, {"spec": {"replicas": replicas}}, "scale")

    async def delete(self, ref: Ref, *, uid: str | None = None) -> bool:
        """Deletes an object and, in the background, what it owns; False if it was gone already.

        With `uid` only that very object. Raises ConflictError if it is another one, and the other ApiErrors.
        """
        body: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            await self._write("DELETE", object_path(ref, self.namespace), body, about=f"delete {ref}")
        except NotFoundError:
            return False
        return True

    async def serves(self, api_version: str, kind: str, *, fresh_seconds: float = 30.0) -> bool:
        """Whether the cluster knows a kind, as of at most `fresh_seconds` ago. Raises ApiError."""
        now = asyncio.get_running_loop().time()
        known = self._served.get(api_version)
        if known is None or now - known[0] > fresh_seconds:
            try:
                answer = await self._json("GET", group_path(api_version), about=f"look up {api_version}")
                kinds = frozenset(resource["kind"] for resource in answer.get("resources") or ())
            except NotFoundError:
                kinds = frozenset()
            known = self._served[api_version] = (now, kinds)
        return kind in known[1]

    async def schema(self, api_version: str) -> Manifest:
        """The OpenAPI document that the API server publishes for a group and version. Raises ApiError."""
        return await self._json(
            "GET", f"/openapi/v3{group_path(api_version)}", about=f"read the schema of {api_version}"
        )

    @asynccontextmanager
    async def watch(
        self, api_version: str, kind: str, version: str, lasts_seconds: int, *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a watch that goes on from `version`; how long to wait for one is the caller's to say. Raises ApiError."""
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(lasts_seconds),
        }
        if labels:
            query["labelSelector"] = labels
        if fields:
            query["fieldSelector"] = fields
        path = collection_path(api_version, kind, self.namespace)
        async with asyncio.timeout(self.call_seconds):
            # A watch has no end of its own that the transport could know.
            response = await self._send(
                "GET", path, query, None, JSON, aiohttp.ClientTimeout(total=None), f"watch {kind}s"
            )
        try:
            if response.status != 200:
                async with asyncio.timeout(self.call_seconds):
                    raise self._refusal(response, await response.read(), f"watch {kind}s", read=True)
            yield aiter(response.content)
        finally:
            response.close()

    async def close(self) -> None:
        """Closes every connection."""
        await self.client.rest_client.close()

    async def _write(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        *,
        about: str,
        content: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> Manifest:
        self.before_write()
        answer = await self._json(method, path, body=body, content=content, query=query, about=about)
        self.writes += 1
        self.on_write()
        return answer

    async def _json(
        self,
        method: str,
        path: str,
        *,
        about: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str = JSON,
    ) -> Manifest:
        try:
            async with asyncio.timeout(self.call_seconds):
                timeout = aiohttp.ClientTimeout(total=self.call_seconds)
                response = await self._send(method, path, query or {}, body, content, timeout, about)
                data = await response.read()
        except TimeoutError as error:
            self.on_error("timeout")
            raise UnavailableError(
                f"The API server did not answer within {self.call_seconds:g} s ({about})."
            ) from error
        except aiohttp.ClientError as error:
            raise self._unreachable(error, about) from error
        if not 200 <= response.status < 300:
            raise self._refusal(response, data, about, read=method == "GET")
        try:
            answer = json.loads(data) if data else {}
        except ValueError as error:
            raise UnavailableError(f"The API server's answer is no JSON ({about}).", response.status) from error
        return answer if isinstance(answer, dict) else {}

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        content: str,
        timeout: aiohttp.ClientTimeout,
        about: str,
    ) -> aiohttp.ClientResponse:
        # The client adds the credentials, renewed if they are due.
        method, url, headers, sent, _ = await self.client.param_serialize(
            method, path, query_params=list(query.items()),
            header_params={"Accept": JSON, "Content-Type": content}, body=body, auth_settings=["BearerToken"],
        )  # fmt: skip
        try:
            answer = await self.client.call_api(method, url, headers, sent, _request_timeout=timeout)
        except TimeoutError:
            raise
        except aiohttp.ClientError as error:
            raise self._unreachable(error, about) from error
        response: aiohttp.ClientResponse = answer.response
        return response

    def _unreachable(self, error: aiohttp.ClientError, about: str) -> UnavailableError:
        self.on_error("connection")
        return UnavailableError(f"The API server cannot be reached ({about}: {type(error).__name__}).")

    def _refusal(self, response: aiohttp.ClientResponse, data: bytes, about: str, *, read: bool) -> ApiError:
        status = int(response.status)
        if not (status == 404 and read):
            self.on_error(_status_class(status))
        message = f"{_message_of(data) or f'status {status}'} ({about})"
        retry_after = response.headers.get("Retry-After", "")
        if status == 429 or (status == 503 and retry_after):
            seconds = float(retry_after) if retry_after.isdecimal() else _DEFAULT_RETRY_AFTER_SECONDS
            return ThrottledError(message, status, seconds)
        return _ERRORS.get(status, UnavailableError if status >= 500 else InvalidError)(message, status)


_OWNED: Final = {"fieldManager": FIELD_MANAGER, "force": "true"}
_MANAGED: Final = {"fieldManager": FIELD_MANAGER}
_ERRORS: Final[Mapping[int, type[ApiError]]] = {
    401: UnavailableError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
}


def _status_class(status: int) -> str:
    if status in (409, 429):
        return str(status)
    return "5xx" if status >= 500 else "4xx"


def _message_of(data: bytes) -> str:
    """What the API server says, if it says it as it should; never what was sent."""
    try:
        answer = json.loads(data)
    except ValueError:
        return ""
    message = answer.get("message") if isinstance(answer, dict) else None
    return message[:_MESSAGE_CHARACTERS] if isinstance(message, str) else ""
