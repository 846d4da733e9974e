"""The reference page of one kind, made from its generated schema."""

from collections.abc import Iterator

from hlserve_api.conditions import CONDITIONS
from hlserve_api.generate.crd import object_schema
from hlserve_api.generate.markdown import page, table
from hlserve_api.generate.structural import Schema
from hlserve_api.v1alpha1.meta import API_VERSION, CustomResource


def _type_of(schema: Schema) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if schema.get("type") == "array":
        return f"list of {_type_of(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_type_of(schema['additionalProperties'])}"
    if schema.get("format") == "date-time":
        return "time"
    return str(schema["type"])


def _bounds_of(schema: Schema) -> str:
    parts: list[str] = []
    if "enum" in schema:
        parts.append(", ".join(f"`{value}`" for value in schema["enum"]))
    if "minimum" in schema:
        parts.append(f"{schema['minimum']} to {schema['maximum']}")
    if "maxItems" in schema:
        parts.append(f"{schema.get('minItems', 0)} to {schema['maxItems']} items")
    if "maxProperties" in schema:
        parts.append(f"at most {schema['maxProperties']} entries")
    if "maxLength" in schema and "format" not in schema:
        parts.append(f"at most {schema['maxLength']} characters")
    if "pattern" in schema:
        parts.append(f"`{schema['pattern']}`")
    if schema.get("x-kubernetes-list-type") == "map":
        parts.append(f"unique by {', '.join(schema['x-kubernetes-list-map-keys'])}")
    elif schema.get("x-kubernetes-list-type") == "set":
        parts.append("no duplicates")
    return "; ".join(parts)


def _default_of(schema: Schema, required: bool) -> str:
    if required:
        return "**required**"
    default = schema.get("default")
    if default is None or default == {}:
        return ""
    return f"`{str(default).lower()}`" if isinstance(default, bool) else f"`{default}`"


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema, bool]]:
    """Every field below an object, parents first, with its path and whether it is required."""
    for name, child in schema.get("properties", {}).items():
        child_path = f"{path}.{name}" if path else name
        yield child_path, child, name in schema.get("required", ())
        yield from _fields(child, child_path)
        if child.get("type") == "array":
            yield from _fields(child["items"], f"{child_path}[]")


def _rules(schema: Schema, path: str) -> Iterator[tuple[str, str, str]]:
    """Every rule, as path, message, expression."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield (path + rule.get("fieldPath", "")).removeprefix("."), rule["message"], rule["rule"]
    for name, child in schema.get("properties", {}).items():
        yield from _rules(child, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from _rules(schema["items"], f"{path}[]")


def _field_table(schema: Schema, path: str) -> str:
    rows = [
        (f"`{name}`", _type_of(child), _default_of(child, required), _bounds_of(child), child["description"])
        for name, child, required in _fields(schema, path)
    ]
    return table(("Field", "Type", "Default", "Bounds", "Meaning"), rows)


def kind_page(kind: type[CustomResource]) -> str:
    """The page of a kind: fields, rules, status, columns."""
    schema = object_schema(kind)
    names = kind.names
    rules = [
        (f"`{path}`" if path else "the object", message, f"`{rule}`") for path, message, rule in _rules(schema, "")
    ]
    columns = [
        (column.name, f"`{column.json_path}`", column.description, "yes" if column.wide else "")
        for column in kind.columns
    ]
    types = ", ".join(f"`{doc.type}`" for doc in CONDITIONS if doc.kind == names.kind)
    scale = "" if kind.scale is None else f" `kubectl scale` works: it sets `{kind.scale.spec_replicas}`."
    return page(
        names.kind,
        schema["description"],
        f"`apiVersion: {API_VERSION}`, `kind: {names.kind}`, namespaced. `kubectl get {names.short}` lists them, `kubectl get hlserve` all "
        f"kinds.{scale} A field that is absent and has no default is unset; null is never a value.",
        "## Spec",
        _field_table(schema["properties"]["spec"], "spec"),
        "## Rules",
        "What the schema cannot say. The API server and `hlserve validate` check the same rules.",
        table(("At", "Message", "Rule"), rules),
        "## Status",
        f"Written by the operator. Conditions: {types}; their reasons are in [conditions](conditions.md).",
        _field_table(schema["properties"]["status"], "status"),
        "## Columns",
        table(("Column", "From", "Meaning", "Only with `-o wide`"), columns),
    )
