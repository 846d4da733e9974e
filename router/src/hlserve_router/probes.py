"""Asks each engine now and then whether it is there and how loaded it is. httpx, off the hot path."""

import asyncio
import logging
import math
import re
import ssl
from dataclasses import dataclass, field
from typing import Final

import httpx

from hlserve_router.endpoint import EndpointState, EngineGauges
from hlserve_router.proxy import Proxy

_log = logging.getLogger("hlserve_router.probes")
_GAUGE: Final = re.compile(
    r"^sglang:(num_running_reqs|num_queue_reqs|token_usage|max_total_num_tokens)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE
)
QUIET_SECONDS: Final = 10.0
"""An engine that sent bytes within this time is alive, whatever its probe says: long prefills make probes late."""
MISSES_TO_DROP: Final = 3
ANSWER_TIMEOUTS: Final = 2.0
"""How long a whole answer may take, as a multiple of how long a probe waits for its next byte."""
END_SECONDS: Final = 1.0
"""How long probes on their way may go on when the router ends."""


@dataclass(slots=True, eq=False)
class Probes:
    """Probes all endpoints of a proxy's pools."""

    proxy: Proxy
    every_seconds: float = 1.0
    timeout_seconds: float = 2.0

    _clients: dict[ssl.SSLContext | None, httpx.AsyncClient] = field(default_factory=dict)

    async def run(self) -> None:
        """Probes for ever. Each engine at its own pace: one that hangs must not make the others' news old."""
        misses: dict[EndpointState, int] = {}
        asking: dict[EndpointState, asyncio.Task[None]] = {}
        try:
            while True:
                endpoints = list(self.proxy.pools.endpoints())
                for ended in [endpoint for endpoint, task in asking.items() if task.done()]:
                    asking.pop(ended).result()
                if not asking:
                    await self._close_clients({endpoint.link.tls for endpoint in endpoints})
                for endpoint in endpoints:
                    if endpoint not in asking:
                        asking[endpoint] = asyncio.create_task(self._probe(endpoint, misses))
                for gone in [endpoint for endpoint in misses if endpoint.removed]:
                    del misses[gone]
                await asyncio.sleep(self.every_seconds)
        finally:
            # A handshake that is cancelled would leave its socket open.
            if asking:
                await asyncio.wait(asking.values(), timeout=END_SECONDS)
            for task in asking.values():
                task.cancel()
            await asyncio.gather(*asking.values(), return_exceptions=True)
            await self._close_clients(set())

    def _client(self, tls: ssl.SSLContext | None) -> httpx.AsyncClient:
        """The client of the engines that are trusted alike."""
        client = self._clients.get(tls)
        if client is None:
            # For engines without TLS it trusts nobody: loading certificates takes longer than all the rest. Pods are
            # reached directly: a proxy from the environment would hijack their traffic.
            verify = tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            client = httpx.AsyncClient(timeout=self.timeout_seconds, trust_env=False, verify=verify)
            self._clients[tls] = client
        return client

    async def _close_clients(self, wanted: set[ssl.SSLContext | None]) -> None:
        for tls in [tls for tls in self._clients if tls not in wanted]:
            await self._clients.pop(tls).aclose()

    async def _ask(self, endpoint: EndpointState, path: str) -> httpx.Response:
        """Asks as requests do: with the pool's key, and for the pool's name in the certificate."""
        link = endpoint.link
        headers = {"authorization": link.authorization.decode()} if link.authorization else None
        extensions = {"sni_hostname": link.server_name} if link.server_name else None
        try:
            async with asyncio.timeout(ANSWER_TIMEOUTS * self.timeout_seconds):
                return await self._client(link.tls).get(f"{endpoint.url}{path}", headers=headers, extensions=extensions)
        except TimeoutError as error:  # it answers, byte by byte, and does not end
            raise httpx.ReadTimeout("the answer does not end") from error

    async def _probe(self, endpoint: EndpointState, misses: dict[EndpointState, int]) -> None:
        try:
            await self._look(endpoint, misses)
        except Exception:  # the boundary of a probe: what one engine answers must not make the others' news old
            _log.exception("probe failed", extra={"fields": {"endpoint": endpoint.id}})
            self.proxy.metrics.count("hlserve_router_internal_errors_total")
            self._missed(endpoint, misses)

    async def _look(self, endpoint: EndpointState, misses: dict[EndpointState, int]) -> None:
        pool = self.proxy.pools.pools.get(endpoint.pool)
        if pool is None:
            return
        if not pool.route.foreign and endpoint not in misses and self._is_lively(endpoint):
            self.proxy.admission.pump(self.proxy.now())
            await self._scrape(endpoint)
            return
        try:
            health = await self._ask(endpoint, "/health")
        except httpx.ConnectError:
            endpoint.reachable = False
            return
        except httpx.HTTPError:
            self._missed(endpoint, misses)
            return
        if health.status_code >= 500 and not pool.route.foreign:
            self._missed(endpoint, misses)
            return
        misses.pop(endpoint, None)
        endpoint.revive()
        self.proxy.admission.pump(self.proxy.now())
        if not pool.route.foreign:
            await self._scrape(endpoint)

    def _is_lively(self, endpoint: EndpointState) -> bool:
        """True while requests show that it works: then its metrics page is all that there is to ask for."""
        recent = self.proxy.now() - endpoint.last_byte_at < self.every_seconds
        return bool(endpoint.in_flight) and endpoint.reachable and recent

    def _missed(self, endpoint: EndpointState, misses: dict[EndpointState, int]) -> None:
        if endpoint.in_flight and self.proxy.now() - endpoint.last_byte_at < QUIET_SECONDS:
            return
        misses[endpoint] = misses.get(endpoint, 0) + 1
        if misses[endpoint] >= MISSES_TO_DROP:
            endpoint.reachable = False

    async def _scrape(self, endpoint: EndpointState) -> None:
        try:
            answer = await self._ask(endpoint, "/metrics")
        except httpx.ConnectError:
            endpoint.reachable = False
            return
        except httpx.HTTPError:
            return
        if answer.status_code == httpx.codes.OK:
            self.proxy.pools.heard(endpoint, read_gauges(answer.text, self.proxy.now()))


def read_gauges(text: str, now: float) -> EngineGauges | None:
    """SGLang's gauges out of its metrics page, summed over ranks; None if they are not there."""
    found: dict[str, float] = {}
    for name, value in _GAUGE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        if not math.isfinite(number):
            continue
        summed = name.startswith("num_")
        found[name] = found.get(name, 0.0) + number if summed else max(found.get(name, 0.0), number)
    if "num_running_reqs" not in found:
        return None
    return EngineGauges(
        int(found["num_running_reqs"]), int(found.get("num_queue_reqs", 0)), found.get("token_usage", 0.0), now,
        int(found.get("max_total_num_tokens", 0)) or None,
    )  # fmt: skip
