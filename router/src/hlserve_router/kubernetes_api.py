"""The API server as a pod reaches it: address, token, CA; and what its refusals mean, in sentences."""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from hlserve_router.errors import RouterError, StartError
from hlserve_router.settings import SERVICE_ACCOUNT, Settings

Parameters = dict[str, str]
"""Query parameters of a request."""


class ApiError(RouterError):
    """The API server cannot be asked or does not answer as it should; says why and what to do."""


class GoneError(RouterError):
    """The API server no longer knows the version that a watch should begin from (410)."""


@dataclass(slots=True, eq=False)
class KubernetesApi:
    """How to ask one API server. `namespace` holds everything that the router reads."""

    server: str
    namespace: str
    token_file: Path
    tls: ssl.SSLContext
    _token: tuple[int, str] = field(default=(0, ""))

    def client(self) -> httpx.AsyncClient:
        """A client for as many watches as there are. A proxy of the environment would not know the API server."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=10)
        return httpx.AsyncClient(base_url=self.server, trust_env=False, verify=self.tls, limits=limits)

    def headers(self) -> dict[str, str]:
        """The headers of a request. Tokens of pods expire within the hour, so the file is read again when it changes."""
        try:
            stamp = self.token_file.stat().st_mtime_ns
            if stamp != self._token[0]:
                self._token = stamp, self.token_file.read_text().strip()
        except OSError as error:
            raise ApiError(f"The token {self.token_file} cannot be read: {error.strerror or error}.") from error
        return {"authorization": f"Bearer {self._token[1]}", "accept": "application/json"}

    def path(self, group: str, resource: str) -> str:
        """The path of a resource in the namespace. `group`: api/v1 or apis/<group>/<version>."""
        return f"/{group}/namespaces/{self.namespace}/{resource}"

    def check(self, status: int, title: str) -> None:
        """Raises ApiError or GoneError for a status that is no success. `title`: what was asked for."""
        if status == httpx.codes.OK:
            return
        if status == httpx.codes.GONE:
            raise GoneError(title)
        if status == httpx.codes.UNAUTHORIZED:
            raise ApiError(f"The API server does not accept the token in {self.token_file}.")
        if status == httpx.codes.FORBIDDEN:
            raise ApiError(
                f"The router may not read {title} in namespace {self.namespace}: allow its Role get, list and watch."
            )
        raise ApiError(f"The API server answered {status} for {title}.")

    def describe(self, error: Exception, title: str) -> str:
        """What went wrong, without what was sent or answered."""
        if isinstance(error, ApiError):
            return str(error)
        if isinstance(error, httpx.HTTPError | OSError):
            return f"The API server {self.server} cannot be reached ({type(error).__name__})."
        return f"The API server's answer for {title} cannot be read ({type(error).__name__})."


def kubernetes_api(settings: Settings, environment: Mapping[str, str] = os.environ) -> KubernetesApi:
    """The API server of these settings, else the one that the pod is told. Raises StartError."""
    server = settings.kubernetes_server or _server_of(environment)
    namespace = settings.namespace or _read(SERVICE_ACCOUNT / "namespace", "--namespace")
    _read(settings.kubernetes_token_file, "--kubernetes-token-file")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if server.startswith("https://"):
        try:
            tls.load_verify_locations(settings.kubernetes_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise StartError(
                f"The API server's CA {settings.kubernetes_ca_file} cannot be read ({error.strerror or error}): "
                "give --kubernetes-ca-file."
            ) from error
    return KubernetesApi(server.rstrip("/"), namespace, settings.kubernetes_token_file, tls)


def _server_of(environment: Mapping[str, str]) -> str:
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise StartError("This process is in no pod, so it knows no API server: give --kubernetes-server, or --table.")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _read(path: Path, option: str) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise StartError(f"{path} cannot be read ({error.strerror or error}): give {option}.") from error
