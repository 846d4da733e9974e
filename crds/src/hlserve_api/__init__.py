"""The contract of HlServe: what its parts, its operators and its clients must agree on.

Here belong custom resources (`v1alpha1`), the documents that the operator writes and the router reads (`routing`), header
names, answers, outcomes and metric declarations. Nothing here does I/O or reads a clock; every other member imports it,
and it imports none of them. The code that generates YAML and pages from it lives in `hlserve_api.generate` and is not
imported here.
"""
