"""A folder's objects once each of them is valid by itself: typed, with their places, ready for checks across objects."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from hlserve_api.compile import selects
from hlserve_api.v1alpha1 import ClientKey, ServingPool, WorkloadClass
from hlserve_api.v1alpha1.workload_class import ClassTarget
from hlserve_local.manifests import Kind
from hlserve_local.problems import Place

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Placed(Generic[T]):
    """An object and the document it came from."""

    value: T
    place: Place


@dataclass(frozen=True, slots=True)
class Objects:
    """Everything of one folder. Names are unique within each kind; of objects given twice the first stands here."""

    pools: tuple[Placed[ServingPool], ...] = ()
    classes: tuple[Placed[WorkloadClass], ...] = ()
    keys: tuple[Placed[ClientKey], ...] = ()
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Secret name → key within it → plain text."""
    secret_places: Mapping[str, Place] = field(default_factory=dict)

    broken: frozenset[tuple[Kind, str]] = frozenset()
    """Objects that the folder holds but that are not valid by themselves, so they stand nowhere else here."""

    def any_broken(self, *kinds: Kind) -> bool:
        """Whether an object of one of these kinds is broken: what is missing may then be just that one."""
        return any(kind in kinds for kind, _ in self.broken)

    @property
    def secret_values(self) -> dict[tuple[str, str], str]:
        """(Secret name, key) → plain text, as `hlserve_api.compile` takes them."""
        return {(name, key): value for name, values in self.secrets.items() for key, value in values.items()}

    def pools_of(self, target: ClassTarget) -> Iterator[Placed[ServingPool]]:
        """The pools that a target of a class names or selects."""
        return (pool for pool in self.pools if selects(target, pool.value))
