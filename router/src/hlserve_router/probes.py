"""Asks each engine now and then whether it is there and how loaded it is. httpx, off the hot path."""

import asyncio
import re
import ssl
from dataclasses import dataclass
from typing import Final

import httpx

from hlserve_router.endpoint import EndpointState, EngineGauges
from hlserve_router.proxy import Proxy

_GAUGE: Final = re.compile(r"^sglang:(num_running_reqs|num_queue_reqs|token_usage)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)
QUIET_SECONDS: Final = 10.0
"""An engine that sent bytes within this time is alive, whatever its probe says: long prefills make probes late."""
MISSES_TO_DROP: Final = 3


@dataclass(slots=True, eq=False)
class Probes:
    """Probes all endpoints of a proxy's pools."""

    proxy: Proxy
    every_seconds: float = 1.0
    timeout_seconds: float = 2.0

    async def run(self) -> None:
        """Probes for ever. Each engine at its own pace: one that hangs must not make the others' news old."""
        # It trusts nobody until an engine speaks TLS: loading the certificates takes longer than all the rest.
        tls, loaded = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), False
        misses: dict[EndpointState, int] = {}
        asking: dict[EndpointState, asyncio.Task[None]] = {}
        # Pods are reached directly: a proxy from the environment would hijack their traffic.
        async with httpx.AsyncClient(timeout=self.timeout_seconds, trust_env=False, verify=tls) as client:
            try:
                while True:
                    endpoints = list(self.proxy.pools.endpoints())
                    if not loaded and any(endpoint.link.tls is not None for endpoint in endpoints):
                        tls.load_default_certs()
                        loaded = True
                    for ended in [endpoint for endpoint, task in asking.items() if task.done()]:
                        asking.pop(ended).result()
                    for endpoint in endpoints:
                        if endpoint not in asking:
                            asking[endpoint] = asyncio.create_task(self._probe(client, endpoint, misses))
                    for gone in [endpoint for endpoint in misses if endpoint.removed]:
                        del misses[gone]
                    await asyncio.sleep(self.every_seconds)
            finally:
                for task in asking.values():
                    task.cancel()
                await asyncio.gather(*asking.values(), return_exceptions=True)

    async def _probe(
        self, client: httpx.AsyncClient, endpoint: EndpointState, misses: dict[EndpointState, int]
    ) -> None:
        pool = self.proxy.pools.pools.get(endpoint.pool)
        if pool is None:
            return
        try:
            health = await client.get(f"{endpoint.url}/health")
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
            await self._scrape(client, endpoint)

    def _missed(self, endpoint: EndpointState, misses: dict[EndpointState, int]) -> None:
        if endpoint.in_flight and self.proxy.now() - endpoint.last_byte_at < QUIET_SECONDS:
            return
        misses[endpoint] = misses.get(endpoint, 0) + 1
        if misses[endpoint] >= MISSES_TO_DROP:
            endpoint.reachable = False

    async def _scrape(self, client: httpx.AsyncClient, endpoint: EndpointState) -> None:
        try:
            answer = await client.get(f"{endpoint.url}/metrics")
        except httpx.HTTPError:
            return
        if answer.status_code == httpx.codes.OK:
            endpoint.gauges = read_gauges(answer.text, self.proxy.now())


def read_gauges(text: str, now: float) -> EngineGauges | None:
    """SGLang's gauges out of its metrics page, summed over ranks; None if they are not there."""
    found: dict[str, float] = {}
    for name, value in _GAUGE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        found[name] = max(found.get(name, 0.0), number) if name == "token_usage" else found.get(name, 0.0) + number
    if "num_running_reqs" not in found:
        return None
    return EngineGauges(
        int(found["num_running_reqs"]), int(found.get("num_queue_reqs", 0)), found.get("token_usage", 0.0), now
    )
