"""The frozen values that are passed between the parts of the operator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hlserve_api.routing import DEFAULT_KEYRING_SHARDS
from hlserve_api.v1alpha1 import ServingPool

Manifest = dict[str, Any]
"""A Kubernetes object as plain data, ready for YAML or JSON."""

ENGINE_CONTAINER = "engine"
"""Name of the engine's container in its pod."""
ENGINE_PORT = 30_000
"""The image contract: engines listen on this port; `/health`, `/hlserve/ready` and `/metrics` answer there."""


class NotRenderableError(ValueError):
    """The pool asks for something that cannot be rendered. The message says what to change."""


class PatchRejectedError(NotRenderableError):
    """`podPatch` touches what belongs to the operator."""


class ArgumentRejectedError(NotRenderableError):
    """`engine.extraArgs` holds a flag that belongs to the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What one release of the chart knows and its pools share."""

    name: str = "hlserve"
    default_image: str | None = None
    """Engine image of pools that name none."""
    monitoring_namespace_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the namespace whose Prometheus may read engines' metrics; empty: none may."""
    operator_port: int = 8080
    """Port of the operator's Service, for autoscalers that ask it."""
    prometheus_address: str | None = None
    """URL of the Prometheus that KEDA asks; None: it asks the operator."""
    keyring_shards: int = DEFAULT_KEYRING_SHARDS
    """Secrets that the keyring is spread over: the chart's value, because the routers' Role names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """How the engines of one pool are run: the pool, and what was derived from it."""

    pool: ServingPool
    arguments: tuple[str, ...]
    """Of the engine, complete but for secrets."""
    grace_seconds: int
    """Longest time between SIGTERM and SIGKILL."""
    image: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The children of one pool, in the order in which they are applied."""

    revision: str
    """Hash of everything that needs new pods when it changes."""
    objects: Sequence[Manifest]
