"""Whether an object is already as it should be, so that nothing needs to be written. Pure.

Three things are compared: every value that we want, with what is stored; the fields that the store says are ours, with those that
we want (one that we want no longer has to go); and, where the API server writes values in another form than we do, with what it made
of the very same object before. Fields of others are not looked at.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hlserve_operator.refs import Ref
from hlserve_operator.render.metadata import FIELD_MANAGER
from hlserve_operator.state import Manifest

MAP_LISTS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "ports": ("containerPort", "port", "protocol"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""Lists that server-side apply merges item by item, with the fields that tell items apart. Others are replaced as a whole."""
_IDENTITY: Final = ("apiVersion", "kind")


@dataclass(slots=True, eq=False)
class Applied:
    """What the API server made of what we applied last, by object."""

    _known: dict[Ref, tuple[str, str]] = field(default_factory=dict)

    def remember(self, wanted: Manifest, stored: Manifest) -> None:
        """`stored` is the answer to the apply of `wanted`."""
        self._known[Ref.of(wanted)] = (_hash(wanted), _hash(projection(wanted, stored)))

    def forget(self, ref: Ref) -> None:
        """The object is gone."""
        self._known.pop(ref, None)

    def in_place(self, wanted: Manifest, live: Manifest | None) -> bool:
        """Whether an apply of `wanted` would change nothing."""
        if live is None or has_stale_fields(wanted, live):
            return False
        if contains(wanted, live):
            return True
        return self._known.get(Ref.of(wanted)) == (_hash(wanted), _hash(projection(wanted, live)))


def contains(wanted: Manifest, live: Manifest) -> bool:
    """Whether `live` has every value of `wanted`."""
    return all(_equal(name, value, live.get(name)) for name, value in wanted.items() if name not in _IDENTITY)


def projection(wanted: Any, live: Any, name: str = "") -> Any:
    """What `live` has at the places that `wanted` names."""
    if isinstance(wanted, Mapping):
        have = live if isinstance(live, Mapping) else {}
        return {key: projection(value, have.get(key), key) for key, value in wanted.items()}
    if isinstance(wanted, list) and name in MAP_LISTS:
        return [projection(item, _partner(name, item, live)) for item in wanted]
    return live


def merged_lists(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What of an object is lists that are merged item by item, at their places: a merge patch of it replaces them as a whole."""
    found: dict[str, Any] = {}
    for name, value in wanted.items():
        if name in MAP_LISTS and name != "ownerReferences":
            found[name] = value
        elif isinstance(value, Mapping) and (below := merged_lists(value)):
            found[name] = below
    return found


def has_stale_fields(wanted: Manifest, live: Manifest) -> bool:
    """Whether the store says that we own a field which `wanted` does not have, or that we own none yet."""
    for entry in live.get("metadata", {}).get("managedFields") or ():
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource"):
            return _stale(entry.get("fieldsV1") or {}, wanted)
    return True


def _stale(fields: Mapping[str, Any], wanted: Any) -> bool:
    for path, below in fields.items():
        kind, _, rest = path.partition(":")
        if kind == ".":
            continue
        if kind == "f":
            if not isinstance(wanted, Mapping) or rest not in wanted:
                return True
            if below and _stale(below, wanted[rest]):
                return True
        elif kind == "k":
            item = _item(json.loads(rest), wanted)
            if item is None or _stale(below, item):
                return True
        elif kind == "v" and (not isinstance(wanted, list) or json.loads(rest) not in wanted):
            return True
    return False


def _item(keys: Mapping[str, Any], wanted: Any) -> Any:
    """The item of a list with these keys. One that it leaves out has its default, which is not ours to know."""
    if isinstance(wanted, list):
        for item in wanted:
            if isinstance(item, Mapping) and all(item.get(name, value) == value for name, value in keys.items()):
                return item
    return None


def _equal(name: str, wanted: Any, live: Any) -> bool:
    if wanted is None or wanted == {} or wanted == []:
        # The API server leaves out what is empty.
        return live is None or live == wanted or live in ({}, [])
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(_equal(key, value, live.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(live, list):
            return False
        if name in MAP_LISTS:
            return all(_equal("", item, _partner(name, item, live)) for item in wanted)
        return len(wanted) == len(live) and all(_equal("", a, b) for a, b in zip(wanted, live, strict=True))
    return type(wanted) is type(live) and bool(wanted == live)


def _partner(name: str, item: Any, live: Any) -> Any:
    """The stored item of a list that has the keys of `item`."""
    if not isinstance(item, Mapping):
        return item if isinstance(live, Sequence) and item in live else None
    keys = {key: item[key] for key in MAP_LISTS[name] if key in item}
    return _item(
        keys, [other for other in live if isinstance(other, Mapping) and keys.keys() <= other.keys()] if live else []
    )


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
