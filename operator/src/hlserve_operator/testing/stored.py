"""What an API server does to objects that are written: merge patches, server-side apply, managed fields, selectors. Simulated, pure."""

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from hlserve_operator.drift import MAP_LISTS

Object = dict[str, Any]


def merge(target: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def apply(live: Any, before: Any, wanted: Any, name: str = "") -> Any:
    """Server-side apply with force by one manager who applied `before` the last time."""
    if isinstance(wanted, Mapping):
        result = dict(live) if isinstance(live, Mapping) else {}
        former = before if isinstance(before, Mapping) else {}
        for gone in former.keys() - wanted.keys():
            result.pop(gone, None)
        for key, value in wanted.items():
            result[key] = apply(result.get(key), former.get(key), value, key)
        return result
    if isinstance(wanted, list) and name in MAP_LISTS:
        return _apply_items(live or [], before or [], wanted, name)
    return deepcopy(wanted)


def _apply_items(live: list[Any], before: list[Any], wanted: list[Any], name: str) -> list[Any]:
    def identity(item: Any) -> str:
        keys = MAP_LISTS[name]
        return json.dumps({key: item[key] for key in keys if key in item} if isinstance(item, Mapping) else item)

    old, mine = {identity(i): i for i in live}, {identity(i): i for i in before}
    new = {identity(item): item for item in wanted}
    kept = [item for key, item in old.items() if key not in mine and key not in new]
    return [apply(old.get(key), mine.get(key), item) for key, item in new.items()] + kept


def fields_of(manifest: Any, name: str = "") -> dict[str, Any]:
    """The `fieldsV1` of what was applied."""
    if isinstance(manifest, Mapping):
        return {f"f:{key}": fields_of(value, key) for key, value in manifest.items()}
    if isinstance(manifest, list) and name in MAP_LISTS:
        result: dict[str, Any] = {}
        for item in manifest:
            keys = {key: item[key] for key in MAP_LISTS[name] if key in item} if isinstance(item, Mapping) else item
            result[f"k:{json.dumps(keys)}"] = {".": {}, **fields_of(item)}
        return result
    return {}


def selected(labels: Mapping[str, str], selector: str) -> bool:
    """Whether labels meet a selector of the forms `a=b`, `a` and `!a`."""
    for part in filter(None, selector.split(",")):
        name, equals, value = part.partition("=")
        if part.startswith("!"):
            if part[1:] in labels:
                return False
        elif (equals and labels.get(name) != value) or (not equals and name not in labels):
            return False
    return True
