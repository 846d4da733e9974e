"""One entry: an object in, problems out, in the order in which the API server looks."""

from collections.abc import Iterator
from typing import Any, Final

from hlserve_api.admission.problem import Problem
from hlserve_api.admission.rules import RuleChecker
from hlserve_api.admission.structure import unknown_fields, with_defaults
from hlserve_api.admission.values import value_problems
from hlserve_api.generate.crd import object_schema
from hlserve_api.v1alpha1 import KINDS
from hlserve_api.v1alpha1.meta import API_VERSION, DNS_SUBDOMAIN

Manifest = dict[str, Any]

_TEXT_MAP: Final = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 253, "pattern": DNS_SUBDOMAIN},
        "namespace": {"type": "string", "minLength": 1, "maxLength": 63},
        "labels": {
            "type": "object",
            "additionalProperties": {
                "type": "string",
                "maxLength": 63,
                "pattern": r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$",
            },
        },
        "annotations": _TEXT_MAP,
        "finalizers": {"type": "array", "items": {"type": "string"}},
        "ownerReferences": {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        "managedFields": {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        "uid": {"type": "string"},
        "resourceVersion": {"type": "string"},
        "selfLink": {"type": "string"},
        "generation": {"type": "integer"},
        "creationTimestamp": {},
        "deletionTimestamp": {},
        "deletionGracePeriodSeconds": {"type": "integer"},
    },
    "required": ["name"],
}
"""What the API server demands of metadata, as far as a manifest can break it."""


class Validator:
    """Checks objects of our kinds. Compiled schemas and rules are kept; objects are not."""

    def __init__(self) -> None:
        self._schemas = {kind.names.kind: _complete(object_schema(kind)) for kind in KINDS}
        self._rules = RuleChecker()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that can be checked."""
        return tuple(self._schemas)

    def validate(self, obj: Manifest, old: Manifest | None = None) -> list[Problem]:
        """Why the API server would refuse `obj`, empty if it would not. `old`: the stored object that it replaces.

        As there, rules are looked at only if fields and values are right.
        """
        schema = self._schemas.get(str(obj.get("kind")))
        if schema is None or obj.get("apiVersion") != API_VERSION:
            return [_unknown_kind(obj, self.kinds)]
        problems = [*unknown_fields(obj, schema)]
        completed = with_defaults(obj, schema)
        problems += value_problems(completed, schema)
        if problems:
            return problems
        return list(self._rule_problems(completed, schema, None if old is None else with_defaults(old, schema)))

    def default(self, obj: Manifest) -> Manifest:
        """A copy of `obj` with the schema's defaults filled in. Raises KeyError for a kind that is not ours."""
        completed: Manifest = with_defaults(obj, self._schemas[str(obj["kind"])])
        return completed

    def _rule_problems(self, obj: Manifest, schema: dict[str, Any], old: Manifest | None) -> Iterator[Problem]:
        yield from self._rules.problems(obj, schema, old)


def _complete(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with what the API server itself demands of every object."""
    properties = {**schema["properties"], "metadata": _METADATA}
    return {**schema, "required": [*schema["required"], "metadata"], "properties": properties}


def _unknown_kind(obj: Manifest, kinds: tuple[str, ...]) -> Problem:
    found_version, found_kind = obj.get("apiVersion"), obj.get("kind")
    if found_kind in kinds:
        return Problem("apiVersion", f"must be {API_VERSION} for a {found_kind}, not {found_version}")
    return Problem("kind", f"unknown kind {found_kind}: with apiVersion {API_VERSION} use {', '.join(kinds)}")
