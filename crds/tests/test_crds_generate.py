"""The generated files in the repository are what their sources generate, and the check notices when they are not."""

from pathlib import Path

import pytest

from hlserve_api.generate.__main__ import main
from hlserve_api.generate.files import differences, generated_files, write
from hlserve_api.generate.markdown import cell, table

REPOSITORY = Path(__file__).parents[2]
PAGES = ("servingpool", "workloadclass", "clientkey", "conditions", "headers", "answers", "metrics", "routing-table")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "crds").mkdir()
    (tmp_path / "crds" / "pyproject.toml").touch()
    write(tmp_path)
    return tmp_path


def test_repository_is_up_to_date() -> None:
    assert differences(REPOSITORY) == []


@pytest.mark.parametrize("name", PAGES)
def test_every_reference_page_is_generated(name: str) -> None:
    page = generated_files()[Path(f"docs/reference/{name}.md")]
    assert page.startswith("<!-- Generated")
    assert page.count("\n| ") > 5


def test_generating_again_writes_nothing(repository: Path) -> None:
    assert write(repository) == []
    assert main(["--check", "--root", str(repository)]) == 0


def test_check_names_each_file_that_was_edited_or_removed(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edited = repository / "crds" / "serving.hlserve.io_clientkeys.yaml"
    edited.write_text(edited.read_text(encoding="utf-8") + "# by hand\n", encoding="utf-8")
    (repository / "docs/reference/metrics.md").unlink()
    assert main(["--check", "--root", str(repository)]) == 1
    complaint = capsys.readouterr().err
    assert "crds/serving.hlserve.io_clientkeys.yaml differs" in complaint
    assert "docs/reference/metrics.md is missing" in complaint
    assert "make generate" in complaint
    assert main(["--root", str(repository)]) == 0
    assert main(["--check", "--root", str(repository)]) == 0


def test_a_crd_that_nothing_generates_is_noticed_and_removed(repository: Path) -> None:
    stray = repository / "charts/hlserve-crds/templates/serving.hlserve.io_gone.yaml"
    stray.touch()
    assert [sentence for sentence in differences(repository) if "gone" in sentence]
    write(repository)
    assert not stray.exists()


def test_another_folder_is_refused_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--root", str(tmp_path)]) == 2
    assert "give --root" in capsys.readouterr().err


def test_cells_cannot_break_a_table() -> None:
    assert cell("a|b\nc") == "a\\|b c"
    assert table(("A",), [("x|y",)]).splitlines()[2] == "| x\\|y |"
