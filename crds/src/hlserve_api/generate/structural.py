"""From a pydantic model to a structural OpenAPI v3 schema, as Kubernetes demands it of a CRD.

Structural means: no `$ref`, no `anyOf` with null (an optional field may be absent, it is never null), a type everywhere, no titles, no
`additionalProperties: false` (the API server prunes). Integers get a format from their bounds, so that clients choose a type.
"""

from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

Schema = dict[str, Any]

INT32_MAX: Final = 2**31 - 1
LONGEST_TIMESTAMP: Final = 64
_DROPPED: Final = frozenset(
    {"title", "default", "$ref", "anyOf", "properties", "items", "additionalProperties", "const"}
)
_ORDER: Final = (
    "description", "type", "format", "enum", "default", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems",
    "minProperties", "maxProperties", "items", "additionalProperties", "required", "properties",
)  # fmt: skip


class UnstructuralError(ValueError):
    """A model uses something that has no structural form, such as a union of two types."""


def structural_schema(model: type[BaseModel], *, defaults: bool = True) -> Schema:
    """The structural schema of a model. Raises UnstructuralError for unions. `defaults`: emit the model's defaults."""
    mode: JsonSchemaMode = "validation"
    raw = model.model_json_schema(by_alias=True, mode=mode, schema_generator=GenerateJsonSchema)
    definitions: dict[str, Schema] = raw.pop("$defs", {})
    return _convert(raw, definitions, model.__name__, defaults=defaults)


def _convert(raw: Schema, definitions: dict[str, Schema], path: str, *, defaults: bool) -> Schema:
    raw = _resolve(raw, definitions, path)
    result = {key: value for key, value in raw.items() if key not in _DROPPED}
    if "const" in raw:
        result["enum"] = [raw["const"]]
    if "items" in raw:
        result["items"] = _convert(raw["items"], definitions, f"{path}[]", defaults=defaults)
    extra = raw.get("additionalProperties")
    if isinstance(extra, dict):
        result["additionalProperties"] = _convert(extra, definitions, f"{path}{{}}", defaults=defaults)
    if "properties" in raw:
        result["properties"] = {
            name: _convert(child, definitions, f"{path}.{name}", defaults=defaults)
            for name, child in raw["properties"].items()
        }
    if "x-kubernetes-validations" in raw:
        result["x-kubernetes-validations"] = [
            {key: rule[key] for key in ("rule", "message", "fieldPath") if key in rule}
            for rule in raw["x-kubernetes-validations"]
        ]
    _set_format(result)
    if defaults:
        _set_default(result, raw)
    return {
        **{key: result[key] for key in _ORDER if key in result},
        **{k: v for k, v in result.items() if k not in _ORDER},
    }


def _resolve(raw: Schema, definitions: dict[str, Schema], path: str) -> Schema:
    """Follow references and take the one branch of an optional; what stands beside them wins over what they point to."""
    while "$ref" in raw or "anyOf" in raw:
        beside = {key: value for key, value in raw.items() if key not in ("$ref", "anyOf")}
        if "$ref" in raw:
            target = definitions[raw["$ref"].rsplit("/", 1)[1]]
        else:
            branches = [branch for branch in raw["anyOf"] if branch.get("type") != "null"]
            if len(branches) != 1:
                raise UnstructuralError(
                    f"{path} is a union, which has no structural form: use optional members and a rule that allows exactly one"
                )
            target = branches[0]
        raw = {**target, **beside}
    return raw


def _set_format(result: Schema) -> None:
    if result.get("type") == "integer":
        largest = max(result["enum"]) if "enum" in result else result.get("maximum", INT32_MAX + 1)
        result["format"] = "int32" if largest <= INT32_MAX else "int64"
    elif result.get("format") == "date-time":
        result["maxLength"] = LONGEST_TIMESTAMP


def _set_default(result: Schema, raw: Schema) -> None:
    """Emit a default that says something; an object's default is `{}`, because the API server then fills in its members'."""
    if result.get("type") == "object" and isinstance(raw.get("default"), dict):
        if any("default" in child for child in result.get("properties", {}).values()):
            result["default"] = {}
    elif raw.get("default") not in (None, "", []):
        result["default"] = raw["default"]
