"""Client keys: making strong ones, and writing the manifests that carry them."""

import re
from typing import Any, Final

import yaml

from hlserve_api.v1alpha1.client_key import GENERATED_SECRET_KEY
from hlserve_local.manifests import API_VERSION

CREDENTIAL_ID: Final = "primary"
NAME_MAX_LENGTH: Final = 54
"""So that the Secret's name, `<name>-primary`, fits 63 characters too."""
_NAME: Final = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")


class KeyNameError(ValueError):
    """A name that Kubernetes would refuse for the ClientKey or its Secret."""


def secret_name(client_key: str, credential: str = CREDENTIAL_ID) -> str:
    """Name of the Secret that holds a credential whose manifest names none."""
    return f"{client_key}-{credential}"


def key_manifest(name: str, class_name: str, tenant: str | None, key: str) -> str:
    """YAML of a ClientKey and the Secret that holds `key`. Raises KeyNameError."""
    for what, value in (("key", name), ("class", class_name)):
        if len(value) > NAME_MAX_LENGTH or not _NAME.match(value):
            raise KeyNameError(
                f"The {what} name {value!r} is not usable: take at most {NAME_MAX_LENGTH} lower-case letters, digits and dashes, "
                "with a letter or digit at both ends."
            )
    spec: dict[str, Any] = {} if tenant is None else {"tenant": tenant}
    spec["workloadClassRef"] = {"name": class_name}
    secret = secret_name(name)
    spec["credentials"] = [{"id": CREDENTIAL_ID, "secretRef": {"name": secret, "key": GENERATED_SECRET_KEY}}]
    documents = (
        {"apiVersion": API_VERSION, "kind": "ClientKey", "metadata": {"name": name}, "spec": spec},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret}, "stringData": {GENERATED_SECRET_KEY: key}},
    )
    return "---\n".join(yaml.safe_dump(document, sort_keys=False) for document in documents)
