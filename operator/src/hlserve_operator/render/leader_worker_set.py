"""The LeaderWorkerSet of one revision, for replicas that span nodes. Like a Deployment's, its template is never edited."""

from typing import Any

from hlserve_operator.render.deployment import child_metadata, pod_template
from hlserve_operator.render.metadata import SERVING, WORKER
from hlserve_operator.state import EnginePlan, Manifest, Release

RENDEZVOUS_PORT = 20_000
"""Port of the first pod at which the others of its replica find it."""
EXCLUSIVE_TOPOLOGY_ANNOTATION = "leaderworkerset.sigs.k8s.io/exclusive-topology"


def leader_worker_set(engine: EnginePlan, release: Release, revision: str, replicas: int) -> Manifest:
    """The LeaderWorkerSet `<pool>-<revision>` with `replicas` groups. A group is restarted as a whole: an engine does not survive the
    loss of one of its nodes. Raises PatchRejectedError like `pod_template`."""
    meta = child_metadata(engine.pool, release, revision)
    topology = engine.pool.spec.scheduling.group_topology_key
    if topology is not None:
        meta["annotations"] = {EXCLUSIVE_TOPOLOGY_ANNOTATION: topology}
    template: dict[str, Any] = {
        "size": engine.pool.spec.parallelism.nodes,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": pod_template(engine, release, revision, SERVING),
        "workerTemplate": pod_template(engine, release, revision, WORKER),
    }
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": meta,
        "spec": {"replicas": replicas, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template},
    }


def node_arguments(nodes: int) -> tuple[str, ...]:
    """Engine arguments by which the pods of one replica find each other; Kubernetes puts in what LeaderWorkerSet tells each pod."""
    return (
        *("--nnodes", str(nodes), "--node-rank", "$(LWS_WORKER_INDEX)"),
        *("--dist-init-addr", f"$(LWS_LEADER_ADDRESS):{RENDEZVOUS_PORT}"),
    )
