"""What is reconciled as one: a pool, or all of access. Pure."""

from dataclasses import dataclass
from typing import Final

POOL_KIND: Final = "ServingPool"


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One unit of work. `name` is empty where there is only one of the kind."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        """For logs: `ServingPool/chat`, `access`."""
        return f"{self.kind}/{self.name}" if self.name else self.kind


ACCESS: Final = Key("access")
"""The routing table, the keyrings and the statuses of all classes and keys: one table is compiled from all of them."""


def pool_key(name: str) -> Key:
    """The key of a ServingPool."""
    return Key(POOL_KIND, name)
