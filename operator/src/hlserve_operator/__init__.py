"""The operator: from custom resources to the objects that a cluster needs, and to what routers read.

Pure plans (`pools`, `access`, `plan`, `render`, `revision`) know no I/O and no clock. Around them: `run` (the process), `lease`,
`kopf_source`, `watching` and `copies` (what makes an object due), `work` (the queue), `observe`, `reconcile` and `execute`. Numbers that
follow from an SLO come from `hlserve_capacity.derive`, the fields of custom resources from `hlserve_api.v1alpha1`.
"""
