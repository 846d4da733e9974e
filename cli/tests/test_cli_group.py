"""The `hlserve` group over members that are well, broken, clashing or absent."""

import operator
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hlserve_cli.commands import GROUP, Offer, by_name, first_sentence, installed_offers, near_matches, short_help
from hlserve_cli.group import MemberGroup, load

Member = Callable[[str, str], EntryPoint]


@pytest.fixture
def member(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Member]:
    """Write a module with the given source and return its entry point; the import path is left as it was."""
    sys.path.insert(0, str(tmp_path))

    def write(name: str, source: str) -> EntryPoint:
        module = f"member_{name}_{abs(hash(request.node.nodeid)) % 10**8}"
        (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
        return EntryPoint(name=name, value=f"{module}:{name}", group=GROUP)

    yield write
    sys.path.remove(str(tmp_path))


WELL = (
    'import click\n\n@click.command()\ndef greet() -> None:\n    """Say hello. Then stop."""\n    click.echo("hello")\n'
)


def a_group(*points: EntryPoint) -> MemberGroup:
    return MemberGroup(lambda: by_name(points), name="hlserve")


def test_cli_runs_a_members_command(member: Member) -> None:
    result = CliRunner().invoke(a_group(member("greet", WELL)), ["greet"])
    assert (result.exit_code, result.output) == (0, "hello\n")


def test_cli_help_lists_commands_without_importing_them(member: Member) -> None:
    broken = 'raise RuntimeError("imported")\n\ndef greet() -> None:\n    """Say hello. Then stop."""\n'
    result = CliRunner().invoke(a_group(member("greet", broken)), ["--help"])
    assert result.exit_code == 0, result.output
    assert "greet  Say hello\n" in result.output


def test_cli_says_in_one_sentence_that_a_member_is_broken(member: Member) -> None:
    result = CliRunner().invoke(a_group(member("greet", "import hlserve_no_such_module\n")), ["greet"])
    assert result.exit_code == 1
    assert "Error: The command 'greet' of" in result.output
    assert (
        "cannot be loaded (ModuleNotFoundError: No module named 'hlserve_no_such_module'). Install it again"
        in result.output
    )
    assert "Traceback" not in result.output


def test_cli_says_that_an_entry_point_is_no_command(member: Member) -> None:
    result = CliRunner().invoke(a_group(member("greet", "greet = 3\n")), ["greet"])
    assert result.exit_code == 1
    assert "is no click command" in result.output


@pytest.mark.parametrize(
    ("typed", "want"),
    [
        pytest.param("gret", "There is no command 'gret'. Did you mean 'greet'?", id="a near name is suggested"),
        pytest.param("xyz", "There is no command 'xyz'. The commands are: greet.", id="a far name gets the list"),
    ],
)
def test_cli_explains_an_unknown_command(member: Member, typed: str, want: str) -> None:
    result = CliRunner().invoke(a_group(member("greet", WELL)), [typed])
    assert result.exit_code == 2
    assert want in result.output


def test_cli_without_members_says_what_to_install() -> None:
    for arguments, code in ((["--help"], 0), (["up"], 2)):
        result = CliRunner().invoke(a_group(), arguments)
        assert result.exit_code == code
        assert "pip install 'hlserve[local]'" in result.output


def test_cli_refuses_a_name_that_two_members_offer(member: Member) -> None:
    other = EntryPoint(name="greet", value="elsewhere:greet", group=GROUP)
    result = CliRunner().invoke(a_group(member("greet", WELL), other), ["greet"])
    assert result.exit_code == 1
    assert "Uninstall one of them" in result.output


def test_cli_takes_one_package_found_twice_as_one_offer(member: Member) -> None:
    point = member("greet", WELL)
    assert isinstance(load(by_name([point, point])["greet"]), click.Command)


@pytest.mark.parametrize(
    ("source", "want"),
    [
        pytest.param('def greet():\n    """One. Two."""\n', "One", id="the first sentence of a docstring"),
        pytest.param(
            '@command(help="Given. More.")\ndef greet():\n    """One."""\n', "Given", id="the help argument wins"
        ),
        pytest.param(
            '@click.command()\n@click.option("--x", help="An option.")\ndef greet():\n    """One."""\n',
            "One",
            id="an option's help is not the command's",
        ),
        pytest.param('greet = Group(help="Assigned.")\n', "Assigned", id="an assigned group"),
        pytest.param("def other(): ...\n", "", id="nothing by that name"),
        pytest.param("def greet(:\n", "", id="a file that does not parse"),
    ],
)
def test_cli_reads_the_short_help_from_the_source(member: Member, source: str, want: str) -> None:
    assert short_help(Offer("greet", "d", member("greet", source))) == want


def test_cli_has_no_short_help_for_a_missing_package() -> None:
    assert short_help(Offer("x", "d", EntryPoint(name="x", value="hlserve_no_such.module:x", group=GROUP))) == ""


def test_cli_first_sentence_keeps_inner_full_stops() -> None:
    assert first_sentence("Run v1.2 of\nit. Then more.\n\nEnd.") == "Run v1.2 of it"


def test_cli_near_matches_are_ordered() -> None:
    assert near_matches("validat", ["up", "validate", "keys"]) == ["validate"]
    assert near_matches("q", ["up", "validate", "keys"]) == []


def test_cli_every_announced_command_is_described() -> None:
    """The installed members' commands appear in help with a sentence each, read from their sources."""
    offers = installed_offers()
    assert set(offers) == {point.name for point in entry_points(group=GROUP)}
    assert {"up", "demo", "validate", "keys", "lab", "size"} <= set(offers)
    assert [name for name, found in offers.items() if not short_help(found[0])] == []


def test_cli_help_of_the_real_command_imports_no_member() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from hlserve_cli.__main__ import main\n"
        "result = CliRunner().invoke(main, ['--help']); assert result.exit_code == 0, result.output\n"
        "loaded = sorted(m for m in sys.modules if m in {'fastapi', 'matplotlib', 'pydantic', 'httpx', 'openai'}); print(loaded)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "[]\n"


def test_cli_version_is_the_distributions() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hlserve_cli", "--version"], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "hlserve 0.1.0\n"


def test_cli_leaves_the_standard_librarys_operator_alone() -> None:
    assert operator.add(1, 1) == 2
