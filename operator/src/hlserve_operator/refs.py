"""Names of Kubernetes objects: which object of the release's namespace is meant. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """One object of the release's namespace."""

    api_version: str
    """`v1`, or `<group>/<version>`."""
    kind: str
    name: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Self:
        """The object that a manifest describes. Raises KeyError if it has no apiVersion, kind or name."""
        return cls(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"])

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    def __str__(self) -> str:
        """As people write it: `Deployment chat-1f2e3d4c`."""
        return f"{self.kind} {self.name}"
