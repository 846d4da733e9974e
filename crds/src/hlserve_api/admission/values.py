"""Values against the schema: types, bounds, patterns, list keys, with a sentence for each kind of complaint."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from jsonschema import Draft202012Validator, FormatChecker, ValidationError, validators

from hlserve_api.admission.problem import Problem, join, path_of

Schema = dict[str, Any]

_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})")
_TYPES: Final = (
    ((bool,), "a boolean"),
    ((int,), "an integer"),
    ((float,), "a number"),
    ((str,), "a string"),
    ((list,), "a list"),
    ((dict,), "an object"),
    ((type(None),), "null"),
)
_TYPE_WORDS: Final = {
    "boolean": "a boolean",
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "array": "a list",
    "object": "an object",
}


def _is_time(value: object) -> bool:
    if not isinstance(value, str):
        return True
    if not _RFC3339.fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value.upper())
    except ValueError:
        return False
    return True


_FORMATS = FormatChecker(formats=())
_FORMATS.checks("date-time")(_is_time)


def _pattern(validator: Any, pattern: str, value: object, schema: Schema) -> Iterator[ValidationError]:
    """Go's `$` is the end of the text; Python's would let a newline follow."""
    if isinstance(value, str) and not re.search(re.sub(r"\$$", r"\\Z", pattern), value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


_SchemaValidator = validators.extend(Draft202012Validator, {"pattern": _pattern})  # type: ignore[no-untyped-call]


def value_problems(value: object, schema: Schema) -> Iterator[Problem]:
    """Every value that the schema refuses. Fields the schema does not know are `structure.unknown_fields`' matter."""
    errors = _SchemaValidator(schema, format_checker=_FORMATS).iter_errors(value)
    for error in sorted(errors, key=lambda each: [str(step) for step in each.absolute_path]):
        path = path_of(error.absolute_path)
        missing = _missing_field(error)
        yield (
            Problem(path, _sentence(error)) if missing is None else Problem(join(path, missing), "is required: add it")
        )
    yield from _list_problems(value, schema, "")
    yield from _int_or_string_problems(value, schema, "")


def _missing_field(error: ValidationError) -> str | None:
    """The field that a `required` complaint is about; the library names it only in its message, one complaint a field."""
    found = re.match(r"'(.+)' is a required property", error.message) if error.validator == "required" else None
    return None if found is None else found.group(1)


def _kind_of(value: object) -> str:
    return next((word for types, word in _TYPES if isinstance(value, types)), type(value).__name__)


def _shown(value: object) -> str:
    """A fraction as it is: "an integer, not a number" would leave the reader to guess."""
    return str(value) if isinstance(value, float) else _kind_of(value)


def _count(number: object, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _sentence(error: ValidationError) -> str:
    limit = error.validator_value
    sentences: Mapping[str, str] = {
        "type": f"must be {_TYPE_WORDS.get(str(limit), limit)}, not {_shown(error.instance)}",
        "enum": f"must be one of {', '.join(map(str, limit)) if isinstance(limit, list) else limit}, not {error.instance!r}",
        "pattern": f"{error.instance!r} does not match {limit}",
        "format": f"{error.instance!r} is not a time: write it like 2027-01-31T12:00:00Z",
        "minimum": f"must be at least {limit}, not {error.instance}",
        "maximum": f"must be at most {limit}, not {error.instance}",
        "minLength": "must not be empty",
        "maxLength": f"must have at most {limit} characters",
        "minItems": f"must have at least {_count(limit, 'item', 'items')}",
        "maxItems": f"must have at most {_count(limit, 'item', 'items')}",
        "minProperties": f"must have at least {_count(limit, 'entry', 'entries')}",
        "maxProperties": f"must have at most {_count(limit, 'entry', 'entries')}",
    }
    return sentences.get(str(error.validator), error.message)


def _children(value: object, schema: Schema, path: str) -> Iterator[tuple[object, Schema, str]]:
    if isinstance(value, dict):
        for name, child in value.items():
            if name in schema.get("properties", {}):
                yield child, schema["properties"][name], join(path, name)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, item in enumerate(value):
            yield item, schema["items"], join(path, index)


def _list_problems(value: object, schema: Schema, path: str) -> Iterator[Problem]:
    """Items that a list of type map or set may hold only once."""
    kind = schema.get("x-kubernetes-list-type")
    if isinstance(value, list) and kind in ("map", "set"):
        seen: list[object] = []
        for index, item in enumerate(value):
            keys = schema.get("x-kubernetes-list-map-keys", ())
            identity = {key: item.get(key) for key in keys} if kind == "map" and isinstance(item, dict) else item
            if identity in seen:
                text = (
                    ", ".join(f"{k} {v!r}" for k, v in identity.items())
                    if isinstance(identity, dict)
                    else repr(identity)
                )
                yield Problem(join(path, index), f"duplicate {text}: each may stand here only once")
            seen.append(identity)
    for child, child_schema, child_path in _children(value, schema, path):
        yield from _list_problems(child, child_schema, child_path)


def _int_or_string_problems(value: object, schema: Schema, path: str) -> Iterator[Problem]:
    if schema.get("x-kubernetes-int-or-string") and (isinstance(value, bool) or not isinstance(value, int | str)):
        yield Problem(path, f"must be an integer or a string, not {_kind_of(value)}")
    for child, child_schema, child_path in _children(value, schema, path):
        yield from _int_or_string_problems(child, child_schema, child_path)
