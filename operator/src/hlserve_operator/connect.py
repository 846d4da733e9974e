"""How the operator reaches the API server: the service account of its pod, or a context of a kubeconfig."""

import os
from typing import Final

import kopf
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from hlserve_operator.errors import StartError
from hlserve_operator.settings import Settings

CONNECTIONS: Final = 200
"""Watches hold one each; the rest is for calls."""
_BEARER: Final = "BearerToken"


async def connect(settings: Settings, version: str) -> kubernetes_client.ApiClient:
    """A client with credentials that renew themselves. Raises StartError, in one sentence."""
    configuration = kubernetes_client.Configuration(
        # A proxy of the environment would not know the API server.
        client_session_kwargs={"trust_env": False},
        connection_pool_maxsize=CONNECTIONS,
    )
    if settings.kubeconfig is not None and not settings.kubeconfig.is_file():
        # The library logs that, goes on with an empty one, and then misses a key in it.
        raise StartError(
            f"--kubeconfig {settings.kubeconfig}: there is no such file. Name one, or leave the option out in a pod."
        )
    try:
        if settings.kubeconfig is not None or settings.context is not None:
            await kubernetes_config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=None if settings.kubeconfig is None else str(settings.kubeconfig),
                context=settings.context,
                client_configuration=configuration,
                persist_config=False,
            )
        else:
            kubernetes_config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    except (kubernetes_config.ConfigException, OSError) as error:
        raise StartError(
            f"No way to the API server ({error}): run this in a pod with a service account, or give --kubeconfig."
        ) from error
    # A proxy for the API server comes from a kubeconfig's proxy-url only.
    if settings.kubeconfig is None:
        configuration.proxy = None
    client = kubernetes_client.ApiClient(configuration)
    client.user_agent = f"hlserve-operator/{version}"
    return client


async def kopf_credentials(configuration: kubernetes_client.Configuration) -> kopf.ConnectionInfo:
    """The same credentials as kopf wants them. Tokens of pods expire, so it asks again when one is refused."""
    bearer = await configuration.get_api_key_with_prefix(_BEARER)
    scheme, _, token = (bearer or "").partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert or None,
        ca_data=configuration.ca_cert_data or None,
        insecure=not configuration.verify_ssl,
        scheme=scheme.capitalize() if token else None,
        token=token.strip() or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
    )


def name_user() -> None:
    """kopf asks who the user is; a container with a numeric user has no answer in its files."""
    os.environ.setdefault("USER", "hlserve-operator")
