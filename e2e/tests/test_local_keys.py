"""`hlserve keys new`."""

import re
import stat
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from hlserve_api.new_key import new_key
from hlserve_local.keys_command import keys

KEY = re.compile(r"hls_[A-Za-z0-9_-]{43}")


def test_keys_are_strong_and_never_the_same() -> None:
    made = {new_key() for _ in range(200)}
    assert len(made) == 200
    assert all(KEY.fullmatch(key) for key in made)


def test_prints_a_manifest_that_holds_the_key() -> None:
    result = CliRunner().invoke(keys, ["new", "coder", "--class", "agent", "--tenant", "dev"])
    assert result.exit_code == 0
    client_key, secret = yaml.safe_load_all(result.stdout)
    assert client_key["spec"] == {
        "tenant": "dev",
        "workloadClassRef": {"name": "agent"},
        "credentials": [{"id": "primary", "secretRef": {"name": "coder-primary", "key": "key"}}],
    }
    assert secret["metadata"]["name"] == "coder-primary"
    (shown,) = KEY.findall(result.stderr)
    assert secret["stringData"] == {"key": shown}


def test_writes_a_private_file_and_prints_only_the_key(tmp_path: Path) -> None:
    file = tmp_path / "key.yaml"
    result = CliRunner().invoke(keys, ["new", "coder", "--class", "agent", "--write", str(file)])
    assert result.exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    _, secret = yaml.safe_load_all(file.read_text())
    assert result.stdout.strip() == secret["stringData"]["key"]


def test_refuses_to_overwrite(tmp_path: Path) -> None:
    file = tmp_path / "key.yaml"
    file.write_text("precious")
    result = CliRunner().invoke(keys, ["new", "coder", "--class", "agent", "--write", str(file)])
    assert result.exit_code == 2
    assert "exists and is left as it is" in result.stderr
    assert file.read_text() == "precious"


@pytest.mark.parametrize("name", ["Coder", "-x", "a" * 55, "a_b", ""])
def test_refuses_names_that_a_cluster_would_refuse(name: str) -> None:
    result = CliRunner().invoke(keys, ["new", "--class", "agent", "--", name])
    assert result.exit_code == 2
    assert "is not usable: take at most 54 lower-case letters" in result.stderr
