"""Find the members' commands and describe them without importing their modules."""

import ast
import difflib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

GROUP = "hlserve.commands"
"""Entry-point group in which a member announces its commands: `name = "package.module:click_command"`."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One command as one installed distribution offers it."""

    name: str
    distribution: str
    entry_point: EntryPoint


def installed_offers() -> dict[str, tuple[Offer, ...]]:
    """Every offer by command name. More than one offer for a name means that two distributions clash."""
    return by_name(entry_points(group=GROUP))


def by_name(points: Iterable[EntryPoint]) -> dict[str, tuple[Offer, ...]]:
    """Group entry points by command name, names sorted; equal repetitions (one package found twice on the path) count once."""
    found: defaultdict[str, dict[str, Offer]] = defaultdict(dict)
    for point in points:
        distribution = point.dist.name if point.dist is not None else "an unnamed distribution"
        found[point.name].setdefault(point.value, Offer(point.name, distribution, point))
    return {name: tuple(found[name].values()) for name in sorted(found)}


def near_matches(name: str, known: Iterable[str]) -> list[str]:
    """Command names that a mistyped `name` may have meant, best first."""
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)


def short_help(offer: Offer) -> str:
    """First sentence of the command's docstring, read from its source file; empty if the source cannot be read.

    Reading instead of importing keeps `hlserve --help` fast, and lets it list a command whose imports are broken.
    """
    try:
        spec = find_spec(offer.entry_point.module)
    except (ImportError, ValueError):
        return ""
    if spec is None or spec.origin is None:
        return ""
    try:
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ""
    return first_sentence(_docstring(tree, offer.entry_point.attr))


def first_sentence(text: str) -> str:
    """Text up to the first full stop or blank line, on one line."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    head, stop, _ = paragraph.partition(". ")
    return head if stop else paragraph.rstrip(".")


def _docstring(tree: ast.Module, attribute: str) -> str:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == attribute:
            return _help_argument(node.decorator_list) or ast.get_docstring(node) or ""
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == attribute for t in node.targets):
            return _help_argument([node.value])
    return ""


def _help_argument(expressions: list[ast.expr]) -> str:
    """The `help` of the expression that makes the command; options' help is not the command's."""
    for expression in expressions:
        if not isinstance(expression, ast.Call) or _called(expression.func) in {"option", "argument"}:
            continue
        for keyword in expression.keywords:
            value = keyword.value
            if (
                keyword.arg in {"help", "short_help"}
                and isinstance(value, ast.Constant)
                and isinstance(value.value, str)
            ):
                return value.value
    return ""


def _called(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""
