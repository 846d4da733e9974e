"""Checks of Markdown: links lead somewhere, named functions exist, named make targets exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from repository_checks.makefile import targets
from repository_checks.tree import Tree

_LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", flags=re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_MAKE_IN_PAGE = re.compile(r"(?:`|\$ |&& )make ([a-z][a-z-]*)")
_MAKE_IN_SCRIPT = re.compile(r"\bmake ([a-z][a-z-]*)")


def links_resolve(tree: Tree) -> list[str]:
    """Every relative link leads to a file, every anchor to a heading, every linked `name` to a definition in its Python file."""
    problems = []
    for page in tree.having(".md"):
        for text, target in links(tree.text(page)):
            problem = _problem(tree, page, text, target)
            if problem:
                problems.append(f"{page}: [{text}]({target}) {problem}")
    return problems


def make_targets_exist(tree: Tree) -> list[str]:
    """A page or script that says `make X` names a target of the Makefile."""
    known = {target.name for target in targets(tree.text("Makefile"))}
    said = {page: set(_MAKE_IN_PAGE.findall(tree.text(page))) for page in tree.having(".md")}
    said[".ci/run"] = set(_MAKE_IN_SCRIPT.findall(tree.text(".ci/run")))
    return [
        f"{page} says 'make {name}', which is no target. Correct the page or add the target."
        for page, names in said.items()
        for name in sorted(names - known)
    ]


def links(markdown: str) -> Iterator[tuple[str, str]]:
    """(text, target) of each inline link outside code."""
    for found in _LINK.finditer(_without_code(markdown)):
        yield found.group(1), found.group(2)


def _without_code(markdown: str) -> str:
    """The page without code blocks and code spans; a span that is a link's whole text stays, because it may name a function."""

    def keep_link_text(span: re.Match[str]) -> str:
        around = span.string[max(0, span.start() - 1) : span.start()] + span.string[span.end() : span.end() + 1]
        return span.group() if around == "[]" else ""

    return _CODE.sub(keep_link_text, _FENCE.sub("", markdown))


def anchors(markdown: str) -> frozenset[str]:
    """Anchors of a page's headings as GitHub makes them, and explicit `<a id>`."""
    prose = _FENCE.sub("", markdown)
    found: set[str] = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", prose))
    for heading in re.findall(r"^#{1,6} +(.+?)\s*#*$", prose, flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        repeated, count = anchor, 1
        while repeated in found:
            repeated, count = f"{anchor}-{count}", count + 1
        found.add(repeated)
    return frozenset(found)


def definitions(source: str) -> frozenset[str]:
    """Names that a Python module defines, and `Class.member` for what its classes define."""
    return frozenset(_defined(ast.parse(source).body, ""))


def _defined(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name
            case ast.ClassDef(name=name, body=inner):
                yield prefix + name
                yield from _defined(inner, f"{prefix}{name}.")
            case ast.Assign(targets=assigned):
                yield from (prefix + target.id for target in assigned if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name


def _problem(tree: Tree, page: str, text: str, target: str) -> str | None:
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return None
    path, _, anchor = target.partition("#")
    name = _resolve(page, path) if path else page
    if name is None:
        return "leads out of the repository."
    if name not in tree.files and not (tree.root / name).is_dir():
        return "leads to no file of the repository."
    if anchor and name.endswith(".md") and anchor not in anchors(tree.text(name)):
        return "names a heading that is not there."
    symbol = re.fullmatch(r"`([A-Za-z_][\w.]*)(?:\(\))?`", text)
    if (
        symbol
        and name.endswith(".py")
        and not symbol.group(1).endswith(".py")
        and symbol.group(1) not in definitions(tree.text(name))
    ):
        return f"names {symbol.group(1)}, which that file does not define."
    return None


def _resolve(page: str, path: str) -> str | None:
    parts = list(PurePosixPath(page).parent.parts) if not path.startswith("/") else []
    for part in PurePosixPath(path.lstrip("/")).parts:
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts) or "."
