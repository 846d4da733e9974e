"""Fields that the schema does not know, and defaults that it fills in. Pure, like the API server's pruning and defaulting."""

import copy
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from hlserve_api.admission.problem import Problem, join

Schema = dict[str, Any]


def unknown_fields(value: object, schema: Schema, path: str = "") -> Iterator[Problem]:
    """Every field that the API server would drop (or refuse, with strict field validation)."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    if isinstance(value, dict):
        yield from _unknown_members(value, schema, path)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, item in enumerate(value):
            yield from unknown_fields(item, schema["items"], join(path, index))


def _unknown_members(value: dict[str, Any], schema: Schema, path: str) -> Iterator[Problem]:
    known = schema.get("properties", {})
    rest = schema.get("additionalProperties")
    for name, child in value.items():
        if name in known:
            yield from unknown_fields(child, known[name], join(path, name))
        elif isinstance(rest, dict):
            yield from unknown_fields(child, rest, join(path, name))
        elif known or schema.get("type") == "object":
            yield Problem(join(path, name), _unknown(str(name), list(known)))


def _unknown(name: str, known: list[str]) -> str:
    close = get_close_matches(name.lower(), {each.lower(): each for each in known}, n=1, cutoff=0.5)
    meant = next((each for each in known if close and each.lower() == close[0]), None)
    if meant is not None:
        return f"unknown field {name}: did you mean {meant}?"
    if known:
        return f"unknown field {name}: remove it; known here are {', '.join(sorted(known))}"
    return f"unknown field {name}: remove it"


def with_defaults(value: Any, schema: Schema) -> Any:
    """A copy of `value` with the schema's defaults where fields are absent (or null, which means absent where a default is)."""
    if isinstance(value, dict):
        known = schema.get("properties", {})
        rest = schema.get("additionalProperties")
        result = dict(value)
        for name, child in known.items():
            if result.get(name) is None and "default" in child:
                result[name] = copy.deepcopy(child["default"])
        return {
            name: with_defaults(child, known.get(name, rest if isinstance(rest, dict) else {}))
            for name, child in result.items()
        }
    if isinstance(value, list):
        items = schema.get("items", {})
        return [with_defaults(item, items) for item in value]
    return value
