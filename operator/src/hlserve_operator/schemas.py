"""Whether the installed custom resource definitions know every field that this operator knows. Pure.

An older one drops fields without a word: what a user or the operator writes there is lost. It cannot be read by a namespaced
operator, but the schema that the API server publishes can.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hlserve_api.generate.crd import object_schema
from hlserve_api.v1alpha1 import GROUP, KINDS, VERSION

LISTED_FIELDS = 5
"""Fields that a message names; an older definition may lack many."""


def missing_fields(published: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """By kind, the fields that the published OpenAPI document lacks; a field within one that lacks is not listed too.

    Kinds that are not in the document are not in the answer: they are not installed, which shows elsewhere.
    """
    found: dict[str, tuple[str, ...]] = {}
    schemas = (published.get("components") or {}).get("schemas") or {}
    for schema in schemas.values():
        for each in schema.get("x-kubernetes-group-version-kind") or ():
            if (each.get("group"), each.get("version")) != (GROUP, VERSION):
                continue
            for kind in KINDS:
                if kind.names.kind == each.get("kind"):
                    found[kind.names.kind] = tuple(_missing(object_schema(kind), schema, ""))
    return found


def sentence(kind: str, fields: tuple[str, ...]) -> str:
    """What to tell of missing fields."""
    named = ", ".join(fields[:LISTED_FIELDS])
    more = f" and {len(fields) - LISTED_FIELDS} more" if len(fields) > LISTED_FIELDS else ""
    return f"The installed definition of {kind} does not know {named}{more}: upgrade the hlserve-crds release."


def _missing(ours: Mapping[str, Any], published: Mapping[str, Any], path: str) -> Iterator[str]:
    if published.get("x-kubernetes-preserve-unknown-fields"):
        return
    known = published.get("properties") or {}
    for name, schema in (ours.get("properties") or {}).items():
        place = f"{path}.{name}" if path else name
        if name not in known:
            yield place
        elif place != "metadata":
            yield from _missing(schema, known[name], place)
    for part in ("items", "additionalProperties"):
        inner, other = ours.get(part), published.get(part)
        if isinstance(inner, Mapping) and isinstance(other, Mapping):
            yield from _missing(inner, other, f"{path}[]")
