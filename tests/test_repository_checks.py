"""Each repository check holds here, and notices the defect that it is there for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from repository_checks.__main__ import CHECKS, main
from repository_checks.adr_index import Record, problems_and_index, read_record
from repository_checks.tree import Tree


@pytest.mark.parametrize("name", CHECKS)
def test_repository_check_holds(repository: Tree, name: str) -> None:
    assert CHECKS[name](repository) == []


@dataclass(frozen=True, slots=True)
class Defect:
    check: str
    break_it: Callable[[Path], None]
    want: str


def write(name: str, text: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")

    return change


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        text = (root / name).read_text(encoding="utf-8")
        assert old in text
        (root / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


DEFECTS = {
    "a file grows past the cap": Defect(
        "file-sizes", write("cli/long.py", "x = 1\n" * 601), "cli/long.py has 601 lines"
    ),
    "operator becomes a package": Defect("operator-folder", write("operator/__init__.py", ""), "Delete it"),
    "two test files share a name": Defect(
        "test-names", write("cli/tests/sub/test_cli_group.py", ""), "test_cli_group.py exists 2 times"
    ),
    "a helper module lies in tests": Defect("test-names", write("cli/tests/tools.py", ""), "is neither conftest.py"),
    "a package loses its marker": Defect(
        "typed", remove("cli/src/hlserve_cli/py.typed"), "cli has no src/<package>/py.typed"
    ),
    "a page names a home folder": Defect(
        "machine-addresses", write("docs/x.md", "see /ho" + "me/ann/notes\n"), "docs/x.md:1"
    ),
    "a script names a registry": Defect(
        "machine-addresses", write("x.sh", "pip install --index" + "-url=https://pip.example x\n"), "x.sh:1"
    ),
    "uv's own lock comes back": Defect("machine-addresses", write("cli/uv.lock", ""), "uv.lock holds addresses"),
    "a member asks for what is not pinned": Defect(
        "locks",
        replace("cli/pyproject.toml", '"click>=8.1,<9"', '"not-there>=1"'),
        "cli needs not-there>=1, which is not pinned",
    ),
    "a pin leaves a member's range": Defect(
        "locks", replace("cli/pyproject.toml", '"click>=8.1,<9"', '"click>=7,<8"'), "cli needs click<8,>=7, and 8."
    ),
    "a lock is lost": Defect("locks", remove("locks/router.txt"), "locks/router.txt is missing"),
    "a client's lock is lost": Defect(
        "locks", remove("locks/clients-openai.txt"), "locks/clients-openai.txt is missing"
    ),
    "a client is pinned to another major": Defect(
        "locks",
        replace("pyproject.toml", '"openai>=2,<3"', '"openai>=1,<2"'),
        "client-openai-previous needs openai<2,>=1",
    ),
    "a pin has no hash": Defect("hashes", write("locks/sim.txt", "click==8.5.1\n"), "click==8.5.1 has no hash"),
    "one member is a version ahead": Defect(
        "versions", replace("cli/pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"'), "cli has version 0.2.0"
    ),
    "a member asks for an older sibling": Defect(
        "versions", replace("router/pyproject.toml", "hlserve-api==0.1.0", "hlserve-api==0.0.9"), "Ask for ==0.1.0"
    ),
    "a page links to nothing": Defect("links", write("docs/x.md", "[a](nowhere.md)\n"), "leads to no file"),
    "a page links to no heading": Defect(
        "links", write("docs/x.md", "# A b\n[a](#a-b) [c](x.md#c)\n"), "names a heading"
    ),
    "a page links to no such function": Defect(
        "links",
        write("docs/x.md", "[`gone`](../cli/src/hlserve_cli/group.py)\n"),
        "names gone, which that file does not define",
    ),
    "a page links out of the repository": Defect("links", write("docs/x.md", "[a](../../x.md)\n"), "leads out"),
    "a page names a dead target": Defect("make-mentions", write("docs/x.md", "Run `make coffee`.\n"), "'make coffee'"),
    "a target is not explained": Defect(
        "make-help", replace("Makefile", "test: helm ##", "test: helm #"), "target test has no '## explanation'"
    ),
    "a generator is misspelt": Defect(
        "generators", replace("Makefile", "repository_checks.adr_index", "repository_checks.adr_indx"), "adr_indx"
    ),
    "a promise names a test that is gone": Defect(
        "acceptance",
        replace("docs/acceptance.md", "::test_a_step_of_a_batch`", "::test_a_step_of_a_bath`"),
        "names test_capacity_lab_closed_forms.py::test_a_step_of_a_bath, which that file does not define",
    ),
    "a promise names a file that is gone": Defect(
        "acceptance", replace("docs/acceptance.md", "`test_sim_agreement.py:", "`test_sim_agreemnt.py:"), "is not there"
    ),
    "a promise names no test": Defect(
        "acceptance",
        replace("docs/acceptance.md", "`test_sim_agreement.py::", "`"),
        "no test is named for 'The simulator over HTTP and pure code agree",
    ),
    "the promises are lost": Defect("acceptance", remove("docs/acceptance.md"), "docs/acceptance.md is missing"),
    "a fault case is lost": Defect(
        "cases", replace("docs/acceptance.md", "| B04 ", "| B99 "), "has no row for case B04"
    ),
    "a fault case names a test without its id": Defect(
        "cases",
        replace("docs/acceptance.md", "::test_b28_a_body_in_chunks`", "::test_b29_headers_of_one_hop_stay_on_it`"),
        "test_router_case_framing.py::test_b29_headers_of_one_hop_stay_on_it does not carry B28",
    ),
    "a member is left out of the Makefile": Defect(
        "members", replace("Makefile", "e2e cli\n", "e2e\n"), "Make them equal"
    ),
}


@pytest.mark.parametrize("defect", [pytest.param(value, id=key) for key, value in DEFECTS.items()])
def test_repository_check_notices(copy: Tree, defect: Defect) -> None:
    defect.break_it(copy.root)
    problems = CHECKS[defect.check](Tree(copy.root))
    assert [problem for problem in problems if defect.want in problem], problems


def test_repository_every_check_has_a_defect_that_it_notices() -> None:
    assert {defect.check for defect in DEFECTS.values()} == set(CHECKS)


def test_repository_checks_refuse_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coffee"]) == 2
    assert capsys.readouterr().err.startswith("There is no check 'coffee'. The checks are: ")


GOOD = "# 0001: Names\n\nStatus: Accepted\n\n## Context\n\n## Decision\n\n## Alternatives\n\n## Consequences\n"


def test_repository_adr_reads_a_record() -> None:
    assert read_record("0001-names.md", GOOD) == Record("0001-names.md", 1, "Names", "Accepted")


@pytest.mark.parametrize(
    ("file", "text", "want"),
    [
        pytest.param("names.md", GOOD, "NNNN-some-words.md", id="a file without a number"),
        pytest.param("0002-names.md", GOOD, "'# 0002: Title'", id="a title with another number"),
        pytest.param("0001-names.md", GOOD.replace("Accepted", "Maybe"), "Proposed, Accepted", id="an unknown status"),
        pytest.param(
            "0001-names.md", GOOD.replace("## Alternatives", "## Other"), "section Alternatives", id="no alternatives"
        ),
    ],
)
def test_repository_adr_refuses(file: str, text: str, want: str) -> None:
    problem = read_record(file, text)
    assert isinstance(problem, str)
    assert want in problem


def test_repository_adr_numbers_have_no_gap(tmp_path: Path) -> None:
    write("docs/adr/0002-names.md", GOOD.replace("0001", "0002"))(tmp_path)
    problems, _ = problems_and_index(tmp_path)
    assert problems == ["docs/adr: the numbers must run from 0001 without gaps or repetitions."]
