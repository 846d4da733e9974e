"""Helpers for tests of the one-machine stack: manifests to start from, and a foreign server. Not used by the product."""
