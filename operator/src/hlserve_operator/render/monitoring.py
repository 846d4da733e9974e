"""How Prometheus finds a pool's engines."""

from hlserve_api.v1alpha1 import ServingPool
from hlserve_operator.render.metadata import POOL_LABEL, REVISION_LABEL, ROLE_LABEL, SERVING, metadata
from hlserve_operator.state import Manifest, Release


def pod_monitor(pool: ServingPool, release: Release) -> Manifest:
    """A PodMonitor over every revision, with the pool and the revision as labels."""
    endpoint = {"port": "http", "path": "/metrics"}
    if pool.spec.engine.tls is not None:
        endpoint["scheme"] = "https"
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata(pool, release.name, pool.name),
        "spec": {
            "selector": {"matchLabels": {POOL_LABEL: pool.name, ROLE_LABEL: SERVING}},
            "podTargetLabels": [POOL_LABEL, REVISION_LABEL],
            "podMetricsEndpoints": [endpoint],
        },
    }
