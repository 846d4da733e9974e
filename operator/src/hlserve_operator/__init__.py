"""The operator: from a custom resource to the objects that a cluster needs."""
