"""GPUs that only the API server believes in: extended resources on a node's status, and nodes that kwok plays. Pure."""

from typing import Final

from hlserve_cluster.api import Object

RESOURCE: Final = "nvidia.com/gpu"
GPUS_PER_NODE: Final = 8
SIMULATED: Final = "hlserve.io/simulated"
"""Label of every node whose GPUs are not there."""


def gpu_labels() -> dict[str, str]:
    """Labels as NVIDIA's feature discovery sets them, so that selectors for a GPU product match."""
    return {"nvidia.com/gpu.product": "Simulated-GPU", "nvidia.com/gpu.present": "true", SIMULATED: "true"}


def gpu_status(count: int) -> Object:
    """Status of a node with so many GPUs; applied to the `status` subresource, it joins what the kubelet reports."""
    amount = {RESOURCE: str(count)}
    return {"capacity": amount, "allocatable": amount}


def kwok_node(index: int, gpus: int) -> Object:
    """A node without a machine: the scheduler places pods on it, kwok makes them ready, nothing runs."""
    name = f"kwok-{index}"
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", "ephemeral-storage": "2Ti", RESOURCE: str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux",
                "type": "kwok",
                **gpu_labels(),
            },
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "kubeletVersion": "fake",
                "bootID": "",
                "containerRuntimeVersion": "",
                "kernelVersion": "",
                "kubeProxyVersion": "fake",
                "machineID": "",
                "osImage": "",
                "systemUUID": "",
            },
            "phase": "Running",
        },
    }
