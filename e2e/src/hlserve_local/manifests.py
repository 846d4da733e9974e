"""Reading manifests from a folder the way `kubectl apply -f DIR` does: `*.yaml`, `*.yml`, `*.json`, several documents a file.

Only reading and the shape of an object (apiVersion, kind, metadata.name) happen here; schema and meaning come later.
"""

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml

from hlserve_local.problems import Place, Problem, error

SUFFIXES: Final = (".yaml", ".yml", ".json")
API_VERSION: Final = "serving.hlserve.io/v1alpha1"


class Kind(StrEnum):
    """The kinds that a folder may hold."""

    SERVING_POOL = "ServingPool"
    WORKLOAD_CLASS = "WorkloadClass"
    CLIENT_KEY = "ClientKey"
    SECRET = "Secret"

    @property
    def api_version(self) -> str:
        """The `apiVersion` that goes with this kind."""
        return "v1" if self is Kind.SECRET else API_VERSION


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object as it stands in a file."""

    kind: Kind
    name: str
    namespace: str
    body: Mapping[str, Any]
    place: Place


@dataclass(frozen=True, slots=True)
class Folder:
    """All objects of a folder in file order, and what could not be read."""

    manifests: tuple[Manifest, ...]
    problems: tuple[Problem, ...]

    def of_kind(self, kind: Kind) -> tuple[Manifest, ...]:
        """The objects of one kind."""
        return tuple(manifest for manifest in self.manifests if manifest.kind is kind)


class FolderMissingError(ValueError):
    """The path that was given holds no manifests at all, or cannot be read."""


class _Loader(yaml.SafeLoader):
    """YAML as the API server reads it: a key twice is an error, and a time stamp is a string."""


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen: set[str] = set()
    for key_node, _ in node.value:
        key = str(key_node.value)
        if key in seen and key != "<<":
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} stands twice in one mapping: remove one", key_node.start_mark
            )
        seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"
_INT: Final = "tag:yaml.org,2002:int"
# SafeLoader would turn `2026-01-01` into a date and `1:30` into 90; Kubernetes reads both as strings.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_TIMESTAMP, _INT)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _INT,
    re.compile(r"^(?:[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$"),
    list("-+0123456789"),
)


def read_folder(path: Path) -> Folder:
    """Read every manifest under `path` (a folder, not recursive, or one file).

    Raises FolderMissingError if the path does not exist or a folder holds no manifest file.
    """
    manifests: list[Manifest] = []
    problems: list[Problem] = []
    for file in manifest_files(path):
        for found in _read_file(file):
            if isinstance(found, Manifest):
                manifests.append(found)
            else:
                problems.append(found)
    return Folder(tuple(manifests), tuple(problems))


def manifest_files(path: Path) -> tuple[Path, ...]:
    """The files that `read_folder` reads, sorted by name. Raises FolderMissingError like it."""
    try:
        if path.is_file():
            return (path,)
        if not path.is_dir():
            raise FolderMissingError(f"{path} does not exist: give -f a folder with manifests, or one manifest file.")
        files = tuple(sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file()))
    except OSError as failure:
        raise FolderMissingError(f"{path} cannot be read ({failure.strerror}): check the path.") from None
    if not files:
        raise FolderMissingError(
            f"{path} holds no *.yaml, *.yml or *.json file: give -f the folder with the manifests."
        )
    return files


def _read_file(file: Path) -> Iterator[Manifest | Problem]:
    whole_file = Place(file.name)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        yield error(whole_file, "is not UTF-8 text: save it as UTF-8.")
        return
    except OSError as failure:
        yield error(whole_file, f"cannot be read ({failure.strerror}): check the file's permissions.")
        return
    documents = yaml.load_all(text, Loader=_Loader)
    number = 0
    while True:
        number += 1
        try:
            document = next(documents)
        except StopIteration:
            return
        except yaml.YAMLError as failure:
            # A YAML error leaves no way to find where the next document starts.
            yield error(Place(file.name, number), _yaml_sentence(failure))
            return
        if document is not None:
            yield from _read_document(document, Place(file.name, number))


def _yaml_sentence(failure: yaml.YAMLError) -> str:
    mark = getattr(failure, "problem_mark", None)
    what = getattr(failure, "problem", None) or " ".join(str(failure).split())
    where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    return f"is not valid YAML{where}: {what}; the rest of this file was not read."


def _read_document(document: object, place: Place) -> Iterator[Manifest | Problem]:
    if not isinstance(document, dict):
        yield error(
            place, f"is a {_yaml_type(document)}, not an object: a manifest starts with apiVersion, kind, metadata."
        )
        return
    if document.get("kind") == "List" and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _read_document(item, place)
        return
    kind_text = document.get("kind")
    if not isinstance(kind_text, str) or not kind_text:
        yield error(place, "has no kind: write `kind: ServingPool`, WorkloadClass, ClientKey or Secret.", "kind")
        return
    try:
        kind = Kind(kind_text)
    except ValueError:
        yield error(
            Place(place.file, place.document, kind_text),
            f"the kind {kind_text} is none of ServingPool, WorkloadClass, ClientKey, Secret: "
            "correct its spelling, or keep the manifest in another folder.",
            "kind",
        )
        return
    yield from _read_object(kind, document, place)


def _read_object(kind: Kind, document: dict[str, Any], place: Place) -> Iterator[Manifest | Problem]:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    place = Place(place.file, place.document, kind, name if isinstance(name, str) else "")
    api_version = document.get("apiVersion")
    if api_version != kind.api_version:
        yield error(place, f"is {api_version!r}, but a {kind} has `apiVersion: {kind.api_version}`.", "apiVersion")
        return
    if name is not None and not isinstance(name, str):
        yield error(place, f"must be a string, not {name!r}: put it in quotes.", "metadata.name")
        return
    if not isinstance(metadata, dict) or not name:
        yield error(place, "has no name: write one, in lower case, as a string.", "metadata.name")
        return
    namespace = metadata.get("namespace", "")
    if not isinstance(namespace, str):
        yield error(place, "must be a string.", "metadata.namespace")
        return
    yield Manifest(kind, name, namespace, document, place)


def _yaml_type(value: object) -> str:
    names = {list: "list", str: "string", int: "number", float: "number", bool: "boolean"}
    return names.get(type(value), type(value).__name__)
