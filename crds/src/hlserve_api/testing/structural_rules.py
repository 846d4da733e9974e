"""The rules that Kubernetes has for a CRD's schema, and ours about bounds, as a check over the generated document.

Source: Kubernetes documentation, "Extend the Kubernetes API with CustomResourceDefinitions", section on structural schemas.
"""

from collections.abc import Iterator
from typing import Any, Final

Schema = dict[str, Any]

FORBIDDEN: Final = frozenset(
    {"$ref", "$defs", "definitions", "dependencies", "deprecated", "discriminator", "id", "patternProperties", "readOnly", "writeOnly",
     "xml", "title", "const", "uniqueItems", "anyOf", "oneOf", "allOf", "not", "exclusiveMinimum", "exclusiveMaximum"}
)  # fmt: skip
TYPES: Final = frozenset({"object", "array", "string", "integer", "number", "boolean"})
FORMATS: Final = frozenset({"int32", "int64", "date-time"})
LIST_TYPES: Final = frozenset({"atomic", "set", "map"})


def violations(crd: dict[str, Any]) -> list[str]:
    """One sentence for each rule that the CRD's schemas break; empty if they break none."""
    found: list[str] = []
    for version in crd["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        found += _root(schema)
        found += _node(schema, version["name"], described=True)
    return found


def _root(schema: Schema) -> Iterator[str]:
    if schema.get("properties", {}).get("metadata", {"type": "object"}) != {"type": "object"}:
        yield "metadata: must be an object without anything else; a rule at the root may restrict the name"
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        yield "the root must prune unknown fields"


def _node(schema: Schema, path: str, *, described: bool) -> Iterator[str]:
    for word in schema.keys() & FORBIDDEN:
        yield f"{path}: {word} is not allowed"
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        if kind is not None:
            yield f"{path}: int-or-string has no type"
    elif kind not in TYPES:
        yield f"{path}: has no type"
    if schema.get("nullable"):
        yield f"{path}: optional fields are left out, never null"
    if "format" in schema and schema["format"] not in FORMATS:
        yield f"{path}: format {schema['format']} is not known"
    if described and not schema.get("description") and not _is_metadata(path):
        yield f"{path}: has no description"
    if "default" in schema:
        yield from _default(schema, path)
    for rule in schema.get("x-kubernetes-validations", ()):
        if not rule.get("message") or "\n" in rule["rule"]:
            yield f"{path}: a rule needs a message, and stands on one line"
        if "fieldPath" in rule and not _leads_somewhere(schema, rule["fieldPath"], at_root="." not in path):
            yield f"{path}: fieldPath {rule['fieldPath']} leads to no field"
    yield from _by_type(schema, path)


def _is_metadata(path: str) -> bool:
    return path.split(".", 1)[1:] == ["metadata"]


def _leads_somewhere(schema: Schema, field_path: str, *, at_root: bool) -> bool:
    steps = field_path.removeprefix(".").split(".")
    if at_root and steps[0] == "metadata":
        return False
    for step in steps:
        schema = schema.get("properties", {}).get(step, {})
    return bool(schema)


def _by_type(schema: Schema, path: str) -> Iterator[str]:
    match schema.get("type"):
        case "object":
            yield from _object(schema, path)
        case "array":
            yield from _array(schema, path)
        case "string" if "maxLength" not in schema and "enum" not in schema:
            yield f"{path}: a string needs maxLength or enum"
        case "integer" if "enum" not in schema and not {"minimum", "maximum"} <= schema.keys():
            yield f"{path}: an integer needs minimum and maximum"
        case _:
            pass
    if schema.get("x-kubernetes-int-or-string") and not {"maxLength", "pattern"} <= schema.keys():
        yield f"{path}: int-or-string needs maxLength and pattern"


def _object(schema: Schema, path: str) -> Iterator[str]:
    properties, rest = schema.get("properties"), schema.get("additionalProperties")
    if properties is not None and rest is not None:
        yield f"{path}: properties and additionalProperties exclude each other"
    if rest is False or rest is True:
        yield f"{path}: additionalProperties must be a schema"
    if isinstance(rest, dict):
        if "maxProperties" not in schema:
            yield f"{path}: a map needs maxProperties"
        yield from _node(rest, f"{path}{{}}", described=False)
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or _is_metadata(path)
    if properties is None and rest is None and not open_ended:
        yield f"{path}: an object needs properties, or everything in it would be pruned"
    for name in schema.get("required", ()):
        if name not in (properties or {}):
            yield f"{path}: requires {name}, which it does not have"
    for name, child in (properties or {}).items():
        yield from _node(child, f"{path}.{name}", described=True)


def _array(schema: Schema, path: str) -> Iterator[str]:
    if not isinstance(schema.get("items"), dict):
        yield f"{path}: a list needs one schema of its items"
        return
    items = schema["items"]
    if "maxItems" not in schema:
        yield f"{path}: a list needs maxItems"
    kind = schema.get("x-kubernetes-list-type")
    if kind not in LIST_TYPES:
        yield f"{path}: a list needs x-kubernetes-list-type"
    if kind == "map":
        for key in schema.get("x-kubernetes-list-map-keys") or ("(none)",):
            child = items.get("properties", {}).get(key, {})
            if key not in items.get("required", ()) and "default" not in child:
                yield f"{path}: list key {key} must be required, or have a default"
            if child.get("type") not in ("string", "integer"):
                yield f"{path}: list key {key} must be a scalar"
    if kind == "set" and items.get("type") in ("object", "array"):
        yield f"{path}: a set holds scalars"
    yield from _node(items, f"{path}[]", described=items.get("type") == "object")


def _default(schema: Schema, path: str) -> Iterator[str]:
    value = schema["default"]
    if path.split(".")[1:2] == ["status"]:
        yield f"{path}: a status has no defaults"
    expected: dict[str, type | tuple[type, ...]] = {
        "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    }  # fmt: skip
    wanted = expected.get(str(schema.get("type")))
    if wanted is None or not isinstance(value, wanted):
        yield f"{path}: the default {value!r} has another type"
    elif isinstance(value, dict):
        if value.keys() - schema.get("properties", {}).keys():
            yield f"{path}: the default has fields that would be pruned"
        missing = [n for n in schema.get("required", ()) if n not in value and "default" not in schema["properties"][n]]
        if missing:
            yield f"{path}: the default lacks the required {', '.join(missing)}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{path}: the default {value!r} is not in the enum"
    elif isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{path}: the default {value!r} is out of bounds"
