"""Check of the fault cases in docs/acceptance.md: none is lost, and the tests named for it carry its id."""

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from repository_checks.acceptance import PAGE, promises
from repository_checks.tree import Tree

ROUTER_CASES = tuple(
    f"B{number:02}"
    for number in (
        1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 20, 21, 23, 24, 25, 26, 27, 28, 29, 31, 32, 33, 34, 35, 36,
        38, 39, 40, 41, 42, 44, 45, 47, 48, 50, 51, 52, 53, 54, 55, 56, 57, 59, 61, 62, 63, 65, 66, 67, 68, 69, 70, 71, 73,
        74, 76, 77, 78, 81,
    )
)  # fmt: skip
"""Ids of the public fault reports that the router must withstand."""

_ROW = re.compile(r"\s*(B\d\d)\b")
_TEST = re.compile(r"`(test_\w+\.py)::(\w+)`")
_IN_NAME = re.compile(r"_b(\d\d)(?=_|$)")
_IN_ID = re.compile(r"\bB(\d\d)\b")


def cases_have_tests(tree: Tree) -> list[str]:
    """Each case has one row, and every test named there carries the case's id in its name or in a parameter's id."""
    if PAGE not in tree.files:
        return [f"{PAGE} is missing. Restore it: it says which test shows what."]
    sources = {PurePosixPath(name).name: name for name in tree.having(".py")}
    rows = [(found.group(1), row) for row in promises(tree.text(PAGE)) if (found := _ROW.match(row)) is not None]
    named = [case for case, _ in rows]
    problems = [
        f"{PAGE} has no row for case {case}. Name the tests that show it." for case in ROUTER_CASES if case not in named
    ]
    problems += [f"{PAGE} has case {case} twice. Keep one row." for case in sorted(set(named)) if named.count(case) > 1]
    for case, row in rows:
        for file, function in _TEST.findall(row):
            if file in sources and case not in carried(tree.text(sources[file]), function):
                problems.append(
                    f"{file}::{function} does not carry {case}, for which {PAGE} names it. Put the id into its name or into the id of a "
                    "parameter."
                )
    return problems


def carried(source: str, function: str) -> frozenset[str]:
    """The case ids in the name of a test function of a module, and in what its decorators name: parameters and their ids."""
    module = ast.parse(source)
    assigned = dict(_assigned(module))
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
            texts = _texts(node.decorator_list, assigned)
            return frozenset(
                f"B{number}"
                for number in (*_IN_NAME.findall(function), *(n for text in texts for n in _IN_ID.findall(text)))
            )
    return frozenset()


def _assigned(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names that a module gives to values, with the values."""
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value


def _texts(expressions: list[ast.expr], assigned: dict[str, ast.expr]) -> Iterator[str]:
    """All strings in some expressions and in the module's values that they name."""
    todo, seen = list(expressions), set[str]()
    while todo:
        for node in ast.walk(todo.pop()):
            match node:
                case ast.Constant(value=str() as text):
                    yield text
                case ast.Name(id=name) if name in assigned and name not in seen:
                    seen.add(name)
                    todo.append(assigned[name])
