"""CEL rules over an object, with `self` and, in transition rules, `oldSelf`."""

import re
from collections.abc import Iterator
from typing import Any, Final

from cel_expr_python import cel  # type: ignore[import-untyped]  # ships .pyi files, but no py.typed
from cel_expr_python.ext import ext_strings  # type: ignore[import-untyped]

from hlserve_api.admission.problem import Problem, join

Schema = dict[str, Any]

_ABSENT: Final = object()
_TRANSITION = re.compile(r"\boldSelf\b")


class RuleError(ValueError):
    """A rule that the CEL compiler refuses: a fault of the CRD, not of an object."""


class RuleChecker:
    """Compiles each rule once and evaluates it. Holds compiled expressions only."""

    def __init__(self) -> None:
        variables = {"self": cel.Type.DYN, "oldSelf": cel.Type.DYN}
        self._env = cel.NewEnv(variables=variables, extensions=[ext_strings.ExtStrings()])
        self._compiled: dict[str, cel.Expression] = {}

    def problems(self, value: Any, schema: Schema, old: Any = None) -> Iterator[Problem]:
        """Every rule that does not hold for `value`; transition rules only where `old` has the same field or list item."""
        yield from self._walk(value, schema, _ABSENT if old is None else old, "")

    def holds(self, expression: str, value: Any, old: Any = None) -> bool:
        """Whether one rule holds. Raises RuleError if it cannot be compiled or evaluated."""
        data = {"self": value} if old is None else {"self": value, "oldSelf": old}
        result = self._expression(expression).eval(data=data)
        if result.type() != cel.Type.BOOL:
            raise RuleError(f"the rule {expression} cannot be evaluated: {result.value()}")
        return bool(result.value())

    def _expression(self, text: str) -> cel.Expression:
        if text not in self._compiled:
            try:
                self._compiled[text] = self._env.compile(text)
            except RuntimeError as error:
                raise RuleError(f"the rule {text} does not compile: {error}") from error
        return self._compiled[text]

    def _walk(self, value: Any, schema: Schema, old: Any, path: str) -> Iterator[Problem]:
        yield from self._here(value, schema, old, path)
        if isinstance(value, dict):
            known = schema.get("properties", {})
            rest = schema.get("additionalProperties")
            for name, child in value.items():
                child_schema = known.get(name, rest if isinstance(rest, dict) else None)
                if child_schema is not None:
                    former = old.get(name, _ABSENT) if isinstance(old, dict) else _ABSENT
                    yield from self._walk(child, child_schema, former, join(path, name))
        elif isinstance(value, list) and isinstance(schema.get("items"), dict):
            for index, item in enumerate(value):
                yield from self._walk(item, schema["items"], _former_item(item, schema, old), join(path, index))

    def _here(self, value: Any, schema: Schema, old: Any, path: str) -> Iterator[Problem]:
        for rule in schema.get("x-kubernetes-validations", ()):
            transition = _TRANSITION.search(rule["rule"]) is not None
            if transition and old is _ABSENT:
                continue
            if not self.holds(rule["rule"], value, old if transition else None):
                yield Problem((path + rule.get("fieldPath", "")).removeprefix("."), rule["message"])


def _former_item(item: Any, schema: Schema, old: Any) -> Any:
    """The same item of the former list: only lists of type map tell which it is."""
    if schema.get("x-kubernetes-list-type") != "map" or not isinstance(old, list) or not isinstance(item, dict):
        return _ABSENT
    keys = schema["x-kubernetes-list-map-keys"]
    for former in old:
        if isinstance(former, dict) and all(former.get(key) == item.get(key) for key in keys):
            return former
    return _ABSENT
