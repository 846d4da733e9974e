"""A namespace of a real API server as its users see it, and the rights of the chart's operator in it."""

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from hlserve_operator.refs import Ref
from hlserve_operator.resources import CUSTOM_API, collection_path, object_path
from hlserve_operator.run import Operator
from hlserve_operator.testing.between import Between, between
from hlserve_operator.testing.running import CLASS, KEY, POOL, operator_on
from hlserve_operator.testing.running import manifest as manifest_of

Object = dict[str, Any]
JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
USER = "kubectl"
"""Field manager of users."""
UNTIL_SECONDS = 30.0
CHAT = Ref(CUSTOM_API, "ServingPool", "chat")
ALICE = Ref(CUSTOM_API, "ClientKey", "alice")


class RefusedError(Exception):
    """The API server refuses; the message is what it says."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True, eq=False)
class Server:
    """The administrator's connection to a real API server."""

    url: str
    trust: ssl.SSLContext
    """Of the administrator: with a client certificate."""
    plain: ssl.SSLContext
    """Of those who have a token."""
    session: aiohttp.ClientSession

    async def call(
        self, method: str, path: str, body: object = None, *, content: str = "application/json", **query: str
    ) -> Any:
        """One call. Raises RefusedError."""
        async with self.session.request(
            method, f"{self.url}{path}", params=query, ssl=self.trust,
            data=None if body is None else json.dumps(body), headers={"Content-Type": content},
        ) as answer:  # fmt: skip
            text = await answer.text()
            if answer.status >= 300:
                raise RefusedError(answer.status, json.loads(text)["message"] if text.startswith("{") else text)
            return json.loads(text)


@asynccontextmanager
async def server_of(kubeconfig: Path) -> AsyncIterator[Server]:
    """The server that a kubeconfig names, which carries its credentials in itself."""
    document = json.loads(await asyncio.to_thread(kubeconfig.read_text))
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    trust, plain = ssl.create_default_context(cadata=authority), ssl.create_default_context(cadata=authority)
    with tempfile.NamedTemporaryFile() as file:
        for part in ("client-certificate-data", "client-key-data"):
            file.write(base64.b64decode(user[part]))
        file.flush()
        trust.load_cert_chain(file.name)
    async with aiohttp.ClientSession(trust_env=False, connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Server(cluster["server"], trust, plain, session)


@dataclass(slots=True, eq=False)
class Namespace:
    """One namespace, in a user's hands."""

    server: Server
    name: str
    token: str = ""
    """Of the operator's service account."""
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def fill(self) -> None:
        """A pool `chat` of two, a class and a key `alice` that gets its Secret made."""
        for text in (POOL, CLASS, KEY):
            await self.create(manifest_of(text))

    async def settled(self) -> bool:
        """Everything of what `fill` makes is there."""
        return await self.replicas_ready() == 2 and len(await self.digests()) == 1

    async def get(self, ref: Ref) -> Object:
        """One object. Raises RefusedError."""
        found: Object = await self.server.call("GET", object_path(ref, self.name))
        return found

    async def find(self, ref: Ref) -> Object | None:
        """One object, or None."""
        try:
            return await self.get(ref)
        except RefusedError as error:
            if error.status == 404:
                return None
            raise

    async def objects(self, api_version: str, kind: str, labels: str = "") -> list[Object]:
        """All objects of a kind."""
        query = {"labelSelector": labels} if labels else {}
        found = await self.server.call("GET", collection_path(api_version, kind, self.name), **query)
        return [{"apiVersion": api_version, "kind": kind, **item} for item in found["items"]]

    async def create(self, manifest: Object, **query: str) -> Object:
        """A new object; what its kind does not know is refused. Raises RefusedError."""
        ref = Ref.of(manifest)
        path = collection_path(ref.api_version, ref.kind, self.name)
        found: Object = await self.server.call(
            "POST", path, manifest, **{"fieldManager": USER, "fieldValidation": "Strict", **query}
        )
        return found

    async def replace(self, manifest: Object) -> Object:
        """An object in place of the version that `manifest` names. Raises RefusedError."""
        path = object_path(Ref.of(manifest), self.name)
        found: Object = await self.server.call("PUT", path, manifest, fieldManager=USER)
        return found

    async def patch(self, ref: Ref, body: Object, subresource: str = "", manager: str = USER) -> Object:
        """A merge patch. Raises RefusedError."""
        path = object_path(ref, self.name, subresource)
        found: Object = await self.server.call("PATCH", path, body, content=MERGE, fieldManager=manager)
        return found

    async def json_patch(self, ref: Ref, steps: Sequence[Object]) -> Object:
        """A JSON patch (RFC 6902). Raises RefusedError."""
        path = object_path(ref, self.name)
        found: Object = await self.server.call("PATCH", path, steps, content=JSON_PATCH, fieldManager=USER)
        return found

    async def apply(self, manifest: Object, manager: str = USER, *, force: bool = False) -> Object:
        """Server-side apply. Raises RefusedError."""
        path = object_path(Ref.of(manifest), self.name)
        query = {"fieldManager": manager, "fieldValidation": "Strict"} | ({"force": "true"} if force else {})
        found: Object = await self.server.call("PATCH", path, manifest, content=APPLY, **query)
        return found

    async def delete(self, ref: Ref, policy: str = "Background", **options: Any) -> None:
        """Deletes an object. Raises RefusedError."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy, **options}
        await self.server.call("DELETE", object_path(ref, self.name), body)

    async def condition(self, ref: Ref, type_: str) -> Object:
        """A condition; empty if there is none."""
        found = await self.find(ref) or {}
        conditions = found.get("status", {}).get("conditions", ())
        return next((c for c in conditions if c["type"] == type_), {})

    async def reason(self, ref: Ref, type_: str) -> str:
        """A condition's reason; empty if there is none."""
        return str((await self.condition(ref, type_)).get("reason", ""))

    async def deployments(self, pool: str = "") -> list[Object]:
        """Deployments of pools, or of one."""
        label = "serving.hlserve.io/pool" + (f"={pool}" if pool else "")
        return await self.objects("apps/v1", "Deployment", label)

    async def pods(self, pool: str = "") -> list[Object]:
        """Engine pods that are not being deleted."""
        label = "serving.hlserve.io/pool" + (f"={pool}" if pool else "")
        found = await self.objects("v1", "Pod", label)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    async def digests(self) -> set[str]:
        """Digests in all keyring shards."""
        found: set[str] = set()
        for secret in await self.objects("v1", "Secret", "serving.hlserve.io/routing-document=keyring"):
            keyring = json.loads(base64.b64decode(secret["data"]["keyring.json"]))
            found |= {entry["digest"] for entry in keyring["keys"]}
        return found

    async def table(self) -> Object | None:
        """The routing table."""
        found = await self.find(Ref("v1", "ConfigMap", "hlserve-routing-table"))
        return None if found is None else dict(json.loads(found["data"]["table.json"]))

    async def replicas_ready(self, pool: str = "chat") -> int:
        """As the pool's status says."""
        found = await self.find(Ref(CUSTOM_API, CHAT.kind, pool)) or {}
        return int(found.get("status", {}).get("readyReplicas") or 0)

    async def way(self) -> Between:
        """A way for one more operator, until the test's end."""
        return await self.stack.enter_async_context(between(self.server.url, self.server.plain, self.name, self.token))

    @asynccontextmanager
    async def operator(self, way: Between | None = None, **settings: Any) -> AsyncIterator[tuple[Operator, Between]]:
        """An operator in this process, with the rights of the chart's Role, and its way to the API server."""
        way = way or await self.way()
        async with operator_on(way, **{"call_seconds": 5.0, "report_seconds": 2.0, **settings}) as operator:
            yield operator, way


@asynccontextmanager
async def namespace_of(
    server: Server, name: str, roles: Iterable[Object], labels: Mapping[str, str] | None = None
) -> AsyncIterator[Namespace]:
    """A new namespace with the objects of RBAC that are given, as the chart renders them for any namespace."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels or {})}}
    await server.call("POST", "/api/v1/namespaces", body)
    account = ""
    for manifest in roles:
        text = json.dumps(manifest)
        here = json.loads(text)
        here["metadata"]["namespace"] = name
        for subject in here.get("subjects", ()):
            subject["namespace"] = name
        plural = {"Role": "roles", "RoleBinding": "rolebindings", "ServiceAccount": "serviceaccounts"}[here["kind"]]
        group = "api/v1" if here["kind"] == "ServiceAccount" else "apis/rbac.authorization.k8s.io/v1"
        await server.call("POST", f"/{group}/namespaces/{name}/{plural}", here)
        if here["kind"] == "ServiceAccount":
            account = here["metadata"]["name"]
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    answer = await server.call("POST", f"/api/v1/namespaces/{name}/serviceaccounts/{account}/token", request)
    found = Namespace(server, name, answer["status"]["token"])
    try:
        yield found
    finally:
        await found.stack.aclose()
        with suppress(RefusedError):
            await server.call("DELETE", f"/api/v1/namespaces/{name}")


async def becomes(
    holds: Callable[[], Awaitable[object]], what: str, seconds: float = UNTIL_SECONDS, pause_seconds: float = 0.1
) -> None:
    """Waits until what is asked of the API server holds. Raises TimeoutError that says for what it waited."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not await holds():
        if loop.time() > end:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        await asyncio.sleep(pause_seconds)


async def install(server: Server, definitions: Iterable[Object]) -> None:
    """Installs custom resource definitions, or puts others in their place, and returns once they are served."""
    root = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for manifest in definitions:
        name, spec = manifest["metadata"]["name"], manifest["spec"]
        await server.call("PATCH", f"{root}/{name}", manifest, content=APPLY, fieldManager="helm", force="true")
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"

        async def served(path: str = path) -> bool:
            try:
                await server.call("GET", path)
            except RefusedError as error:
                if error.status != 404:
                    raise
                return False
            return True

        await becomes(served, f"{name} is served")
