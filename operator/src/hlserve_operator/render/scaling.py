"""What changes a pool's replicas by its load: a KEDA ScaledObject or a HorizontalPodAutoscaler on the pool's scale subresource.

Both read one number, how many replicas the load wants (`wantedReplicas`), with a target of 1 each: so the signal, which depends on
the mode, is computed in one place and the autoscaler only applies bounds and patience.
"""

from typing import Any

from hlserve_api.v1alpha1 import ServingPool
from hlserve_api.v1alpha1.pool_operations import Autoscaling, AutoscalingProvider
from hlserve_operator.render.metadata import metadata
from hlserve_operator.state import Manifest, Release

WANTED_REPLICAS_METRIC = "hlserve_operator_pool_wanted_replicas"
"""What an HPA asks the external metrics API for, and KEDA asks Prometheus for, with the label `pool`."""
POLLING_SECONDS = 15
SCALE_UP_SECONDS = 0
"""Demand that grew is followed at once: a start takes minutes as it is."""


def scaled_object(pool: ServingPool, release: Release) -> Manifest | None:
    """The pool's ScaledObject; None if its autoscaling is not KEDA's.

    Prometheus is asked where the release names one, else the operator's own `GET /v1/scale-signals/POOL`.
    """
    scaling = pool.spec.autoscaling
    if scaling is None or scaling.provider is not AutoscalingProvider.KEDA:
        return None
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata(pool, release.name, pool.name),
        "spec": {
            "scaleTargetRef": _target(pool),
            "minReplicaCount": scaling.min_replicas,
            "maxReplicaCount": scaling.max_replicas,
            "pollingInterval": POLLING_SECONDS,
            "cooldownPeriod": scaling.scale_down_stabilization_seconds,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(scaling)}},
            "triggers": [_trigger(pool, release)],
        },
    }


def horizontal_pod_autoscaler(pool: ServingPool, release: Release) -> Manifest | None:
    """The pool's HorizontalPodAutoscaler on an external metric; None if its autoscaling is not an HPA's."""
    scaling = pool.spec.autoscaling
    if scaling is None or scaling.provider is not AutoscalingProvider.HPA:
        return None
    metric = {"name": WANTED_REPLICAS_METRIC, "selector": {"matchLabels": {"pool": pool.name}}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(pool, release.name, pool.name),
        "spec": {
            "scaleTargetRef": _target(pool),
            "minReplicas": scaling.min_replicas,
            "maxReplicas": scaling.max_replicas,
            "behavior": _behavior(scaling),
            "metrics": [
                {"type": "External", "external": {"metric": metric, "target": {"type": "AverageValue", "averageValue": "1"}}}
            ],
        },
    }  # fmt: skip


def _target(pool: ServingPool) -> dict[str, str]:
    return {"apiVersion": pool.api_version, "kind": pool.kind, "name": pool.name}


def _behavior(scaling: Autoscaling) -> dict[str, Any]:
    return {
        "scaleUp": {"stabilizationWindowSeconds": SCALE_UP_SECONDS},
        "scaleDown": {"stabilizationWindowSeconds": scaling.scale_down_stabilization_seconds},
    }


def _trigger(pool: ServingPool, release: Release) -> dict[str, Any]:
    if release.prometheus_address is not None:
        query = f'max({WANTED_REPLICAS_METRIC}{{namespace="{pool.metadata.namespace}",pool="{pool.name}"}})'
        return {
            "type": "prometheus",
            "metricType": "AverageValue",
            "metadata": {"serverAddress": release.prometheus_address, "query": query, "threshold": "1"},
        }
    return {
        "type": "metrics-api",
        "metricType": "AverageValue",
        "metadata": {
            "url": f"http://{release.name}-operator.{pool.metadata.namespace}.svc:{release.operator_port}/v1/scale-signals/{pool.name}",
            "valueLocation": "wantedReplicas",
            "targetValue": "1",
            "authMode": "bearer",
        },
        "authenticationRef": {"name": f"{release.name}-scale-signals"},
    }
