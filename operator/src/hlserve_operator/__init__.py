"""The operator: from a custom resource to the objects that a cluster needs.

Here belong the pure plan of a pool's children (`plan`, `render`, `revision`) and the command that prints it. Nothing here
talks to a cluster: `hlserve-operator render` reads manifests from files and writes YAML to stdout. Numbers that follow from
an SLO come from `hlserve_capacity.derive`, the fields of a pool from `hlserve_api.v1alpha1`.
"""
