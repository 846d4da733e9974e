"""What is wrong with a folder of manifests: one sentence each, and where to look."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Errors stop `hlserve up` and fail `hlserve validate`; warnings do neither."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a problem is. `document` counts from 1; 0 means the whole file, and an empty `file` the whole folder."""

    file: str = ""
    document: int = 0
    kind: str = ""
    name: str = ""

    def __str__(self) -> str:
        if not self.file:
            return "folder"
        text = self.file
        if self.document:
            text += f", document {self.document}"
        if self.kind:
            text += f" ({self.kind} {self.name})" if self.name else f" ({self.kind})"
        return text


@dataclass(frozen=True, slots=True)
class Problem:
    """One sentence for a person: what is wrong, and what to do about it."""

    severity: Severity
    place: Place
    message: str
    path: str = ""
    """The field, e.g. `spec.slo.tpotMilliseconds`; empty: the object as a whole."""

    def __str__(self) -> str:
        field = f"{self.path}: " if self.path else ""
        return f"{self.severity}: {self.place}: {field}{self.message}"


def error(place: Place, message: str, path: str = "") -> Problem:
    """A problem that stops the manifests from being used."""
    return Problem(Severity.ERROR, place, message, path)


def warning(place: Place, message: str, path: str = "") -> Problem:
    """A problem that is worth a look."""
    return Problem(Severity.WARNING, place, message, path)


def has_errors(problems: tuple[Problem, ...]) -> bool:
    """Whether any of them is more than a warning."""
    return any(problem.severity is Severity.ERROR for problem in problems)
