"""Labels by which the operator finds again what it wrote for access."""

from collections.abc import Mapping
from typing import Any, Final

from hlserve_operator.render.metadata import FIELD_MANAGER

DOCUMENT_LABEL: Final = "serving.hlserve.io/routing-document"
"""On the documents that routers read; its value is one of the three below."""
TABLE: Final = "table"
KEYRING: Final = "keyring"
ENGINE_CREDENTIALS: Final = "engine-credentials"

GENERATED_LABEL: Final = "serving.hlserve.io/client-key-uid"
"""On Secrets that were made for a ClientKey; its value is the ClientKey's UID, because a name may be too long for a label."""


def is_ours(manifest: Mapping[str, Any]) -> bool:
    """Whether a document is ours: by its label, or, if that was taken off, because we applied it."""
    metadata = manifest["metadata"]
    fields = metadata.get("managedFields") or ()
    applied = any((entry.get("manager"), entry.get("operation")) == (FIELD_MANAGER, "Apply") for entry in fields)
    return applied or DOCUMENT_LABEL in (metadata.get("labels") or {})


def release_labels(release: str) -> dict[str, Any]:
    """Labels of everything that the operator writes for access."""
    return {
        "app.kubernetes.io/name": "hlserve-access",
        "app.kubernetes.io/instance": release,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
    }
