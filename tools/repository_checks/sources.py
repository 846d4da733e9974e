"""Checks of source files: size, folders that must not be packages, names of tests, machine addresses."""

import re
from collections import Counter
from pathlib import PurePosixPath

from repository_checks.tree import DISTRIBUTIONS, Tree

MAXIMUM_LINES = 600
"""A Python file above this is split. 400 is where one should start to think about it."""

_MACHINE = re.compile(
    r"(?<![\w./~-])/(?:work|root|home|Users)/\w"  # a path on somebody's machine
    r"|--(?:extra-)?index-url|\bindex-url\s*="  # which registry to use is for the machine to say
    r"|https?://[^\s/]+(?:/[^\s/]+)*/simple\b",
)
_EXEMPT = "tools/repository_checks/sources.py"
"""The file that holds the patterns themselves."""

_LOCK_WITH_ADDRESSES = "uv.lock"


def file_sizes(tree: Tree) -> list[str]:
    """Python files are short enough to read."""
    lengths = {name: tree.text(name).count("\n") for name in tree.having(".py")}
    return [
        f"{name} has {lines} lines, more than {MAXIMUM_LINES}. Split it by what changes together."
        for name, lines in lengths.items()
        if lines > MAXIMUM_LINES
    ]


def no_shadowing_package(tree: Tree) -> list[str]:
    """`operator/` is a folder, not a package: as a package it would shadow the standard library's `operator`."""
    if (tree.root / "operator" / "__init__.py").exists():
        return [
            "operator/__init__.py shadows the standard library's operator for anything started at the root. Delete it."
        ]
    return []


def tests_have_unique_names(tree: Tree) -> list[str]:
    """Test files are found by base name, so that they are unique, and no `tests` folder holds modules to import."""
    tests = [PurePosixPath(name) for name in tree.having(".py") if "tests" in PurePosixPath(name).parts[:-1]]
    problems = [
        f"{path} is neither conftest.py nor test_*.py. Put helpers into a package of the member."
        for path in tests
        if not (path.name == "conftest.py" or path.name.startswith("test_"))
    ]
    counts = Counter(path.name for path in tests if path.name.startswith("test_"))
    problems += [
        f"{name} exists {count} times. Name test files test_<member>_<subject>.py."
        for name, count in counts.items()
        if count > 1
    ]
    return problems


def members_are_typed(tree: Tree) -> list[str]:
    """Every package of ours says that it is typed, and every distribution has tests."""
    problems = []
    for folder in DISTRIBUTIONS:
        own = [name for name in tree.files if name.startswith(f"{folder}/")]
        if not any(re.fullmatch(rf"{folder}/src/\w+/py\.typed", name) for name in own):
            problems.append(f"{folder} has no src/<package>/py.typed. Add the empty file, so that its types are seen.")
        if not any(re.fullmatch(rf"{folder}/tests/test_\w+\.py", name) for name in own):
            problems.append(f"{folder}/tests holds no test_*.py. Add the member's tests.")
    return problems


def no_machine_addresses(tree: Tree) -> list[str]:
    """No file holds a registry's address or a path of one machine."""
    problems = [
        f"{name} holds addresses of a registry. Delete it; locks/ has the pins."
        for name in tree.files
        if PurePosixPath(name).name == _LOCK_WITH_ADDRESSES
    ]
    for name in tree.files:
        if name == _EXEMPT:
            continue
        try:
            text = tree.text(name)
        except UnicodeDecodeError:
            continue  # a picture or an archive
        for number, line in enumerate(text.splitlines(), start=1):
            found = _MACHINE.search(line)
            if found:
                problems.append(
                    f"{name}:{number} holds {found.group()!r}, which is true on one machine only. Make it relative."
                )
    return problems
