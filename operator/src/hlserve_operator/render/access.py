"""How a pool's engines are reached and protected: Service, PodDisruptionBudget, NetworkPolicy."""

from typing import Any

from hlserve_api.routing import Mode
from hlserve_operator.render.metadata import POOL_LABEL, ROLE_LABEL, SERVING, metadata
from hlserve_operator.state import ENGINE_PORT, EnginePlan, Manifest, Release


def service(engine: EnginePlan, release: Release) -> Manifest:
    """A headless Service over every revision: routers read its EndpointSlices and pick an engine themselves."""
    pool = engine.pool
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(pool, release.name, pool.name),
        "spec": {
            "clusterIP": "None",
            "selector": {POOL_LABEL: pool.name, ROLE_LABEL: SERVING},
            "ports": [{"name": "http", "port": ENGINE_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def disruption_budget(engine: EnginePlan, release: Release) -> Manifest | None:
    """How many engines an eviction may take at once: one in Interactive, a quarter in HumanLess; None if the pool is preemptible."""
    pool = engine.pool
    if pool.spec.mode is Mode.INTERACTIVE:
        unavailable: int | str = 1
    elif pool.spec.throughput is not None and pool.spec.throughput.preemptible is False:
        unavailable = "25%"
    else:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(pool, release.name, pool.name),
        "spec": {"maxUnavailable": unavailable, "selector": {"matchLabels": {POOL_LABEL: pool.name}}},
    }


def network_policy(engine: EnginePlan, release: Release) -> Manifest:
    """Only the release's routers, its operator and, if named, the monitoring namespace reach engines: nobody gets past the router."""
    pool = engine.pool
    sources: list[dict[str, Any]] = [
        {
            "podSelector": {
                "matchLabels": {"app.kubernetes.io/instance": release.name, "app.kubernetes.io/component": component}
            }
        }
        for component in ("router", "operator")
    ]
    if release.monitoring_namespace_labels:
        sources.append({"namespaceSelector": {"matchLabels": dict(release.monitoring_namespace_labels)}})
    rules: list[dict[str, Any]] = [{"from": sources, "ports": [{"port": ENGINE_PORT, "protocol": "TCP"}]}]
    if pool.spec.parallelism.nodes > 1:  # the pods of one replica talk to each other on ports of their choice
        rules.append({"from": [{"podSelector": {"matchLabels": {POOL_LABEL: pool.name}}}]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(pool, release.name, pool.name),
        "spec": {
            "podSelector": {"matchLabels": {POOL_LABEL: pool.name}},
            "policyTypes": ["Ingress"],
            "ingress": rules,
        },
    }
