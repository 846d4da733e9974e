"""Builders of valid objects and checks for tests, ours and other members'. Programs do not import it."""

from hlserve_api.testing.manifests import (
    a_client_key,
    a_human_less_pool,
    a_workload_class,
    an_interactive_pool,
    changed,
    without,
)

__all__ = ["a_client_key", "a_human_less_pool", "a_workload_class", "an_interactive_pool", "changed", "without"]
