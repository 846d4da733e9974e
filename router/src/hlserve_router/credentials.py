"""What the router shows to engines and asks of them: a pool's key, its CA, the name in its certificates."""

import ssl
from collections.abc import Iterable
from dataclasses import dataclass

from hlserve_api.routing import EngineCredential, EngineCredentials, EngineTrust
from hlserve_router.errors import TableError
from hlserve_router.pools import Pool
from hlserve_router.upstream import system_tls


@dataclass(frozen=True, slots=True)
class _Access:
    """One pool's. `trust` is what `tls` was made from."""

    authorization: bytes = b""
    trust: EngineTrust | None = None
    tls: ssl.SSLContext | None = None


_NONE = _Access()


class Credentials:
    """The engine credentials in force. `namespace`: the one that Services are in; empty: not on a cluster."""

    def __init__(self, namespace: str = "") -> None:
        self._namespace = namespace
        self._pools: dict[str, _Access] = {}

    def apply(self, document: EngineCredentials) -> None:
        """Takes over all of `document`. Raises TableError, and changes nothing, if a CA of it cannot be read."""
        self._pools = {name: self._access(name, entry) for name, entry in document.pools.items()}

    def _access(self, pool: str, entry: EngineCredential) -> _Access:
        authorization = b"Bearer " + entry.api_key.encode() if entry.api_key else b""
        former = self._pools.get(pool, _NONE)
        if entry.tls is None:
            return _Access(authorization)
        tls = former.tls if former.trust == entry.tls else _trusting(pool, entry.tls)
        return _Access(authorization, entry.tls, tls)

    def scheme(self, pool: str) -> str:
        """How the pods of a pool are spoken to."""
        return "http" if self._pools.get(pool, _NONE).tls is None else "https"

    def dress(self, pools: Iterable[Pool]) -> None:
        """Gives every link of `pools` what it needs. A connection made with less is not used again."""
        for pool in pools:
            access = self._pools.get(pool.route.name, _NONE)
            for state in pool.endpoints.values():
                link = state.link
                tls, name = system_tls() if state.url.startswith("https:") else None, None
                if tls is not None and access.tls is not None:
                    tls, name = access.tls, self._server_name(access.trust, pool.route.service)
                link.change(tls, name, access.authorization)

    def _server_name(self, trust: EngineTrust | None, service: str | None) -> str | None:
        if trust is not None and trust.server_name:
            return trust.server_name
        if service is None:
            return None
        return f"{service}.{self._namespace}.svc" if self._namespace else service


def _trusting(pool: str, trust: EngineTrust) -> ssl.SSLContext:
    try:
        # An empty text would mean "those of the system", with which create_default_context begins anyhow.
        # What stands between the certificates of a bundle is for people: names, often not in ASCII, which is refused.
        return ssl.create_default_context(cadata=trust.ca.encode("ascii", "replace").decode() or None)
    except ssl.SSLError as error:
        raise TableError(
            f"Pool {pool!r}: its CA cannot be read ({error.reason or 'no certificate in it'}): give certificates as PEM."
        ) from error
