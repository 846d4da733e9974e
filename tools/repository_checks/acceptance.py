"""Check of docs/acceptance.md: every promise names tests, and every test named exists."""

import re
from pathlib import PurePosixPath

from repository_checks.documents import definitions
from repository_checks.tree import Tree

PAGE = "docs/acceptance.md"

_TEST = re.compile(r"`(test_\w+\.py)::(\w+)`")
_ROW = re.compile(r"^\|(?! ---)(.+)\|$", flags=re.MULTILINE)


def promises_have_tests(tree: Tree) -> list[str]:
    """Each row below a table's head names at least one test, by file and function, that is there."""
    if PAGE not in tree.files:
        return [f"{PAGE} is missing. Restore it: it says which test shows what."]
    tests = {
        PurePosixPath(name).name: name for name in tree.having(".py") if PurePosixPath(name).name.startswith("test_")
    }
    problems: list[str] = []
    for cells in promises(tree.text(PAGE)):
        named = _TEST.findall(cells)
        if not named:
            problems.append(
                f"{PAGE}: no test is named for '{cells.split('|')[0].strip()}'. Name one as `test_file.py::test_name`."
            )
        for file, function in named:
            if file not in tests:
                problems.append(f"{PAGE} names {file}, which is not there. Correct the name.")
            elif function not in definitions(tree.text(tests[file])):
                problems.append(f"{PAGE} names {file}::{function}, which that file does not define. Correct the name.")
    return problems


def promises(markdown: str) -> list[str]:
    """The rows of all tables without their heads."""
    rows: list[str] = []
    for table in re.findall(r"^\|.+\|\n\| ---.*\|\n((?:\|.+\|\n?)*)", markdown, flags=re.MULTILINE):
        rows += _ROW.findall(table)
    return rows
