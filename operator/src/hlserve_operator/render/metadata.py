"""Names, labels and owners that all children share."""

from typing import Any

from hlserve_api.v1alpha1 import ServingPool

POOL_LABEL = "serving.hlserve.io/pool"
REVISION_LABEL = "serving.hlserve.io/revision"
ROLE_LABEL = "serving.hlserve.io/role"
SERVING = "serving"
"""Role of a pod that takes requests."""
WORKER = "worker"
"""Role of a pod that computes for another one, on its own node."""
FIELD_MANAGER = "hlserve-operator"
DRAINING_ANNOTATION = "serving.hlserve.io/draining-since"
"""On a pod: when it was chosen to go, RFC 3339. Routers place nothing on it from then on."""
TEMPLATE_ANNOTATION = "serving.hlserve.io/spec"
"""On a child: its spec without replicas, as JSON. Drift is repaired from here, so that a newer operator never rolls an older one's pods."""
CAPS_ANNOTATION = "serving.hlserve.io/caps"
"""On a child: what a replica of it may have in flight, as JSON. Routers keep to it until the replica is gone."""
DELETION_COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
RELEASED_COST = "-1000"
"""Deletion cost of a pod that has drained: the next one that its child gives up."""


def labels(pool: ServingPool, release: str) -> dict[str, str]:
    """Labels of every child. Only `POOL_LABEL` and `REVISION_LABEL` are ever selected by."""
    return {
        "app.kubernetes.io/name": "hlserve-engine",
        "app.kubernetes.io/instance": release,
        "app.kubernetes.io/component": "engine",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        POOL_LABEL: pool.name,
    }


def metadata(pool: ServingPool, release: str, name: str) -> dict[str, Any]:
    """Metadata of a child: it goes when the pool goes, unless the pool comes from a file and has no identity yet."""
    result: dict[str, Any] = {
        "name": name,
        "namespace": pool.metadata.namespace,
        "labels": labels(pool, release),
    }
    if pool.metadata.uid:
        result["ownerReferences"] = [
            {
                "apiVersion": pool.api_version,
                "kind": pool.kind,
                "name": pool.name,
                "uid": pool.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
    return result
