"""Custom resources of `serving.hlserve.io/v1alpha1` as typed models: the only source of the CRDs and their reference pages.

Here belong fields, bounds, CEL rules, printer columns and their prose. What the operator derives from them belongs in
`hlserve_capacity`, and how a document for the router is made from them in `hlserve_api.compile`. Models are frozen and ignore
unknown fields, because an older operator must survive a newer CRD.
"""

from hlserve_api.v1alpha1.client_key import ClientKey
from hlserve_api.v1alpha1.meta import GROUP, VERSION, CustomResource
from hlserve_api.v1alpha1.serving_pool import ServingPool
from hlserve_api.v1alpha1.workload_class import WorkloadClass

KINDS: tuple[type[CustomResource], ...] = (ServingPool, WorkloadClass, ClientKey)

__all__ = ["GROUP", "KINDS", "VERSION", "ClientKey", "CustomResource", "ServingPool", "WorkloadClass"]
