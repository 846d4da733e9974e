"""Asks routers for their reports, and engines to drain and for their load. httpx; one call each, all at the same time.

Pods are reached directly: a proxy from the environment would get in between. Nothing here raises for a pod that does not answer:
that is part of what is reported.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Final, TypeVar

import httpx

from hlserve_api.routing import EngineCredential
from hlserve_operator.reported import EngineAnswer, RouterReport, parse_drain, parse_load, parse_report
from hlserve_operator.state import ENGINE_PORT

ROUTER_ADMIN_PORT: Final = 9090
LARGEST_REPORT_BYTES: Final = 16 * 1024 * 1024
"""More is no report: 10,000 clients need about half a MiB."""
_T = TypeVar("_T")
_A = TypeVar("_A")


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterPod:
    """Where one router pod's admin port is."""

    name: str
    ip: str
    port: int = ROUTER_ADMIN_PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePod:
    """Where one engine pod is, and what it asks for."""

    uid: str
    ip: str
    credential: EngineCredential = field(default_factory=EngineCredential, repr=False)
    server_name: str = ""
    """Name that its certificate must carry when the credential has none: `<service>.<namespace>.svc`."""
    port: int = ENGINE_PORT


def base_url(scheme: str, ip: str, port: int) -> str:
    """The URL of a pod; IPv6 addresses in brackets."""
    host = f"[{ip}]" if isinstance(ip_address(ip), IPv6Address) else ip
    return f"{scheme}://{host}:{port}"


@dataclass(slots=True, eq=False)
class Reports:
    """The asking. `token` gives the release's admin token at the moment of each call; None: routers ask for none."""

    token: Callable[[], str | None] = field(default=lambda: None)
    timeout_seconds: float = 2.0
    """For a whole answer."""
    at_once: int = 64
    """Calls on their way at the same time."""

    _clients: dict[tuple[bool, str], httpx.AsyncClient] = field(default_factory=dict)

    async def close(self) -> None:
        """Closes every connection."""
        while self._clients:
            _, client = self._clients.popitem()
            await client.aclose()

    async def of_routers(self, pods: Sequence[RouterPod]) -> tuple[RouterReport, ...]:
        """The report of each router, in the order of `pods`."""
        return await self._each(pods, self._of_router)

    async def drain(self, pods: Sequence[EnginePod], *, drain: bool) -> tuple[EngineAnswer, ...]:
        """Tells engines to drain, or to serve again, in the order of `pods`. Harmless when repeated.

        An engine without the call (404, 405) is reported by its load, with `draining` False: its readiness stays as it is, and
        routers alone keep new requests away.
        """

        async def one(pod: EnginePod) -> EngineAnswer:
            return await self._drain(pod, drain)

        return await self._each(pods, one)

    async def loads(self, pods: Sequence[EnginePod]) -> tuple[EngineAnswer, ...]:
        """What engines run and queue by their metrics, in the order of `pods`."""
        return await self._each(pods, self._load)

    async def _each(self, items: Sequence[_A], ask: Callable[[_A], Awaitable[_T]]) -> tuple[_T, ...]:
        gate = asyncio.Semaphore(self.at_once)

        async def gated(item: _A) -> _T:
            async with gate:
                return await ask(item)

        return tuple(await asyncio.gather(*(gated(item) for item in items)))

    async def _of_router(self, pod: RouterPod) -> RouterReport:
        token = self.token()
        headers = {"authorization": f"Bearer {token}"} if token else {}
        try:
            url = f"{base_url('http', pod.ip, pod.port)}/v1/report"
            answer = await self._ask(self._client(None), "GET", url, headers)
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            return RouterReport(pod=pod.name, problem=_why(error))
        if answer.status_code != httpx.codes.OK:
            return RouterReport(pod=pod.name, problem=_refusal(answer.status_code))
        if len(answer.content) > LARGEST_REPORT_BYTES:
            return RouterReport(pod=pod.name, problem="its report is too large")
        return parse_report(pod.name, answer.content)

    async def _drain(self, pod: EnginePod, drain: bool) -> EngineAnswer:
        try:
            answer = await self._ask_engine(pod, "POST", "/hlserve/drain", {"drain": drain})
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            return EngineAnswer(pod_uid=pod.uid, problem=_why(error))
        if answer.status_code in (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED):
            return await self._load(pod)
        if answer.status_code != httpx.codes.OK:
            return EngineAnswer(pod_uid=pod.uid, problem=_refusal(answer.status_code))
        return parse_drain(pod.uid, answer.content)

    async def _load(self, pod: EnginePod) -> EngineAnswer:
        try:
            answer = await self._ask_engine(pod, "GET", "/metrics")
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            return EngineAnswer(pod_uid=pod.uid, problem=_why(error))
        if answer.status_code != httpx.codes.OK:
            return EngineAnswer(pod_uid=pod.uid, problem=_refusal(answer.status_code))
        return parse_load(pod.uid, answer.text)

    async def _ask_engine(
        self, pod: EnginePod, method: str, path: str, body: dict[str, bool] | None = None
    ) -> httpx.Response:
        """Raises httpx.HTTPError, TimeoutError, or ValueError for an address or a CA that is none."""
        trust = pod.credential.tls
        key = pod.credential.api_key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        client = self._client(None if trust is None else trust.ca)
        name = "" if trust is None else trust.server_name or pod.server_name
        url = base_url("http" if trust is None else "https", pod.ip, pod.port) + path
        return await self._ask(client, method, url, headers, body, name)

    async def _ask(
        self,
        client: httpx.AsyncClient,
        method: str,
        url: str,
        headers: dict[str, str],
        body: dict[str, bool] | None = None,
        server_name: str = "",
    ) -> httpx.Response:
        extensions = {"sni_hostname": server_name} if server_name else None
        async with asyncio.timeout(self.timeout_seconds):
            return await client.request(method, url, headers=headers, json=body, extensions=extensions)

    def _client(self, ca: str | None) -> httpx.AsyncClient:
        """The client for pods that are trusted alike: by this CA, by what the system trusts (empty), or without TLS (None).

        Raises ValueError for a CA that is no PEM.
        """
        key = (ca is None, ca or "")
        client = self._clients.get(key)
        if client is None:
            client = httpx.AsyncClient(timeout=self.timeout_seconds, trust_env=False, verify=_trust(ca))
            self._clients[key] = client
        return client


def _trust(ca: str | None) -> ssl.SSLContext:
    if ca is None:
        # Never used for TLS: it trusts nobody, which spares loading the system's certificates.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not ca:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cadata=ca)
    except ssl.SSLError as error:
        raise ValueError("the CA of its pool holds no certificates in PEM") from error


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return "no answer in time"
    if isinstance(error, ValueError):
        return str(error)
    return f"no answer: {type(error).__name__}"


def _refusal(status: int) -> str:
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return f"it refuses the operator's token or key ({status}): it is not the one it was started with"
    return f"it answers {status}"
