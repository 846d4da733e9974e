"""The contract of HlServe: what its parts, its operators and its clients must agree on.

Here belong custom resources (`v1alpha1`), condition reasons (`conditions`), the documents that the operator writes and the router
reads (`routing`) and how they are compiled (`compile`), header names, answers, outcomes and metric declarations. Nothing here does
I/O or reads a clock; every other member imports it, and it imports none of them. Not imported here, because programs on a cluster need
none of them: `generate` (YAML and pages from the models), `admission` (the API server's checks without one), `testing`.
"""
