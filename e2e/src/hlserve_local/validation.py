"""From a folder to objects that may be used, or to sentences that say why not. What `hlserve validate` and `hlserve up` share."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from hlserve_api.admission import Validator
from hlserve_api.v1alpha1 import ClientKey, CustomResource, ServingPool, WorkloadClass
from hlserve_local.class_checks import check_classes
from hlserve_local.core_secrets import read_secret
from hlserve_local.derive_checks import check_derivation
from hlserve_local.key_checks import check_keys
from hlserve_local.manifests import Folder, Kind, Manifest, read_folder
from hlserve_local.objects import Objects, Placed
from hlserve_local.problems import Problem, Severity, error, has_errors
from hlserve_router.limit_store import MEMORY

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


def outlives_process(limits_store: str | None) -> bool:
    """Whether the limits of a `--limits-store` do, so that budgets can work. Unset: a file, as `hlserve up` has it by default."""
    return limits_store != MEMORY


def validate(path: Path, *, durable_store: bool = False) -> Validation:
    """Read and check a folder, or one file. `durable_store`: the routers' limits outlive their process, so budgets can work.

    Raises FolderMissingError.
    """
    return check_folder(read_folder(path), durable_store=durable_store, now=datetime.now(UTC))


def check_folder(folder: Folder, *, durable_store: bool, now: datetime) -> Validation:
    """Check what was read. Checks across objects leave out those that are broken by themselves. Pure."""
    problems = [*folder.problems, *_one_namespace(folder.manifests)]
    unique, repeated = _split_repeated(folder.manifests)
    problems += repeated
    validator = Validator()
    broken: set[tuple[Kind, str]] = set()
    for manifest in unique:
        if manifest.kind is not Kind.SECRET and (found := validator.validate(dict(manifest.body))):
            broken.add((manifest.kind, manifest.name))
            problems += [error(manifest.place, _sentence(item.message), item.path) for item in found]
    secrets = {item.name: read_secret(item) for item in unique if item.kind is Kind.SECRET}
    problems += [problem for secret in secrets.values() for problem in secret.problems]
    broken |= {(Kind.SECRET, name) for name, secret in secrets.items() if secret.problems}
    valid = [manifest for manifest in unique if (manifest.kind, manifest.name) not in broken]
    objects = Objects(
        pools=_typed(valid, ServingPool, validator),
        classes=_typed(valid, WorkloadClass, validator),
        keys=_typed(valid, ClientKey, validator),
        secrets={name: secret.values for name, secret in secrets.items()},
        secret_places={item.name: item.place for item in valid if item.kind is Kind.SECRET},
        broken=frozenset(broken),
    )
    if not folder.problems:
        # An object that could not be read at all would be missed by these checks, and others blamed for it.
        problems += [
            *check_classes(objects),
            *check_keys(objects, durable_store=durable_store, now=now),
            *check_derivation(objects),
        ]
    return Validation(
        objects, tuple(sorted(problems, key=lambda problem: (problem.place.file, problem.place.document)))
    )


def _typed(manifests: Iterable[Manifest], kind: type[R], validator: Validator) -> tuple[Placed[R], ...]:
    return tuple(
        Placed(kind.model_validate(validator.default(dict(manifest.body))), manifest.place)
        for manifest in manifests
        if manifest.kind == kind.names.kind
    )


def _split_repeated(manifests: Iterable[Manifest]) -> tuple[list[Manifest], list[Problem]]:
    first: dict[tuple[Kind, str], Manifest] = {}
    problems: list[Problem] = []
    for manifest in manifests:
        former = first.setdefault((manifest.kind, manifest.name), manifest)
        if former is not manifest:
            problems.append(
                error(
                    manifest.place,
                    f"the same object is also in {former.place.file}, document {former.place.document}: remove one of them, or "
                    "give it another name.",
                )
            )
    return list(first.values()), problems


def _one_namespace(manifests: Iterable[Manifest]) -> Iterator[Problem]:
    first: Mapping[str, Manifest] = {}
    for manifest in manifests:
        if manifest.namespace and manifest.namespace not in first:
            first = {**first, manifest.namespace: manifest}
    if len(first) > 1:
        used, *others = first
        for name in others:
            yield error(
                first[name].place,
                f"{name} is another namespace than {used}, which other manifests use, and one release serves one namespace: "
                "keep each namespace in a folder of its own.",
                "metadata.namespace",
            )


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."
