"""A real Kubernetes on this machine for tests: an API server in seconds, or one node that runs pods. See `e2e/cluster/README.md`.

Development only: it builds its programs from the repository's `e2e/cluster` and is in no wheel.
"""
