"""Core `Secret` objects as a manifest gives them: `stringData` as it is, `data` in base64. `stringData` wins, as on a cluster."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from hlserve_local.manifests import Manifest
from hlserve_local.names import hint
from hlserve_local.problems import Problem, error

_FIELDS: Final = ("apiVersion", "kind", "metadata", "type", "immutable", "data", "stringData")


@dataclass(frozen=True, slots=True)
class ReadSecret:
    """The values of one Secret that could be read, and what is wrong with the others."""

    values: Mapping[str, str]
    problems: tuple[Problem, ...]


def read_secret(manifest: Manifest) -> ReadSecret:
    """Decode one Secret. Pure."""
    values: dict[str, str] = {}
    problems: list[Problem] = []
    problems.extend(
        error(manifest.place, f"unknown field; {hint(field, _FIELDS, 'field')}", field)
        for field in manifest.body
        if field not in _FIELDS
    )
    for field in ("data", "stringData"):
        for key, value in _entries(manifest, field, problems):
            path = f"{field}.{key}"
            if not isinstance(value, str):
                problems.append(error(manifest.place, "must be a string: put it in quotes.", path))
            elif field == "stringData":
                values[key] = value
            else:
                try:
                    values[key] = base64.b64decode(value, validate=True).decode("utf-8")
                except (binascii.Error, UnicodeDecodeError):
                    problems.append(
                        error(
                            manifest.place,
                            "is not base64 of UTF-8 text: encode it, or put the plain text in stringData.",
                            path,
                        )
                    )
    return ReadSecret(values, tuple(problems))


def _entries(manifest: Manifest, field: str, problems: list[Problem]) -> Iterator[tuple[str, object]]:
    entries = manifest.body.get(field)
    if entries is None:
        return
    if not isinstance(entries, dict):
        problems.append(error(manifest.place, "must be a mapping of names to strings.", field))
        return
    yield from entries.items()
