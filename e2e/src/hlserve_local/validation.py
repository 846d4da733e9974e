"""From a folder to objects that may be used, or to sentences that say why not. What `hlserve validate` and `hlserve up` share."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hlserve_api.v1alpha1 import ClientKey, CustomResource, ServingPool, WorkloadClass
from hlserve_local.class_checks import check_classes
from hlserve_local.key_checks import check_keys, key_problems
from hlserve_local.manifests import Folder, Kind, Manifest, read_folder
from hlserve_local.objects import Objects, Placed
from hlserve_local.problems import Problem, Severity, error, has_errors
from hlserve_local.secrets import read_secret

R = TypeVar("R", bound=CustomResource)


@dataclass(frozen=True, slots=True)
class Validation:
    """The objects of a folder and everything that is wrong with them, in file order."""

    objects: Objects
    problems: tuple[Problem, ...]

    @property
    def usable(self) -> bool:
        """No error, so `hlserve up` may use the objects."""
        return not has_errors(self.problems)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The problems that do not stop it."""
        return tuple(problem for problem in self.problems if problem.severity is Severity.WARNING)
