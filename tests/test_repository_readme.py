"""The README's snippets fit the examples that they speak of, and every Python block in the docs parses."""

import ast
import re

import pytest
import yaml

from repository_checks.tree import Tree

BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def quickstart(repository: Tree) -> list[dict[str, object]]:
    files = sorted(name for name in repository.files if re.fullmatch(r"examples/quickstart/\w+\.yaml", name))
    return [document for name in files for document in yaml.safe_load_all(repository.text(name))]


def test_repository_readme_uses_the_examples_keys_and_model(
    repository: Tree, quickstart: list[dict[str, object]]
) -> None:
    text = yaml.safe_dump(quickstart)
    blocks = "".join(BLOCK.findall(repository.text("README.md")))
    keys = re.findall(r'api_key="([^"]+)"', blocks)
    models = set(re.findall(r'model="([^"]+)"', blocks))
    assert len(keys) == 2
    assert [key for key in keys if f"key: {key}\n" not in text] == []
    assert [model for model in models if f"name: {model}\n" not in text] == []


def test_repository_python_blocks_parse(repository: Tree) -> None:
    blocks = [(page, block) for page in repository.having(".md") for block in BLOCK.findall(repository.text(page))]
    assert len(blocks) >= 2
    for page, block in blocks:
        ast.parse(block, filename=page)


def test_repository_readme_needs_no_set_up_but_its_two_commands(repository: Tree) -> None:
    text = repository.text("README.md")
    assert re.search(r"^\$ make demo\b", text, flags=re.MULTILINE)
    assert re.search(r"^\$ make test\b", text, flags=re.MULTILINE)
    assert not re.search(r"pip install|uv sync|source .*activate", text)
