"""Where objects live in the API: the path of every kind that the operator touches. Pure."""

from typing import Final

from hlserve_api.v1alpha1 import GROUP, KINDS, VERSION
from hlserve_operator.refs import Ref

CUSTOM_API: Final = f"{GROUP}/{VERSION}"

PLURALS: Final[dict[tuple[str, str], str]] = {
    ("v1", "ConfigMap"): "configmaps",
    ("v1", "Event"): "events",
    ("v1", "PersistentVolumeClaim"): "persistentvolumeclaims",
    ("v1", "Pod"): "pods",
    ("v1", "Secret"): "secrets",
    ("v1", "Service"): "services",
    ("apps/v1", "Deployment"): "deployments",
    ("apps/v1", "ReplicaSet"): "replicasets",
    ("apps/v1", "StatefulSet"): "statefulsets",
    ("autoscaling/v2", "HorizontalPodAutoscaler"): "horizontalpodautoscalers",
    ("coordination.k8s.io/v1", "Lease"): "leases",
    ("discovery.k8s.io/v1", "EndpointSlice"): "endpointslices",
    ("keda.sh/v1alpha1", "ScaledObject"): "scaledobjects",
    ("keda.sh/v1alpha1", "TriggerAuthentication"): "triggerauthentications",
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): "leaderworkersets",
    ("monitoring.coreos.com/v1", "PodMonitor"): "podmonitors",
    ("networking.k8s.io/v1", "NetworkPolicy"): "networkpolicies",
    ("policy/v1", "PodDisruptionBudget"): "poddisruptionbudgets",
    **{(CUSTOM_API, kind.names.kind): kind.names.plural for kind in KINDS},
}
"""Plural by (apiVersion, kind). A kind that is not here cannot be read or written."""


def plural_of(api_version: str, kind: str) -> str:
    """The plural of a kind. Raises KeyError, in a sentence, for one that is not in `PLURALS`."""
    plural = PLURALS.get((api_version, kind))
    if plural is None:
        raise KeyError(f"{api_version} {kind} is not in hlserve_operator.resources.PLURALS: add it there.")
    return plural


def group_path(api_version: str) -> str:
    """The path under which a group and version are served: `/api/v1`, `/apis/apps/v1`."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def collection_path(api_version: str, kind: str, namespace: str) -> str:
    """The path of all objects of a kind in a namespace. Raises KeyError like `plural_of`."""
    return f"{group_path(api_version)}/namespaces/{namespace}/{plural_of(api_version, kind)}"


def object_path(ref: Ref, namespace: str, subresource: str = "") -> str:
    """The path of one object, or of a subresource of it (`status`, `scale`). Raises KeyError like `plural_of`."""
    path = f"{collection_path(ref.api_version, ref.kind, namespace)}/{ref.name}"
    return f"{path}/{subresource}" if subresource else path
