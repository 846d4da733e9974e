"""One builder per child kind: from frozen values to plain Kubernetes objects. Pure; called by `hlserve_operator.plan` only."""
