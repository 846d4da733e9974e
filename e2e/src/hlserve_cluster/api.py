"""As much of a Kubernetes client as starting a cluster needs: whether the server is ready, and server-side apply."""

import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import httpx

from hlserve_cluster.errors import ClusterError
from hlserve_cluster.layout import Layout

FIELD_MANAGER: Final = "hlserve-cluster"
TIMEOUT_SECONDS: Final = 10.0

Object = Mapping[str, Any]
"""A Kubernetes object, as JSON has it."""


class Api:
    """The administrator's connection to a cluster of ours."""

    def __init__(self, layout: Layout, url: str) -> None:
        context = ssl.create_default_context(cafile=str(layout.certificate("ca")))
        context.load_cert_chain(layout.certificate("admin"), layout.key("admin"))
        self._http = httpx.Client(base_url=url, verify=context, trust_env=False, timeout=TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def ok(self, path: str) -> bool:
        """Whether a GET is answered with success; False too while nobody listens."""
        try:
            return self._http.get(path).is_success
        except httpx.TransportError:
            return False

    def get(self, path: str) -> Any:
        """The decoded answer of a GET. Raises ClusterError for any but success."""
        return _checked(self._http.get(path)).json()

    def apply(self, path: str, body: Object, *, subresource: str = "") -> None:
        """Server-side apply of one object under its own path, without the name of its subresource."""
        target = f"{path}/{subresource}" if subresource else path
        answer = self._http.patch(
            target,
            params={"fieldManager": FIELD_MANAGER, "force": "true"},
            headers={"content-type": "application/apply-patch+yaml"},
            json=dict(body),
        )
        _checked(answer)

    def create(self, path: str, body: Object) -> None:
        """POST one object to its collection; one that exists already is left as it is."""
        answer = self._http.post(path, json=dict(body))
        if answer.status_code != httpx.codes.CONFLICT:
            _checked(answer)


def _checked(answer: httpx.Response) -> httpx.Response:
    if not answer.is_success:
        raise ClusterError(
            f"The API server answered {answer.status_code} to {answer.request.method} {answer.request.url.path}: "
            f"{answer.text[:500]}"
        )
    return answer
