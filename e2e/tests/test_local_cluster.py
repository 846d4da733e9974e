"""What a cluster of ours decides without starting anything: which cluster is touched, what is missing, what is cached."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from hlserve_cluster import image_lock, preflight, programs
from hlserve_cluster.api_profile import free_address
from hlserve_cluster.control_plane import api_hosts
from hlserve_cluster.daemons import Daemon, Daemons
from hlserve_cluster.errors import ClusterError
from hlserve_cluster.gpus import RESOURCE, kwok_node
from hlserve_cluster.layout import Layout, cache_directory, state_directory
from hlserve_cluster.node import write
from hlserve_cluster.pki import COMPONENTS, write_certificates, write_kubeconfig
from hlserve_cluster.target import choose


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """An empty state folder."""
    made = Layout(tmp_path / "state")
    made.create()
    return made


def kubeconfig(folder: Path, name: str, *contexts: str) -> Path:
    """A file with these contexts."""
    file = folder / name
    file.write_text(json.dumps({"contexts": [{"name": context} for context in contexts]}))
    return file


def test_a_kubeconfig_in_the_environment_alone_names_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever exports KUBECONFIG for daily work did not mean the test suite."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    production = kubeconfig(tmp_path, "production", "production")
    with pytest.raises(ClusterError, match="make cluster-up"):
        choose("", {"KUBECONFIG": str(production)})


def test_our_own_cluster_is_used_whatever_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unnamed means ours, even beside a KUBECONFIG that leads elsewhere."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    own = Layout(state_directory("full"))
    own.create()
    own.admin.write_text("{}")
    target = choose("", {"KUBECONFIG": str(kubeconfig(tmp_path, "production", "production"))})
    assert (target.kubeconfig, target.ours) == (own.admin, True)


def test_a_named_context_is_found_in_any_file_of_the_list(tmp_path: Path) -> None:
    """KUBECONFIG may list several files; the second one counts as well."""
    files = [kubeconfig(tmp_path, "a", "one"), kubeconfig(tmp_path, "b", "kind-gpu")]
    target = choose("kind-gpu", {"KUBECONFIG": os.pathsep.join(map(str, files))})
    assert (target.kubeconfig, target.context, target.ours) == (files[1], "kind-gpu", False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param('{"contexts": [{"name": "kind-a"}]}', "It has: kind-a", id="another_name_lists_those_there_are"),
        pytest.param("{}", "It has none", id="an_empty_file_says_that_it_has_none"),
        pytest.param("[", "is no kubeconfig", id="a_broken_file_is_named"),
        pytest.param("[1]", "is no kubeconfig", id="a_list_is_no_kubeconfig"),
    ],
)
def test_an_unknown_context_is_refused(content: str, message: str, tmp_path: Path) -> None:
    """A misspelt name never falls back to another cluster."""
    file = tmp_path / "config"
    file.write_text(content)
    with pytest.raises(ClusterError, match=message):
        choose("kind-b", {"KUBECONFIG": str(file)})


@pytest.mark.parametrize("profile", ["api", "full"])
def test_preflight_names_packages_with_one_command(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One command installs all that is missing, sorted and once each."""
    monkeypatch.setenv("PATH", "/nowhere")
    commands = [text for text in preflight.problems(profile, ("pause",)) if "apt-get install" in text]
    assert len(commands) == 1
    packages = commands[0].partition("--no-install-recommends ")[2].split()
    assert packages == sorted(set(packages))
    assert ("containerd" in packages) == (profile == "full")
    assert "etcd-server" in packages


def test_a_program_is_made_again_when_a_source_changes(tmp_path: Path) -> None:
    """The cache's key is the content of the files that decide what is built."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    program = programs.Program("p", ("one", "two"), ("p",), lambda target: None, tmp_path)
    before = program.key
    assert program.key == before
    (tmp_path / "two").write_text("changed")
    assert program.key != before


LOCK = """\
always==1 \\
    --hash=sha256:a
early==1 ; python_full_version < '3.11.3' \\
    --hash=sha256:b
windows==1 ; sys_platform == 'win32' \\
    --hash=sha256:c
later==1 ; python_version >= '3.12' \\
    --hash=sha256:d
"""


def test_a_lock_is_read_for_every_release_of_the_images_python() -> None:
    """A base image with 3.11.2 gets what only releases before 3.11.3 want, whichever Python builds the image."""
    assert image_lock.for_python(LOCK, "3.11").splitlines() == [
        "always==1 \\",
        "    --hash=sha256:a",
        "early==1 \\",
        "    --hash=sha256:b",
    ]
    assert "later==1 " in image_lock.for_python(LOCK, "3.12")
    assert "early==1 " not in image_lock.for_python(LOCK, "3.12")


def test_programs_and_state_lie_outside_the_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both follow the XDG variables; a relative value is ignored, as the specification asks."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert cache_directory() == tmp_path / "hlserve" / "cluster"
    assert state_directory("api") == Path.home() / ".local/state/hlserve/cluster-api"


def test_certificates_are_of_one_authority_and_keys_are_private(layout: Layout) -> None:
    """openssl, which had no part in making them, accepts the chain and the address; nobody else may read a key."""
    address = free_address()
    write_certificates(layout, api_hosts(address), COMPONENTS)
    ca = str(layout.certificate("ca"))
    for name, purpose in (("apiserver", "sslserver"), ("admin", "sslclient")):
        command = [
            "openssl",
            "verify",
            "-CAfile",
            ca,
            "-purpose",
            purpose,
            "-x509_strict",
            str(layout.certificate(name)),
        ]
        assert subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0, name
    assert {file.stat().st_mode & 0o777 for file in layout.certificates.glob("*.key")} == {0o600}
    write_kubeconfig(layout, "admin", address.url, "c")
    assert layout.admin.stat().st_mode & 0o777 == 0o600
    assert json.loads(layout.admin.read_text())["clusters"][0]["cluster"]["server"] == address.url


def test_the_nodes_files_leave_no_placeholder(layout: Layout) -> None:
    """Every template's values are known, and the CNI file is JSON."""
    write(layout)
    written = [file for file in layout.directory.rglob("*") if file.is_file()]
    assert len(written) == 6
    assert not [file for file in written if "$" in file.read_text()]
    json.loads((layout.directory / "cni" / "10-pods.conflist").read_text())


def test_a_simulated_node_says_so_and_has_its_gpus() -> None:
    """A selector can keep real work away from nodes without a machine."""
    made = kwok_node(3, 4)
    assert made["metadata"]["labels"]["hlserve.io/simulated"] == "true"
    assert made["status"]["allocatable"][RESOURCE] == "4"


def test_a_daemon_is_found_again_and_a_stranger_is_left_alone(layout: Layout) -> None:
    """Another object with the same folder stops the process; a process that only has its number is not touched."""
    Daemons(layout).start("sleeper", ["sleep", "60"])
    (again,) = Daemons(layout).known()
    assert again.runs()
    stranger = Daemon("sleeper", again.pid, "1")
    assert not stranger.runs()
    stranger.signal(signal.SIGKILL)
    assert again.runs()
    Daemons(layout).stop(again)
    assert not again.runs()
    assert Daemons(layout).known() == ()


def test_a_daemon_that_ends_at_once_is_told_with_its_last_words(layout: Layout) -> None:
    """Waiting for something does not outlast the process that it comes from."""
    daemons = Daemons(layout)
    daemon = daemons.start("failing", ["sh", "-c", "echo no disk >&2; sleep 0.1; exit 3"])
    with pytest.raises(ClusterError, match="no disk"):
        daemons.wait("It", 30, lambda: False, daemon)
    daemons.stop(daemon)
