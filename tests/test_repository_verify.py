"""`make verify` fails on what it is there to catch: each test breaks a copy of the repository and runs the part that must notice."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from repository_checks.tree import Tree

Make = Callable[[Tree, str], "subprocess.CompletedProcess[str]"]


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def test_repository_verify_runs_every_part(copy: Tree) -> None:
    makefile = copy.text("Makefile")
    parts = re.findall(r"^(verify-[a-z]+): \$\(STAMP\)", makefile, flags=re.MULTILINE)
    listed = re.search(r"^VERIFY_PARTS := (.+)$", makefile, flags=re.MULTILINE)
    assert listed is not None
    assert sorted(listed.group(1).split()) == sorted(parts)
    assert len(parts) >= 6


def test_repository_verify_fails_when_a_generated_file_is_edited(copy: Tree, make: Make) -> None:
    before = make(copy, "verify-generated")
    assert before.returncode == 0, before.stdout
    page = next(copy.root.glob("crds/*_servingpools.yaml"), None) or next(copy.root.glob("crds/*.yaml"))
    append(page, "# by hand\n")
    after = make(copy, "verify-generated")
    assert after.returncode != 0
    assert page.name in after.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        pytest.param(
            "router/src/hlserve_router/__init__.py",
            "import hlserve_capacity\n",
            "The router needs nothing of ours but the contract",
            id="the router imports the cost model",
        ),
        pytest.param(
            "capacity/src/hlserve_capacity/__init__.py",
            "import time\n",
            "Pure members import no I/O, clock, randomness or logging",
            id="a pure member reads the clock",
        ),
        pytest.param(
            "crds/src/hlserve_api/__init__.py",
            "import hlserve_router\n",
            "Members form layers",
            id="the contract imports what is above it",
        ),
    ],
)
def test_repository_verify_fails_when_an_import_contract_is_broken(
    copy: Tree, make: Make, module: str, line: str, contract: str
) -> None:
    append(copy.root / module, line)
    result = make(copy, "verify-imports")
    assert result.returncode != 0
    assert re.search(rf"{re.escape(contract)}.* BROKEN", result.stdout), result.stdout


def test_repository_verify_keeps_the_import_contracts(copy: Tree, make: Make) -> None:
    result = make(copy, "verify-imports")
    assert result.returncode == 0, result.stdout
    assert " 0 broken" in result.stdout


def test_repository_verify_fails_when_operator_becomes_a_package(copy: Tree, make: Make) -> None:
    before = make(copy, "verify-repository")
    assert before.returncode == 0, before.stdout
    (copy.root / "operator" / "__init__.py").touch()
    after = make(copy, "verify-repository")
    assert after.returncode != 0
    assert "operator/__init__.py shadows the standard library's operator module: delete that file" in after.stdout


def test_repository_verify_fails_on_an_unformatted_file(copy: Tree, make: Make) -> None:
    append(copy.root / "cli/src/hlserve_cli/__init__.py", "x  =  1\n")
    assert make(copy, "verify-format").returncode != 0
