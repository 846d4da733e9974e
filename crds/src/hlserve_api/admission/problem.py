"""A complaint about one field, and paths to fields as Kubernetes writes them."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong at `path` (such as `spec.targets[1].role`; empty: the object), in one sentence that says what to do."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def join(path: str, step: str | int) -> str:
    """A path with one more step: a field name, or an index in a list."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else step


def path_of(steps: Iterable[str | int]) -> str:
    """A path from its steps."""
    path = ""
    for step in steps:
        path = join(path, step)
    return path
